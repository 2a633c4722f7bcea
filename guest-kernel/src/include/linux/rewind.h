/* SPDX-License-Identifier: GPL-2.0 */
/* Rewind's hooks in the rest of the kernel. Each is defined in the file of drivers/rewind/ named here. */
#ifndef _LINUX_REWIND_H
#define _LINUX_REWIND_H

#include <linux/types.h>
#include <linux/rewind_types.h>
#include <linux/rewind_abi.h>

struct pt_regs;
struct task_struct;
struct kernel_siginfo;
struct path;
struct qstr;
struct file;
struct mm_struct;

/* The state page (state.rs). One static page; its address is published at RW_PLATFORM. */
struct rewind_state {
	u64 magic;
	u32 version, reserved0;
	u64 step;
	u64 base;
	u64 base_step;
	u64 quantum;
	u64 deadline;
	u64 polls;
	u64 horizon;
	u64 idling;
	u64 thread;
	u64 syscall;
	u32 returns;
	u32 tid;
	u64 poll_cost;
	u64 page_cost;
	u64 input_open;
	u64 late;
	u64 cores;
	u64 charge_rest;	/* part of a nanosecond not yet in base, in 1/4096 */
	u64 progress;		/* when something new last happened, for the idling verdict */
	u64 ranks;		/* ranks are in use: pick_eevdf looks */
	u8 reserved1[RW_ST_FACTS - 0xa8];
	u64 facts[RW_ST_FACTS_MAX];
	u8 reserved2[4096 - RW_ST_FACTS - 8 * RW_ST_FACTS_MAX];
};
extern struct rewind_state rewind_state;

/* Virtual nanoseconds since boot. */
static __always_inline u64 rewind_now(void)
{
	return rewind_state.base + (rewind_state.step - rewind_state.base_step) * rewind_state.quantum;
}

/* clock.c */
void rewind_setup(void);
void rewind_poll_slow(void);
void rewind_idle(void);
bool rewind_emulate_tsc(struct pt_regs *regs);

/* A poll point inside the kernel: a little time passes, a due timer fires. */
static __always_inline void rewind_poll(void)
{
	rewind_state.polls++;
	rewind_state.base += rewind_state.poll_cost;
	if (unlikely(rewind_now() >= rewind_state.deadline))
		rewind_poll_slow();
}

/* Bulk work of the kernel for a program takes time by its size. */
static __always_inline void rewind_charge(u64 bytes)
{
	u64 t = rewind_state.charge_rest + bytes * rewind_state.page_cost;

	rewind_state.base += t >> 12;
	rewind_state.charge_rest = t & 4095;
}

/* step.c */
bool rewind_return_to_user(struct pt_regs *regs);
void rewind_fork(struct task_struct *child, u64 flags);
void rewind_forget(struct task_struct *task);
bool rewind_ranks_used(void);
u32 rewind_rank(struct task_struct *task);

/* events.c: default records */
void rewind_switch(struct task_struct *prev, struct task_struct *next);
void rewind_exec(const char *path);
void rewind_exit(long code);
void rewind_signal(int sig, struct kernel_siginfo *info, bool handled);
void rewind_open(struct file *file, int flags);
void rewind_rename(const struct path *from_dir, const struct qstr *from,
		   const struct path *to_dir, const struct qstr *to);
void rewind_unlink(const struct path *dir, const struct qstr *name);

/* trace.c: richer records, only while the monitor asks for them */
extern u8 *rewind_control;
static __always_inline bool rewind_tracing(u32 bits)
{
	return rewind_control && (*(volatile u32 *)(rewind_control + RW_CTL_TRACE) & bits);
}
void rewind_trace_enter(struct pt_regs *regs, long nr);
void rewind_trace_exit(struct pt_regs *regs, long nr);
void rewind_trace_fault(struct pt_regs *regs, unsigned long error, unsigned long address);

/* verdict.c: something new happened, so the machine is not idling */
void rewind_transfer(void);
static inline void rewind_progress(void)
{
	rewind_state.progress = rewind_now();
}

/* cores.c: what is reported */
u64 rewind_cores_mask(void);
u64 rewind_affinity(struct task_struct *task);

#endif
