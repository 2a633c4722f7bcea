// SPDX-License-Identifier: GPL-2.0
/*
 * Steps, decisions, thread names.
 *
 * A run that the monitor stops must leave the same memory as one it does not stop, so what depends on the control
 * slot stays in registers: rewind_find() is a leaf that stores nothing outside the slot, and the stop check is one
 * piece of assembly whose registers hold the same values after either path. The build check looks at both.
 */
#include <linux/hrtimer.h>
#include <linux/threads.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <asm/idtentry.h>
#include <asm/desc.h>
#include "internal.h"

/* Threads that wait, in last place, for another thread of the job to commit; the last preempted first. */
static struct task_struct *preempted;

bool rewind_ranks_used(void)
{
	return S.ranks || preempted;
}

/* Preempted threads come after all others, and among them who has waited longest goes first. */
u32 rewind_rank(struct task_struct *task)
{
	struct task_struct *other = preempted;
	u32 rank = U32_MAX;

	if (!task->rewind.preempted)
		return min_t(u32, task->rewind.rank, U32_MAX - PID_MAX_LIMIT);
	for (; other && other != task; other = other->rewind.next_preempted)
		rank--;
	return rank;
}

static void forget(struct task_struct *task)
{
	struct task_struct **link;

	for (link = &preempted; *link; link = &(*link)->rewind.next_preempted) {
		if (*link == task) {
			*link = task->rewind.next_preempted;
			break;
		}
	}
	task->rewind.preempted = 0;
	task->rewind.next_preempted = NULL;
}

static void preempt(struct task_struct *task)
{
	set_tsk_need_resched(task);
	if (task->rewind.preempted)
		forget(task);
	task->rewind.preempted = 1;
	task->rewind.next_preempted = preempted;
	preempted = task;
}

/* `task` committed: everybody else's preemption is over. */
static void restore_others(struct task_struct *task)
{
	struct task_struct **link = &preempted;

	while (*link) {
		struct task_struct *other = *link;

		if (other == task) {
			link = &other->rewind.next_preempted;
			continue;
		}
		other->rewind.preempted = 0;
		*link = other->rewind.next_preempted;
		other->rewind.next_preempted = NULL;
	}
}

/* `task` is about to die. */
void rewind_forget(struct task_struct *task)
{
	unsigned long flags;

	if (!task->rewind.preempted)
		return;
	local_irq_save(flags);
	forget(task);
	local_irq_restore(flags);
}

/* Slot number + 1 of the first armed decision for this place, those that stop (or those that do not); 0 if none. */
noinline __noclone u32 rewind_find(u64 thread, u64 syscall, u32 returns, bool stop)
{
	volatile struct rw_decision *table = (void *)(rewind_control + RW_DECISIONS_OFFSET);
	u64 mix = thread ^ syscall * 0x9e3779b97f4a7c15ULL ^ returns * 0xc2b2ae3d27d4eb4fULL;
	u32 slot = (mix * 0x9e3779b97f4a7c15ULL) >> 52;
	u32 left = RW_DECISIONS_CAPACITY;

	if (!CTL32(RW_CTL_DECISIONS))
		return 0;
	for (; left; left--, slot = (slot + 1) & (RW_DECISIONS_CAPACITY - 1)) {
		volatile struct rw_decision *d = table + slot;

		if (d->state == RW_SLOT_EMPTY)
			return 0;
		if (d->state == RW_SLOT_ARMED && d->thread == thread && d->syscall == syscall &&
		    d->returns == returns && (d->kind == RW_DECISION_STOP) == stop)
			return slot + 1;
	}
	return 0;
}

/* Interrupts are off, before and after. */
static void apply(u16 kind, u64 arg)
{
	struct rewind_task *rw = &current->rewind;
	u64 place[3] = { rw->syscall, rw->returns, arg };

	rewind_record(RW_REC_DECISION, 0, kind, place, sizeof(place));
	rewind_progress();
	switch (kind) {
	case RW_DECISION_PREEMPT:
		preempt(current);
		break;
	case RW_DECISION_STALL: {
		ktime_t time = min_t(u64, arg, KTIME_MAX / 2);

		local_irq_enable();
		set_current_state(TASK_KILLABLE);
		schedule_hrtimeout(&time, HRTIMER_MODE_REL);
		local_irq_disable();
		break;
	}
	case RW_DECISION_LATE_TIMER:
		rewind_delay_timer(arg);
		break;
	case RW_DECISION_RANK:
		rw->rank = arg;
		S.ranks = 1;
		set_tsk_need_resched(current);
		break;
	}
}

/*
 * Called with interrupts off when no exit work is left. True: something changed, do the exit work again. False:
 * the step is committed, and only the return itself may follow.
 */
bool rewind_return_to_user(struct pt_regs *regs)
{
	struct rewind_task *rw = &current->rewind;
	u64 stop = 0;

	S.polls++;
	if (rewind_fire(regs))
		return true;
	if (unlikely(S.input_open) && rewind_input(regs, false))
		return true;
	if (unlikely(rw->inject_kind)) {
		u16 kind = rw->inject_kind;

		rw->inject_kind = 0;
		apply(kind, rw->inject_arg);
		return true;
	}
	if (rw->name) {
		volatile struct rw_decision *table = (void *)(rewind_control + RW_DECISIONS_OFFSET);
		u32 slot = rewind_find(rw->name, rw->syscall, rw->returns, false);

		if (unlikely(slot)) {
			table[slot - 1].state = RW_SLOT_DONE;
			apply(table[slot - 1].kind, table[slot - 1].arg);
			return true;
		}
		if (unlikely(rewind_looking))
			rewind_look_commit(rw->name, regs);
		if (unlikely(preempted))
			restore_others(current);
		slot = rewind_find(rw->name, rw->syscall, rw->returns, true);
		if (unlikely(slot)) {
			table[slot - 1].state = RW_SLOT_DONE;
			stop = 1;
		}
	}

	S.step++;
	S.thread = rw->name;
	S.syscall = rw->syscall;
	S.returns = rw->returns++;
	S.tid = current->pid;
	asm volatile(
		"cmpq	%c[stop_step](%[control]), %[step]\n\t"
		"jae	1f\n\t"
		"cmpl	$0, %c[stop_now](%[control])\n\t"
		"jne	1f\n\t"
		"test	%[stop], %[stop]\n\t"
		"jz	2f\n"
		"1:	movl	%[port], %%edx\n\t"
		"xorl	%%eax, %%eax\n\t"
		"outl	%%eax, %%dx\n"
		"2:	xorl	%%edx, %%edx\n\t"
		"xorl	%k[stop], %k[stop]\n\t"
		"xorl	%%eax, %%eax\n\t"
		: [stop] "+r" (stop)
		: [control] "r" (rewind_control), [step] "r" (S.step), [stop_step] "i" (RW_CTL_STOP_STEP),
		  [stop_now] "i" (RW_CTL_STOP_NOW), [port] "i" (RW_STOP)
		: "eax", "edx", "cc", "memory");
	return false;
}

/* The one interrupt, at an instruction the monitor chose. The decision is applied before the commit that follows. */
DEFINE_IDTENTRY_SYSVEC(sysvec_rewind)
{
	current->rewind.inject_kind = CTL32(RW_CTL_INJECT_KIND);
	current->rewind.inject_arg = CTL64(RW_CTL_INJECT_ARG);
	CTL32(RW_CTL_INJECT_KIND) = 0;
}

/* Before the interrupt table becomes read-only. */
void __init rewind_inject_init(void)
{
	sysvec_install(RW_INJECT_VECTOR, sysvec_rewind);
}

static u64 thread_name(u64 parent, u64 n)
{
	u64 z = parent + n * 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

/* `child` is complete and has not run. */
void rewind_fork(struct task_struct *child, u64 clone_flags)
{
	struct rewind_task *rw = &child->rewind, *parent = &current->rewind;
	struct {
		u64 name, n;
		u32 tid, pid;
		u64 flags;
	} __packed payload;

	rw->name = 0;
	rw->clones = 0;
	rw->syscall = 0;
	rw->returns = 0;
	rw->inject_kind = 0;
	rw->preempted = 0;
	rw->next_preempted = NULL;
	if (child->flags & PF_KTHREAD || !parent->name) {
		rw->rank = REWIND_RANK_DEFAULT;
		return;
	}
	rw->name = thread_name(parent->name, ++parent->clones);
	rw->rank = REWIND_RANK_DEFAULT;
	payload.name = rw->name;
	payload.n = parent->clones;
	payload.tid = child->pid;
	payload.pid = child->tgid;
	payload.flags = clone_flags;
	rewind_record(RW_REC_FORK, 0, 0, &payload, sizeof(payload));
	rewind_progress();
}

void rewind_become_root(void)
{
	struct rewind_task *rw = &current->rewind;

	rw->name = RW_THREAD_ROOT;
	rw->clones = 0;
	rw->syscall = 0;
	rw->returns = 0;
	rw->rank = REWIND_RANK_DEFAULT;
}
