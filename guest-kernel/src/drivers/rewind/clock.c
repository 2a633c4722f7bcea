// SPDX-License-Identifier: GPL-2.0
/*
 * The one clock: now = base + (step - base_step) * quantum, kept in the state page. No interrupt ever says that
 * time has passed; the timer handler runs where the kernel looks (poll points) and idle moves base to the next
 * deadline.
 */
#include <linux/clockchips.h>
#include <linux/clocksource.h>
#include <linux/hardirq.h>
#include <linux/ptrace.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <asm/debugreg.h>
#include <asm/irq_regs.h>
#include <asm/irq_stack.h>
#include <asm/tlbflush.h>
#include "internal.h"

u64 noinstr rewind_tsc(void)
{
	return rewind_now();
}

/* Jitter entropy is none: a counter through splitmix64, so that the estimators of random.c see change. */
unsigned long rewind_entropy(void)
{
	static u64 counter;
	u64 z = ++counter * 0x9e3779b97f4a7c15ULL;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31) ^ rewind_now();
}

static u64 rewind_clock_read(struct clocksource *cs)
{
	return rewind_now();
}

static struct clocksource rewind_clocksource = {
	.name		= "rewind",
	.rating		= 500,
	.read		= rewind_clock_read,
	.mask		= CLOCKSOURCE_MASK(64),
	.flags		= CLOCK_SOURCE_IS_CONTINUOUS | CLOCK_SOURCE_VALID_FOR_HRES,
};

/*
 * Relative on purpose: before the clock source above is in use ktime is jiffies, and an absolute deadline on
 * that scale would be always due.
 */
static int rewind_set_next_event(unsigned long delta, struct clock_event_device *dev)
{
	u64 when = rewind_now();

	if (check_add_overflow(when, (u64)delta, &when) || check_add_overflow(when, S.late, &when))
		when = U64_MAX - 1;
	S.deadline = when;
	return 0;
}

static int rewind_disarm(struct clock_event_device *dev)
{
	S.deadline = U64_MAX;
	return 0;
}

static struct clock_event_device rewind_clockevent = {
	.name			= "rewind",
	.features		= CLOCK_EVT_FEAT_ONESHOT,
	.rating			= 500,
	.set_next_event		= rewind_set_next_event,
	.set_state_oneshot	= NULL,
	.set_state_oneshot_stopped = rewind_disarm,
	.set_state_shutdown	= rewind_disarm,
	/* One tick is one nanosecond, so no distance is too far for a deadline. */
	.mult			= 1,
	.shift			= 0,
	.min_delta_ns		= 1,
	.min_delta_ticks	= 1,
	.max_delta_ns		= KTIME_MAX,
	.max_delta_ticks	= KTIME_MAX,
};

/* Decision "late timer": the expiry that is armed, or else the next that will be, moves away. */
void rewind_delay_timer(u64 by)
{
	if (check_add_overflow(S.late, by, &S.late))
		S.late = U64_MAX;
	if (S.deadline != U64_MAX && check_add_overflow(S.deadline, by, &S.deadline))
		S.deadline = U64_MAX - 1;
}

static void rewind_handler(struct pt_regs *regs)
{
	struct pt_regs *old = set_irq_regs(regs);

	S.deadline = U64_MAX;
	S.late = 0;
	rewind_clockevent.event_handler(&rewind_clockevent);
	set_irq_regs(old);
}

/* Runs the timer handler if it is due, wrapped as an interrupt that came from `regs`. Interrupts are off. */
bool rewind_fire(struct pt_regs *regs)
{
	if (likely(rewind_now() < S.deadline))
		return false;
	run_sysvec_on_irqstack_cond(rewind_handler, regs);
	return true;
}

/* What the timer handler is told it interrupted, where there is no real frame: kernel mode, interrupts on. */
static struct pt_regs rewind_kernel_regs = {
	.cs = __KERNEL_CS, .ss = __KERNEL_DS, .flags = X86_EFLAGS_IF | X86_EFLAGS_FIXED,
};

/* The rare half of rewind_poll(): a timer is due. Only where an interrupt would be possible. */
void rewind_poll_slow(void)
{
	if (irqs_disabled() || in_hardirq())
		return;
	local_irq_disable();
	rewind_fire(&rewind_kernel_regs);
	local_irq_enable();
}

void rewind_advance_to(u64 when)
{
	u64 now = rewind_now();

	if (when > now)
		S.base += when - now;
}

/* Idle, interrupts off: time jumps to the next deadline, or the machine has come to rest. */
void rewind_idle(void)
{
	u64 now = rewind_now();

	S.polls++;
	if (rewind_input(&rewind_kernel_regs,
			 S.deadline == U64_MAX || (S.deadline > now && S.deadline - now > S.horizon)))
		return;
	rewind_look_idle();
	rewind_advance_to(S.deadline);
	rewind_fire(&rewind_kernel_regs);
}

/*
 * RDTSC and RDTSCP in user mode fault because CR4.TSD is set. Called from the #GP handler with interrupts on;
 * true if regs now look as after the instruction.
 */
bool rewind_emulate_tsc(struct pt_regs *regs)
{
	u8 code[15];
	unsigned int n, i;
	u64 now;

	if (test_thread_flag(TIF_NOTSC))
		return false;
	n = sizeof(code) - copy_from_user(code, (void __user *)regs->ip, sizeof(code));
	for (i = 0; i < n; i++) {	/* prefixes that mean nothing here */
		u8 c = code[i];

		if (c != 0x66 && c != 0x67 && c != 0xf2 && c != 0xf3 && c != 0x2e && c != 0x36 && c != 0x3e &&
		    c != 0x26 && c != 0x64 && c != 0x65 && (c & 0xf0) != 0x40)
			break;
	}
	if (i + 2 <= n && code[i] == 0x0f && code[i + 1] == 0x31) {
		i += 2;
	} else if (i + 3 <= n && code[i] == 0x0f && code[i + 1] == 0x01 && code[i + 2] == 0xf9) {
		i += 3;
		regs->cx = 0;
	} else {
		return false;
	}
	now = rewind_now();
	regs->ax = (u32)now;
	regs->dx = now >> 32;
	regs->ip += i;
	if (regs->flags & X86_EFLAGS_TF) {	/* the trap the instruction itself would have raised */
		current->thread.virtual_dr6 |= DR_STEP;
		send_sigtrap(regs, 0, TRAP_TRACE);
	}
	return true;
}

void __init rewind_clock_init(void)
{
	cr4_set_bits(X86_CR4_TSD);
	clocksource_register_hz(&rewind_clocksource, NSEC_PER_SEC);
	rewind_clockevent.cpumask = cpumask_of(0);
	clockevents_register_device(&rewind_clockevent);
}
