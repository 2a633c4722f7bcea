// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/rewind: init's calls (ioctl) and, for any program, JSON lines (write). A line whose first key is "mark"
 * becomes a mark, any other line a property; the text itself is the monitor's to judge.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include "internal.h"

static bool is_mark(const char *line, u32 len)
{
	const char *end = line + len;

	while (line < end && (*line == ' ' || *line == '\t'))
		line++;
	if (line == end || *line++ != '{')
		return false;
	while (line < end && (*line == ' ' || *line == '\t'))
		line++;
	return end - line >= 6 && !memcmp(line, "\"mark\"", 6);
}

static void put_line(const char *line, u32 len, bool cut)
{
	if (!len)
		return;
	rewind_progress();
	rewind_record(is_mark(line, len) ? RW_REC_MARK : RW_REC_PROPERTY, cut ? RW_FLAG_CUT : 0, 0, line, len);
}

/* Each line is one record; one that is longer than a record is cut, and its rest dropped. */
static ssize_t device_write(struct file *file, const char __user *from, size_t len, loff_t *pos)
{
	size_t done = 0;
	char *buffer = kmalloc(REWIND_PAYLOAD, GFP_KERNEL);
	bool skip = false;

	if (!buffer)
		return -ENOMEM;
	while (done < len) {
		size_t n = min(len - done, REWIND_PAYLOAD), line;
		char *newline;

		if (copy_from_user(buffer, from + done, n)) {
			kfree(buffer);
			return done ? done : -EFAULT;
		}
		newline = memchr(buffer, '\n', n);
		line = newline ? newline - buffer : n;
		if (!skip)
			put_line(buffer, line, !newline && done + n < len);
		skip = !newline;
		done += newline ? line + 1 : n;
	}
	kfree(buffer);
	return len;
}

static long device_job(struct rw_job_buffer __user *arg)
{
	struct rw_job_buffer job;
	u64 len;

	if (copy_from_user(&job, arg, sizeof(job)))
		return -EFAULT;
	/* What changes the quantum changes only what follows. */
	S.base = rewind_now();
	S.base_step = S.step;
	outl(0, RW_JOB);
	S.progress = rewind_now();
	len = CTL64(RW_CTL_JOB_LEN);
	if (len > RW_JOB_CAPACITY)
		return -EIO;
	if (put_user(len, &arg->len))
		return -EFAULT;
	if (len > job.len)
		return -ENOSPC;
	return copy_to_user((void __user *)job.ptr, rewind_control + RW_JOB_OFFSET, len) ? -EFAULT : 0;
}

static long device_report(struct rw_report_buffer __user *arg)
{
	struct rw_report_buffer report;
	void *payload;

	if (copy_from_user(&report, arg, sizeof(report)))
		return -EFAULT;
	if (report.len > REWIND_PAYLOAD || report.kind > U16_MAX)
		return -EINVAL;
	payload = memdup_user((void __user *)report.ptr, report.len);
	if (IS_ERR(payload))
		return PTR_ERR(payload);
	rewind_progress();
	rewind_record(RW_REC_REPORT, report.kind, 0, payload, report.len);
	kfree(payload);
	return 0;
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	/* For init alone: no thread of the job, whoever it is. */
	if (current->rewind.name || !capable(CAP_SYS_ADMIN))
		return -EPERM;
	switch (command) {
	case RW_IOCTL_JOB:
		return device_job((void __user *)arg);
	case RW_IOCTL_ATTACH:
		return rewind_attach(arg);
	case RW_IOCTL_ROOT:
		rewind_become_root();
		return 0;
	case RW_IOCTL_CORES:
		return rewind_set_cores(arg);
	case RW_IOCTL_REPORT:
		return device_report((void __user *)arg);
	}
	return -ENOTTY;
}

static const struct file_operations device_operations = {
	.write		= device_write,
	.unlocked_ioctl	= device_ioctl,
	.llseek		= noop_llseek,
};

static struct miscdevice device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "rewind",
	.fops	= &device_operations,
	.mode	= 0666,
};

static int __init device_init(void)
{
	return misc_register(&device);
}
device_initcall(device_init);
