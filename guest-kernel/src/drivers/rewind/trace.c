// SPDX-License-Identifier: GPL-2.0
/*
 * The richer records: system calls, futexes, page faults, mappings. A replay turns them on to see more of the same
 * run, so they change nothing of it: no sleep, no allocation, no page made resident, no virtual time.
 */
#include <linux/mutex.h>
#include <linux/futex.h>
#include <linux/limits.h>
#include <linux/syscalls.h>
#include <linux/uaccess.h>
#include <asm/syscall.h>
#include "internal.h"

static int futex_command(const unsigned long *args)
{
	return args[1] & FUTEX_CMD_MASK;
}

/* Which argument of a system call is a path worth showing; -1 none. */
static int path_argument(long nr)
{
	switch (nr) {
	case __NR_open: case __NR_stat: case __NR_lstat: case __NR_access: case __NR_execve: case __NR_truncate:
	case __NR_chdir: case __NR_rename: case __NR_mkdir: case __NR_rmdir: case __NR_creat: case __NR_link:
	case __NR_unlink: case __NR_symlink: case __NR_readlink: case __NR_chmod: case __NR_chown: case __NR_lchown:
	case __NR_mknod: case __NR_statfs: case __NR_chroot:
		return 0;
	case __NR_openat: case __NR_newfstatat: case __NR_unlinkat: case __NR_renameat: case __NR_renameat2:
	case __NR_mkdirat: case __NR_readlinkat: case __NR_faccessat: case __NR_faccessat2: case __NR_execveat:
	case __NR_openat2: case __NR_statx: case __NR_fchmodat: case __NR_fchownat: case __NR_linkat: case __NR_mknodat:
	case __NR_utimensat: case __NR_inotify_add_watch:
		return 1;
	}
	return -1;
}

void rewind_trace_enter(struct pt_regs *regs, long nr)
{
	unsigned long args[6], irqflags;
	int path = path_argument(nr);
	u16 flags = 0;
	u32 len = 48;
	u8 *to;

	if (!current->rewind.name)
		return;
	syscall_get_arguments(current, regs, args);
	if (rewind_tracing(RW_TRACE_SYSCALL)) {
		to = rewind_record_begin(&irqflags);
		memcpy(to, args, sizeof(args));
		if (path >= 0) {
			long n = strncpy_from_user_nofault(to + len, (void __user *)args[path], PATH_MAX);

			if (n < 0)
				flags = RW_FLAG_NOT_RESIDENT;
			else
				len += n;
		}
		rewind_record_end(irqflags, current, RW_REC_SYSCALL_ENTER, flags, nr, len);
	}
	if (nr == __NR_futex && rewind_tracing(RW_TRACE_FUTEX)) {
		u64 payload[2] = { args[0], args[2] };
		int command = futex_command(args);

		if (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET || command == FUTEX_LOCK_PI ||
		    command == FUTEX_LOCK_PI2 || command == FUTEX_WAIT_REQUEUE_PI)
			rewind_record(RW_REC_FUTEX_WAIT, 0, command, payload, sizeof(payload));
	}
}

void rewind_trace_exit(struct pt_regs *regs, long nr)
{
	unsigned long args[6];

	if (!current->rewind.name)
		return;
	syscall_get_arguments(current, regs, args);
	if (rewind_tracing(RW_TRACE_SYSCALL)) {
		s64 result = regs->ax;

		rewind_record(RW_REC_SYSCALL_EXIT, 0, nr, &result, sizeof(result));
	}
	if (nr == __NR_futex && rewind_tracing(RW_TRACE_FUTEX)) {
		u64 payload[2] = { args[0], regs->ax };
		int command = futex_command(args);

		if (command == FUTEX_WAKE || command == FUTEX_WAKE_BITSET || command == FUTEX_WAKE_OP ||
		    command == FUTEX_REQUEUE || command == FUTEX_CMP_REQUEUE || command == FUTEX_CMP_REQUEUE_PI ||
		    command == FUTEX_UNLOCK_PI)
			rewind_record(RW_REC_FUTEX_WAKE, 0, command, payload, sizeof(payload));
	}
	if ((nr == __NR_mmap || nr == __NR_munmap || nr == __NR_mprotect || nr == __NR_brk || nr == __NR_mremap) &&
	    rewind_tracing(RW_TRACE_MMAP)) {
		u64 payload[5] = { args[0], 0, 0, 0, regs->ax };

		if (nr != __NR_brk)
			payload[1] = args[1];
		if (nr == __NR_mmap || nr == __NR_mprotect || nr == __NR_mremap)
			payload[2] = args[2];	/* mremap: the new length */
		if (nr == __NR_mmap || nr == __NR_mremap)
			payload[3] = args[3];
		rewind_record(RW_REC_MMAP, 0, nr, payload, sizeof(payload));
	}
}

void rewind_trace_fault(struct pt_regs *regs, unsigned long error, unsigned long address)
{
	u64 payload[2] = { address, regs->ip };

	if (current->rewind.name)
		rewind_record(RW_REC_FAULT, 0, error, payload, sizeof(payload));
}
