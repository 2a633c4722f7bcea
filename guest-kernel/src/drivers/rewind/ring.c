// SPDX-License-Identifier: GPL-2.0
/*
 * The trace ring. A record is built in guest memory, where it is the same in every run, and moved to the ring by one
 * piece of assembly, because where it lands and whether the ring must be drained first depend on the monitor: no
 * such value may reach the stack or outlive the move in a register.
 */
#include <linux/string.h>
#include "internal.h"

static struct {
	struct rw_record header;
	u8 payload[REWIND_PAYLOAD];
} record __aligned(8);
static_assert(sizeof(record) == RW_RECORD_MAX);

/* Moves `len` bytes (a multiple of 8) of the record to the ring. Interrupts are off. */
static noinline void rewind_put(u32 len)
{
	u64 rest = len, from = (u64)&record;

	asm volatile(
		/* Nobody reads: as if it had been moved. */
		"	cmpl	$0, %c[none](%[control])\n\t"
		"	je	1f\n\t"
		"	addq	%[rest], %%rsi\n\t"
		"	xorl	%%ecx, %%ecx\n\t"
		"	jmp	3f\n"
		/* Past the high-water mark: ask until there is room. */
		"1:	movq	%c[head](%[control]), %%rdi\n\t"
		"movq	%%rdi, %%rax\n\t"
		"addq	%[rest], %%rax\n\t"
		"subq	%c[tail](%[control]), %%rax\n\t"
		"cmpq	%[high], %%rax\n\t"
		"jbe	2f\n\t"
		"movl	%[port], %%edx\n\t"
		"xorl	%%eax, %%eax\n\t"
		"outl	%%eax, %%dx\n\t"
		"jmp	1b\n"
		/* rdx = words up to the end of the ring, rcx = the smaller of it and the record */
		"2:	andl	%[mask], %%edi\n\t"
		"movl	%[capacity], %%edx\n\t"
		"subl	%%edi, %%edx\n\t"
		"shrl	$3, %%edx\n\t"
		"movl	%k[rest], %%ecx\n\t"
		"shrl	$3, %%ecx\n\t"
		"movl	%%ecx, %%eax\n\t"
		"cmpl	%%edx, %%ecx\n\t"
		"cmoval	%%edx, %%ecx\n\t"
		"subl	%%ecx, %%eax\n\t"
		"leaq	%c[ring](%[control],%%rdi), %%rdi\n\t"
		"rep movsq\n\t"
		/* and what is left of it at the beginning */
		"movl	%%eax, %%ecx\n\t"
		"leaq	%c[ring](%[control]), %%rdi\n\t"
		"rep movsq\n\t"
		"addq	%[rest], %c[head](%[control])\n"
		"3:	xorl	%%edi, %%edi\n\t"
		"xorl	%%edx, %%edx\n\t"
		"xorl	%%eax, %%eax\n\t"
		: "+S" (from)
		: [rest] "r" (rest), [control] "r" (rewind_control), [head] "i" (RW_CTL_RING_HEAD),
		  [tail] "i" (RW_CTL_RING_TAIL), [high] "i" (RW_RING_HIGH_WATER), [port] "i" (RW_RING),
		  [mask] "i" (RW_RING_CAPACITY - 1), [capacity] "i" (RW_RING_CAPACITY), [ring] "i" (RW_RING_OFFSET),
		  [none] "i" (RW_CTL_NO_RECORDS)
		: "rax", "rcx", "rdx", "rdi", "cc", "memory");
}

u8 *rewind_record_begin(unsigned long *irqflags)
{
	local_irq_save(*irqflags);
	return record.payload;
}

void rewind_record_end(unsigned long irqflags, struct task_struct *task, u16 kind, u16 flags, u32 aux, u32 len)
{
	struct rw_record *h = &record.header;
	u32 padded = ALIGN(len, 8);

	memset(record.payload + len, 0, padded - len);
	h->len = sizeof(*h) + padded;
	h->kind = kind;
	h->flags = flags;
	h->step = S.step;
	h->now = rewind_now();
	h->thread = task->rewind.name;
	h->tid = task->pid;
	h->pid = task->tgid;
	h->payload_len = len;
	h->aux = aux;
	if (rewind_control)
		rewind_put(h->len);
	local_irq_restore(irqflags);
}

void rewind_record(u16 kind, u16 flags, u32 aux, const void *payload, u32 len)
{
	unsigned long irqflags;
	u8 *to = rewind_record_begin(&irqflags);

	if (len > REWIND_PAYLOAD) {
		len = REWIND_PAYLOAD;
		flags |= RW_FLAG_CUT;
	}
	memcpy(to, payload, len);
	rewind_record_end(irqflags, current, kind, flags, aux, len);
}
