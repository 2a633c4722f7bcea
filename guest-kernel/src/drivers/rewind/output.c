// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/rewind-out and /dev/rewind-err: the job's standard output and error. Every write becomes records with the
 * thread that wrote; a write that fits one record is one record. They are no terminals, cannot be sought, never
 * block, and read as at the end of a file.
 */
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/miscdevice.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/splice.h>
#include <linux/uio.h>
#include "internal.h"

static struct miscdevice output[2];

static int output_open(struct inode *inode, struct file *file)
{
	return stream_open(inode, file);
}

static ssize_t output_write(struct kiocb *iocb, struct iov_iter *from)
{
	u32 fd = iminor(file_inode(iocb->ki_filp)) == output[1].minor ? 2 : 1;
	size_t len = iov_iter_count(from), room = min(len, REWIND_PAYLOAD), done = 0;
	u8 *buffer;

	if (!len)
		return 0;
	buffer = kmalloc(room, GFP_KERNEL);
	if (!buffer)
		return -ENOMEM;
	while (done < len) {
		size_t n = copy_from_iter(buffer, min(len - done, room), from);

		if (!n)
			break;
		rewind_progress();
		rewind_record(RW_REC_OUTPUT, 0, fd, buffer, n);
		done += n;
	}
	kfree(buffer);
	return done ? done : -EFAULT;
}

static ssize_t output_read(struct file *file, char __user *to, size_t len, loff_t *pos)
{
	return 0;
}

static __poll_t output_poll(struct file *file, poll_table *wait)
{
	return EPOLLOUT | EPOLLWRNORM;
}

static const struct file_operations output_operations = {
	.open		= output_open,
	.read		= output_read,
	.write_iter	= output_write,
	.splice_write	= iter_file_splice_write,
	.poll		= output_poll,
};

static struct miscdevice output[2] = {
	{ .minor = MISC_DYNAMIC_MINOR, .name = "rewind-out", .fops = &output_operations, .mode = 0666 },
	{ .minor = MISC_DYNAMIC_MINOR, .name = "rewind-err", .fops = &output_operations, .mode = 0666 },
};

static int __init output_init(void)
{
	int error = misc_register(&output[0]);

	return error ? error : misc_register(&output[1]);
}
device_initcall(output_init);
