// SPDX-License-Identifier: GPL-2.0
/*
 * A machine that will do nothing more.
 *
 * Stalled: idle, and nothing is armed (or only further away than the horizon). Kernel-owned timers count, and the
 * periodic ones that would never let a machine rest have been tamed, so nothing armed means nothing will happen.
 *
 * Idling: for `idling` nanoseconds the job did nothing new. New is: output, a program started or ended, a file
 * opened for writing, renamed or removed, a signal that no timer sent, a mark, a decision, a byte through a pipe or
 * socket, or a commit at a (thread, system call, address) not seen since the second half of that stretch began. So
 * a thread that wakes by a timer, looks and sleeps again is not new, and a deadlock beside it ends.
 */
#include <linux/mutex.h>
#include <linux/futex.h>
#include <linux/kallsyms.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/sched/task_stack.h>
#include <asm/syscall.h>
#include "internal.h"

#define SEEN 512	/* a power of two */

bool rewind_looking;		/* the second half: commits are compared */
static u64 seen[SEEN];
static unsigned int seen_count;
static u64 last_new;

/* Bytes go through a pipe or a socket. */
void rewind_transfer(void)
{
	if (current->rewind.name)
		rewind_progress();
}

/* Only while rewind_looking: remembers what the job repeats. */
void rewind_look_commit(u64 name, struct pt_regs *regs)
{
	u64 key = (name ^ regs->ip * 0x9e3779b97f4a7c15ULL ^ regs->orig_ax * 0xc2b2ae3d27d4eb4fULL) | 1;
	unsigned int i = (key * 0x9e3779b97f4a7c15ULL) >> 55;

	while (seen[i & (SEEN - 1)]) {
		if (seen[i & (SEEN - 1)] == key)
			return;
		i++;
	}
	if (seen_count == SEEN / 2) {	/* too much goes on to call it idling */
		rewind_progress();
		return;
	}
	seen_count++;
	seen[i & (SEEN - 1)] = key;
	last_new = rewind_now();
}

/* The four bytes at a user address of another address space, if they are in memory. Interrupts are off, one CPU. */
static bool peek(struct mm_struct *mm, unsigned long address, u32 *value)
{
	unsigned long pfn;
	pgd_t *pgd;
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd;
	pte_t *pte;

	if (!mm || address >= TASK_SIZE_MAX || address & 3)
		return false;
	pgd = pgd_offset(mm, address);
	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return false;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return false;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) || !pud_present(*pud))
		return false;
	if (pud_leaf(*pud)) {
		pfn = pud_pfn(*pud) + ((address & ~PUD_MASK) >> PAGE_SHIFT);
	} else {
		pmd = pmd_offset(pud, address);
		if (pmd_none(*pmd) || !pmd_present(*pmd))
			return false;
		if (pmd_leaf(*pmd)) {
			pfn = pmd_pfn(*pmd) + ((address & ~PMD_MASK) >> PAGE_SHIFT);
		} else {
			pte = pte_offset_kernel(pmd, address);
			if (!pte_present(*pte))
				return false;
			pfn = pte_pfn(*pte);
		}
	}
	if (!pfn_valid(pfn))
		return false;
	*value = *(u32 *)(__va(PFN_PHYS(pfn)) + offset_in_page(address));
	return true;
}

static void report_waiter(struct task_struct *task)
{
	struct pt_regs *regs = task_pt_regs(task);
	unsigned long args[6], irqflags, wchan;
	char symbol[KSYM_NAME_LEN];
	u64 words[5];
	u8 *to;
	u32 n;

	syscall_get_arguments(task, regs, args);
	words[0] = READ_ONCE(task->__state);
	words[1] = syscall_get_nr(task, regs);
	words[2] = args[0];
	words[3] = args[1];
	words[4] = args[2];
	wchan = get_wchan(task);
	if (!wchan || lookup_symbol_name(wchan, symbol))
		symbol[0] = 0;

	to = rewind_record_begin(&irqflags);
	memcpy(to, words, sizeof(words));
	n = sizeof(words);
	strcpy(to + n, symbol);
	n += strlen(symbol) + 1;
	memcpy(to + n, task->comm, TASK_COMM_LEN);
	n += strnlen(task->comm, TASK_COMM_LEN - 1);
	to[n++] = 0;
	if (words[1] == __NR_futex) {
		u64 pair[2] = { args[0], U64_MAX };
		u32 value;

		if (peek(task->mm, args[0], &value))
			pair[1] = value;
		memcpy(to + n, pair, sizeof(pair));
		n += sizeof(pair);
	}
	rewind_record_end(irqflags, task, RW_REC_WAITER, 0, 0, n);
}

static void rest(u32 reason)
{
	struct task_struct *process, *thread;

	for_each_process_thread(process, thread) {
		if (thread->rewind.name && !thread->exit_state)
			report_waiter(thread);
	}
	rewind_end(reason);
}

/* Called when the machine is about to wait, interrupts off. */
void rewind_look_idle(void)
{
	u64 now = rewind_now(), quiet;

	if (rewind_input_possible())
		return;
	if (S.deadline == U64_MAX || (S.deadline > now && S.deadline - now > S.horizon))
		rest(RW_END_STALLED);
	if (!S.idling)
		return;
	quiet = now - S.progress;
	if (quiet < S.idling / 2) {
		rewind_looking = false;
	} else if (!rewind_looking) {
		rewind_looking = true;
		memset(seen, 0, sizeof(seen));
		seen_count = 0;
		last_new = now;
	} else if (quiet >= S.idling && now - last_new >= S.idling / 2) {
		rest(RW_END_IDLING);
	}
}
