// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/rwblkN: a read-only image behind one port. The monitor has filled the pages when the OUT returns, so there is
 * no queue, no interrupt and no sleep, and a bio ends before submit_bio() does.
 */
#include <linux/blkdev.h>
#include <linux/init.h>
#include <linux/module.h>
#include "internal.h"

static int major;
static struct gendisk *disks[RW_BLOCK_IMAGES];

/* Below 4 GiB, as the port's 32 bits ask: part of the kernel image. One at a time: the port answers at once. */
static struct rw_block_request request __aligned(16);

static u32 rewind_block(u32 op, u32 image, u64 sector, u32 segments)
{
	request.op = op;
	request.image = image;
	request.sector = sector;
	request.segments = segments;
	request.status = RW_BLOCK_EIO;
	barrier();
	outl((u32)__pa_symbol(&request), RW_BLOCK);
	barrier();
	return request.status;
}

static void rewind_submit_bio(struct bio *bio)
{
	u32 image = (unsigned long)bio->bi_bdev->bd_disk->private_data;
	u64 sector = bio->bi_iter.bi_sector, first = sector;
	struct bvec_iter iter;
	struct bio_vec piece;
	unsigned long flags;
	u32 n = 0;

	if (bio_op(bio) != REQ_OP_READ) {
		bio_io_error(bio);
		return;
	}
	local_irq_save(flags);
	bio_for_each_segment(piece, bio, iter) {
		if (n == RW_BLOCK_SEGMENTS) {
			if (rewind_block(RW_BLOCK_READ, image, first, n))
				goto failed;
			first = sector;
			n = 0;
		}
		request.segment[n].gpa = page_to_phys(piece.bv_page) + piece.bv_offset;
		request.segment[n].len = piece.bv_len;
		sector += piece.bv_len >> SECTOR_SHIFT;
		n++;
	}
	if (n && rewind_block(RW_BLOCK_READ, image, first, n))
		goto failed;
	local_irq_restore(flags);
	rewind_charge(bio->bi_iter.bi_size);
	bio_endio(bio);
	return;
failed:
	local_irq_restore(flags);
	bio_io_error(bio);
}

static const struct block_device_operations rewind_block_operations = {
	.owner		= THIS_MODULE,
	.submit_bio	= rewind_submit_bio,
};

/* The node appears in devtmpfs before this returns. */
int rewind_attach(unsigned int image)
{
	struct queue_limits limits = {
		.logical_block_size = SECTOR_SIZE,
		.physical_block_size = PAGE_SIZE,
		.max_hw_sectors = RW_BLOCK_SEGMENTS * (PAGE_SIZE >> SECTOR_SHIFT),
		.max_segments = RW_BLOCK_SEGMENTS,
		.features = BLK_FEAT_SYNCHRONOUS,
	};
	struct gendisk *disk;
	unsigned long flags;
	u64 sectors;
	u32 status;
	int error;

	if (image >= RW_BLOCK_IMAGES)
		return -EINVAL;
	if (disks[image])
		return -EBUSY;
	local_irq_save(flags);
	status = rewind_block(RW_BLOCK_INFO, image, 0, 0);
	sectors = request.sector;
	local_irq_restore(flags);
	if (status == RW_BLOCK_ABSENT)
		return -ENXIO;
	if (status != RW_BLOCK_OK)
		return -EIO;

	disk = blk_alloc_disk(&limits, NUMA_NO_NODE);
	if (IS_ERR(disk))
		return PTR_ERR(disk);
	disk->major = major;
	disk->first_minor = image;
	disk->minors = 1;
	disk->flags = GENHD_FL_NO_PART;
	disk->fops = &rewind_block_operations;
	disk->private_data = (void *)(unsigned long)image;
	snprintf(disk->disk_name, DISK_NAME_LEN, "rwblk%u", image);
	set_capacity(disk, sectors);
	set_disk_ro(disk, true);
	error = add_disk(disk);
	if (error) {
		put_disk(disk);
		return error;
	}
	disks[image] = disk;
	return 0;
}

static int __init block_init(void)
{
	major = register_blkdev(0, "rwblk");
	return major < 0 ? major : 0;
}
device_initcall(block_init);
