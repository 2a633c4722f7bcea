// SPDX-License-Identifier: GPL-2.0
/*
 * Events of the job's threads, called from where they happen in the rest of the kernel. None of these may sleep,
 * allocate or fault a page in: a richer trace must not change one step.
 */
#include <linux/dcache.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/path.h>
#include <linux/sched/signal.h>
#include <linux/sched/task_stack.h>
#include <linux/uaccess.h>
#include "internal.h"

void rewind_switch(struct task_struct *prev, struct task_struct *next)
{
	unsigned long irqflags;
	u64 *to;

	if (!next->rewind.name)
		return;
	to = (u64 *)rewind_record_begin(&irqflags);
	to[0] = prev->rewind.name;
	to[1] = READ_ONCE(prev->__state);
	rewind_record_end(irqflags, next, RW_REC_SWITCH, 0, prev->pid, 16);
}

/* The new program is in place: its arguments are read from where it will find them itself. */
void rewind_exec(const char *path)
{
	struct mm_struct *mm = current->mm;
	unsigned long irqflags, n, args = mm->arg_end - mm->arg_start;
	u16 flags = 0;
	u8 *to;

	if (!current->rewind.name)
		return;
	rewind_progress();
	to = rewind_record_begin(&irqflags);
	n = strnlen(path, PATH_MAX - 1);
	memcpy(to, path, n);
	to[n++] = 0;
	if (args > REWIND_PAYLOAD - n) {
		args = REWIND_PAYLOAD - n;
		flags = RW_FLAG_CUT;
	}
	if (copy_from_user_nofault(to + n, (void __user *)mm->arg_start, args))
		flags |= RW_FLAG_NOT_RESIDENT;
	else
		n += args;
	rewind_record_end(irqflags, current, RW_REC_EXEC, flags, 0, n);
}

void rewind_exit(long code)
{
	rewind_forget(current);
	if (!current->rewind.name)
		return;
	rewind_progress();
	rewind_record(RW_REC_EXIT, 0, code, current->comm, strnlen(current->comm, TASK_COMM_LEN));
}

void rewind_signal(int sig, struct kernel_siginfo *info, bool handled)
{
	struct pt_regs *regs = task_pt_regs(current);
	struct {
		s32 code;
		u32 pad;
		u64 address, ip, handled;
	} payload = { .ip = regs->ip, .handled = handled };

	if (!current->rewind.name)
		return;
	if (info) {
		payload.code = info->si_code;
		if (siginfo_layout(sig, info->si_code) >= SIL_FAULT && siginfo_layout(sig, info->si_code) <= SIL_FAULT_PKUERR)
			payload.address = (u64)info->si_addr;
	}
	/* An interval timer's own signal is not progress: see verdict.c. */
	if (!info || (info->si_code != SI_KERNEL && info->si_code != SI_TIMER))
		rewind_progress();
	rewind_record(RW_REC_SIGNAL, 0, sig, &payload, sizeof(payload));
}

/* Puts the path of a directory, then a slash and `name` if there is one. Returns its bytes, less than PATH_MAX * 2. */
static u32 put_path(u8 *to, const struct path *path, const struct qstr *name)
{
	static char buffer[PATH_MAX];	/* under the record's interrupts-off */
	char *text = d_path(path, buffer, sizeof(buffer));
	u32 n = 0;

	if (!IS_ERR(text)) {
		n = strlen(text);
		memcpy(to, text, n);
	}
	if (name) {
		if (!n || to[n - 1] != '/')
			to[n++] = '/';
		memcpy(to + n, name->name, min_t(u32, name->len, NAME_MAX));
		n += min_t(u32, name->len, NAME_MAX);
	}
	return n;
}

void rewind_open(struct file *file, int open_flags)
{
	unsigned long irqflags;
	u8 *to;

	if (!current->rewind.name || !(open_flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)))
		return;
	rewind_progress();
	to = rewind_record_begin(&irqflags);
	rewind_record_end(irqflags, current, RW_REC_OPEN, 0, open_flags, put_path(to, &file->f_path, NULL));
}

/* The rename has happened: both names are said as the directories and last parts of the call. */
void rewind_rename(const struct path *from_dir, const struct qstr *from, const struct path *to_dir,
		   const struct qstr *to)
{
	unsigned long irqflags;
	u8 *at;
	u32 n;

	if (!current->rewind.name)
		return;
	rewind_progress();
	at = rewind_record_begin(&irqflags);
	n = put_path(at, from_dir, from);
	at[n++] = 0;
	n += put_path(at + n, to_dir, to);
	rewind_record_end(irqflags, current, RW_REC_RENAME, 0, 0, n);
}

void rewind_unlink(const struct path *dir, const struct qstr *name)
{
	unsigned long irqflags;
	u8 *to;

	if (!current->rewind.name)
		return;
	rewind_progress();
	to = rewind_record_begin(&irqflags);
	rewind_record_end(irqflags, current, RW_REC_UNLINK, 0, 0, put_path(to, dir, name));
}
