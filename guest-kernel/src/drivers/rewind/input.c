// SPDX-License-Identifier: GPL-2.0
/*
 * Outside input, read at /dev/rewind-in: typed bytes, or what the host's standard input had. No interrupt brings them:
 * at a return to user mode and at idle the kernel looks at one number in the control page, and asks the monitor when its
 * own count of polls has reached it. So a delivery has a place, (step, poll), the same in every replay of the log.
 *
 * The question is one piece of assembly, as in step.c: an answer of "not yet" leaves nothing in memory or registers.
 */
#include <linux/fs.h>
#include <linux/hardirq.h>
#include <linux/init.h>
#include <linux/miscdevice.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <asm/irq_stack.h>
#include "internal.h"

#define SIZE (16 * RW_INPUT_MAX)	/* a power of two */

static u8 waiting[SIZE];	/* bytes from `tail` to `head`, both ever growing */
static u64 head, tail;
static bool ended;		/* the channel was open and is closed */
static DECLARE_WAIT_QUEUE_HEAD(readers);
static DEFINE_MUTEX(reading);

/* A delivery of any size fits. A job that lets input pile up gets no more, so waiting for it can be a stall. */
bool rewind_input_possible(void)
{
	return S.input_open && SIZE - (head - tail) >= RW_INPUT_MAX;
}

static void take(struct pt_regs *regs)
{
	u32 len = CTL32(RW_CTL_INPUT_LEN), i;

	CTL32(RW_CTL_INPUT_LEN) = 0;
	rewind_progress();
	if (len == RW_INPUT_CLOSED) {
		S.input_open = 0;
		ended = true;
	} else {
		for (i = 0; i < min_t(u32, len, RW_INPUT_MAX); i++)
			waiting[head++ & (SIZE - 1)] = rewind_control[RW_INPUT_OFFSET + i];
	}
	wake_up_interruptible(&readers);
}

bool rewind_input(struct pt_regs *regs, bool idle)
{
	u64 len = 0;

	if (!rewind_input_possible())
		return false;
	asm volatile(
		"1:	cmpq	%c[at](%[control]), %[polls]\n\t"
		"jae	2f\n\t"
		"testl	%[idle], %[idle]\n\t"
		"jz	3f\n"
		"2:	movl	%[port], %%edx\n\t"
		"xorl	%%eax, %%eax\n\t"
		"outl	%%eax, %%dx\n\t"
		"movl	%c[bytes](%[control]), %k[len]\n\t"
		"testl	%k[len], %k[len]\n\t"
		"jz	1b\n"
		"3:	xorl	%%edx, %%edx\n\t"
		"xorl	%%eax, %%eax\n\t"
		: [len] "+&r" (len)
		: [control] "r" (rewind_control), [polls] "r" (S.polls), [idle] "r" ((u32)idle),
		  [at] "i" (RW_CTL_INPUT_POLL), [bytes] "i" (RW_CTL_INPUT_LEN), [port] "i" (RW_DEVICE)
		: "eax", "edx", "cc", "memory");
	if (!len)
		return false;
	run_sysvec_on_irqstack_cond(take, regs);
	return true;
}

static int input_open(struct inode *inode, struct file *file)
{
	return S.input_open || ended ? stream_open(inode, file) : -ENXIO;
}

static ssize_t input_read(struct file *file, char __user *to, size_t len, loff_t *pos)
{
	ssize_t done = 0;

	if (!len)
		return 0;
	if (mutex_lock_interruptible(&reading))
		return -ERESTARTSYS;
	while (head == tail && !ended) {
		mutex_unlock(&reading);
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(readers, head != tail || ended) || mutex_lock_interruptible(&reading))
			return -ERESTARTSYS;
	}
	while (done < len && head != tail) {
		size_t at = tail & (SIZE - 1);
		size_t n = min3(len - done, (size_t)(head - tail), SIZE - at);

		if (copy_to_user(to + done, waiting + at, n)) {
			done = done ? done : -EFAULT;
			break;
		}
		tail += n;
		done += n;
	}
	mutex_unlock(&reading);
	return done;
}

static __poll_t input_poll(struct file *file, poll_table *wait)
{
	poll_wait(file, &readers, wait);
	return head != tail || ended ? EPOLLIN | EPOLLRDNORM : 0;
}

static const struct file_operations input_operations = {
	.open	= input_open,
	.read	= input_read,
	.poll	= input_poll,
};

static struct miscdevice input = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "rewind-in",
	.fops	= &input_operations,
	.mode	= 0666,
};

static int __init input_init(void)
{
	return misc_register(&input);
}
device_initcall(input_init);
