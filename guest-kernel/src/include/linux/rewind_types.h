/* SPDX-License-Identifier: GPL-2.0 */
/* What every task carries for Rewind (drivers/rewind/). Kept apart so that sched.h needs nothing else. */
#ifndef _LINUX_REWIND_TYPES_H
#define _LINUX_REWIND_TYPES_H

#include <linux/types.h>

struct task_struct;

struct rewind_task {
	u64	name;		/* place in the creation tree; 0 outside the job */
	u64	clones;		/* children made so far, threads included */
	u64	syscall;	/* system calls entered */
	u64	affinity;	/* cores asked for by sched_setaffinity, when more than one is reported */
	u64	inject_arg;	/* decision brought by the injected interrupt, applied before the next commit */
	u32	returns;	/* commits since the last system call was entered */
	u32	rank;		/* lower runs first */
	u16	inject_kind;
	u8	preempted;	/* last until another thread of the job commits; in the list by next_preempted */
	u8	policy;		/* SCHED_FIFO or SCHED_RR as asked for and reported; scheduled as SCHED_NORMAL */
	u32	rt_priority;	/* likewise */
	struct task_struct *next_preempted;
};

#define REWIND_RANK_DEFAULT	0x80000000U

#endif
