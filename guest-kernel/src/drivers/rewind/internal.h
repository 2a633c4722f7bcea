/* SPDX-License-Identifier: GPL-2.0 */
#ifndef REWIND_INTERNAL_H
#define REWIND_INTERNAL_H

#include <linux/rewind.h>
#include <linux/sched.h>
#include <asm/io.h>
#include <asm/ptrace.h>

#define S rewind_state

/* rewind_control is the control slot (layout.rs), mapped by setup.c; NULL before. Not guest state: ring.c, step.c. */
#define CTL32(offset) (*(volatile u32 *)(rewind_control + (offset)))
#define CTL64(offset) (*(volatile u64 *)(rewind_control + (offset)))

/* clock.c */
void rewind_clock_init(void);
bool rewind_fire(struct pt_regs *regs);
void rewind_advance_to(u64 when);
void rewind_delay_timer(u64 by);

/* step.c */
void rewind_inject_init(void);
void rewind_become_root(void);
u32 rewind_find(u64 thread, u64 syscall, u32 returns, bool stop);

/*
 * ring.c: one record at a time. Between begin and end interrupts are off; the payload area is static and holds
 * REWIND_PAYLOAD bytes. `task` is the thread the record is about.
 */
#define REWIND_PAYLOAD (RW_RECORD_MAX - sizeof(struct rw_record))
u8 *rewind_record_begin(unsigned long *irqflags);
void rewind_record_end(unsigned long irqflags, struct task_struct *task, u16 kind, u16 flags, u32 aux, u32 len);
void rewind_record(u16 kind, u16 flags, u32 aux, const void *payload, u32 len);

/* input.c: outside input may be taken now, `idle`: nothing else will happen. True: it was. Interrupts are off. */
bool rewind_input(struct pt_regs *regs, bool idle);
bool rewind_input_possible(void);

/* verdict.c */
void rewind_look_idle(void);
void rewind_look_commit(u64 name, struct pt_regs *regs);
extern bool rewind_looking;

/* The machine never runs again after this. */
void __noreturn rewind_end(u32 reason);
void rewind_console_text(const char *text, unsigned int len);
int rewind_attach(unsigned int image);
int rewind_set_cores(unsigned long n);
void rewind_publish_facts(void);

#endif
