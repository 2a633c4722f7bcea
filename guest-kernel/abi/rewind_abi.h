/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The guest/monitor contract, C side. The Rust side is the crate platform/; platform/tests/abi.rs compares the two
 * name by name (Rust NAME is RW_NAME here, Fact::CamelCase is RW_FACT_CAMEL_CASE), sizes and offsets too.
 * Change both in one commit. What each value means is said in the Rust file named above each block.
 */
#ifndef _LINUX_REWIND_ABI_H
#define _LINUX_REWIND_ABI_H

/* --- lib.rs */
#define RW_PLATFORM_VERSION	2

/* --- layout.rs */
#define RW_RAM_BASE	0
#define RW_LOW_RAM_LIMIT	0xC0000000
#define RW_HIGH_RAM_BASE	0x100000000
#define RW_CONTROL_BASE	0xD0000000
#define RW_CONTROL_SIZE	0x400000
#define RW_DECISIONS_OFFSET	0x10000
#define RW_DECISIONS_CAPACITY	4096
#define RW_INPUT_OFFSET	0x40000
#define RW_INPUT_MAX	0x1000
#define RW_JOB_OFFSET	0x100000
#define RW_JOB_CAPACITY	0x100000
#define RW_RING_OFFSET	0x200000
#define RW_RING_CAPACITY	0x200000
#define RW_RING_HIGH_WATER	(RW_RING_CAPACITY / 2)

/* --- port.rs */
#define RW_PLATFORM	0x0b00
#define RW_STOP	0x0b04
#define RW_RING	0x0b08
#define RW_BLOCK	0x0b0c
#define RW_JOB	0x0b10
#define RW_END	0x0b14
#define RW_CONSOLE	0x0b18
#define RW_DEVICE	0x0b1c
#define RW_END_POWER_OFF	0
#define RW_END_RESTART	1
#define RW_END_PANIC	2
#define RW_END_STALLED	3
#define RW_END_IDLING	4
#define RW_INJECT_VECTOR	0xf3

/* --- control.rs */
#define RW_CTL_VERSION	0x00
#define RW_CTL_TRACE	0x04
#define RW_CTL_STOP_STEP	0x08
#define RW_CTL_STOP_NOW	0x10
#define RW_CTL_DECISIONS	0x14
#define RW_CTL_RING_HEAD	0x18
#define RW_CTL_RING_TAIL	0x20
#define RW_CTL_INJECT_KIND	0x28
#define RW_CTL_INJECT_ARG	0x30
#define RW_CTL_JOB_LEN	0x38
#define RW_CTL_INPUT_POLL	0x40
#define RW_CTL_INPUT_LEN	0x48
#define RW_CTL_NO_RECORDS	0x4c
#define RW_INPUT_CLOSED	0xffffffff
#define RW_TRACE_SYSCALL	(1 << 0)
#define RW_TRACE_FUTEX	(1 << 1)
#define RW_TRACE_FAULT	(1 << 2)
#define RW_TRACE_MMAP	(1 << 3)
#define RW_SLOT_EMPTY	0
#define RW_SLOT_ARMED	1
#define RW_SLOT_DONE	2
#define RW_DECISION_PREEMPT	1
#define RW_DECISION_STALL	2
#define RW_DECISION_LATE_TIMER	3
#define RW_DECISION_RANK	4
#define RW_DECISION_STOP	5
#define RW_THREAD_ROOT	0x524557494e440001

/* --- state.rs */
#define RW_ST_MAGIC	0x00
#define RW_ST_VERSION	0x08
#define RW_ST_STEP	0x10
#define RW_ST_BASE	0x18
#define RW_ST_BASE_STEP	0x20
#define RW_ST_QUANTUM	0x28
#define RW_ST_DEADLINE	0x30
#define RW_ST_POLLS	0x38
#define RW_ST_HORIZON	0x40
#define RW_ST_IDLING	0x48
#define RW_ST_THREAD	0x50
#define RW_ST_SYSCALL	0x58
#define RW_ST_RETURNS	0x60
#define RW_ST_TID	0x64
#define RW_ST_POLL_COST	0x68
#define RW_ST_PAGE_COST	0x70
#define RW_ST_INPUT_OPEN	0x78
#define RW_ST_LATE	0x80
#define RW_ST_CORES	0x88
#define RW_ST_CHARGE_REST	0x90
#define RW_ST_PROGRESS	0x98
#define RW_ST_RANKS	0xa0
#define RW_ST_FACTS	0x200
#define RW_ST_FACTS_MAX	128
#define RW_STATE_MAGIC_VALUE	0x3145544154535752
#define RW_FACT_INIT_TASK	0
#define RW_FACT_CURRENT_TASK	1
#define RW_FACT_PAGE_OFFSET	2
#define RW_FACT_PHYS_BASE	3
#define RW_FACT_THREAD_SIZE	4
#define RW_FACT_PT_REGS_SIZE	5
#define RW_FACT_SWAPPER_PG_DIR	6
#define RW_FACT_VMEMMAP	7
#define RW_FACT_PAGE_SIZE	8
#define RW_FACT_KERNEL_MAP	9
#define RW_FACT_SIZEOF_TASK	10
#define RW_FACT_TASK_TASKS	16
#define RW_FACT_TASK_THREAD_NODE	17
#define RW_FACT_TASK_SIGNAL	18
#define RW_FACT_SIGNAL_THREAD_HEAD	19
#define RW_FACT_TASK_PID	20
#define RW_FACT_TASK_TGID	21
#define RW_FACT_TASK_COMM	22
#define RW_FACT_TASK_MM	23
#define RW_FACT_TASK_STACK	24
#define RW_FACT_TASK_STATE	25
#define RW_FACT_TASK_REAL_PARENT	26
#define RW_FACT_TASK_FILES	27
#define RW_FACT_TASK_FS	28
#define RW_FACT_TASK_THREAD	29
#define RW_FACT_THREAD_SP	30
#define RW_FACT_THREAD_FS_BASE	31
#define RW_FACT_THREAD_GS_BASE	32
#define RW_FACT_TASK_FPU	33
#define RW_FACT_TASK_REWIND_NAME	34
#define RW_FACT_TASK_REWIND_SYSCALL	35
#define RW_FACT_TASK_REWIND_RETURNS	36
#define RW_FACT_TASK_REWIND_RANK	37
#define RW_FACT_TASK_EXIT_STATE	38
#define RW_FACT_TASK_CRED	39
#define RW_FACT_TASK_ACTIVE_MM	40
#define RW_FACT_TASK_GROUP_LEADER	41
#define RW_FACT_TASK_EXIT_CODE	43
#define RW_FACT_TASK_REWIND_CLONES	44
#define RW_FACT_TASK_CHILDREN	45
#define RW_FACT_TASK_SIBLING	46
#define RW_FACT_MM_PGD	48
#define RW_FACT_MM_MT	49
#define RW_FACT_MM_ARG_START	50
#define RW_FACT_MM_ARG_END	51
#define RW_FACT_MM_ENV_START	52
#define RW_FACT_MM_ENV_END	53
#define RW_FACT_MM_EXE_FILE	54
#define RW_FACT_MM_START_BRK	55
#define RW_FACT_MM_BRK	56
#define RW_FACT_MM_START_STACK	57
#define RW_FACT_VMA_START	64
#define RW_FACT_VMA_END	65
#define RW_FACT_VMA_FLAGS	66
#define RW_FACT_VMA_FILE	67
#define RW_FACT_VMA_PGOFF	68
#define RW_FACT_FILE_PATH	72
#define RW_FACT_FILE_INODE	73
#define RW_FACT_FILE_POS	74
#define RW_FACT_FILE_FLAGS	75
#define RW_FACT_PATH_DENTRY	76
#define RW_FACT_PATH_MNT	77
#define RW_FACT_DENTRY_PARENT	78
#define RW_FACT_DENTRY_NAME	79
#define RW_FACT_DENTRY_INODE	80
#define RW_FACT_INODE_INO	81
#define RW_FACT_INODE_SIZE	82
#define RW_FACT_INODE_MAPPING	83
#define RW_FACT_INODE_MODE	84
#define RW_FACT_INODE_SB	85
#define RW_FACT_MAPPING_PAGES	86
#define RW_FACT_MOUNT_PARENT	87
#define RW_FACT_MOUNT_MOUNTPOINT	88
#define RW_FACT_MOUNT_MNT	89
#define RW_FACT_MNT_ROOT	90
#define RW_FACT_SB_DEV	91
#define RW_FACT_SB_TYPE	92
#define RW_FACT_FS_TYPE_NAME	93
#define RW_FACT_FILES_FDT	94
#define RW_FACT_FDT_MAX_FDS	95
#define RW_FACT_FDT_FD	96
#define RW_FACT_FS_PWD	97
#define RW_FACT_FS_ROOT	98
#define RW_FACT_DENTRY_SHORT_NAME	99
#define RW_FACT_FILE_OP	100
#define RW_FACT_INODE_RDEV	101
#define RW_FACT_MT_ROOT	102
#define RW_FACT_XA_HEAD	103
#define RW_FACT_XA_NODE_SLOTS	104
#define RW_FACT_XA_CHUNK_SHIFT	105
#define RW_FACT_SIGNAL_FLAGS	106
#define RW_FACT_TASK_FLAGS	107
#define RW_FACT_FPU_FXSAVE	108
#define RW_FACT_FILE_DENTRY	109
#define RW_FACT_FPU_FPSTATE	110
#define RW_FACT_FPSTATE_REGS	111
#define RW_FACT_CRED_UID	112
#define RW_FACT_CRED_GID	113
#define RW_FACT_FOLIO_MAPPING	114
#define RW_FACT_FOLIO_INDEX	115
#define RW_FACT_XA_NODE_SHIFT	116

/* --- record.rs */
#define RW_RECORD_MAX	0x4000
#define RW_FLAG_CUT	0x8000
#define RW_FLAG_NOT_RESIDENT	0x4000
#define RW_REC_CONSOLE	1
#define RW_REC_OUTPUT	2
#define RW_REC_EXEC	3
#define RW_REC_FORK	4
#define RW_REC_EXIT	5
#define RW_REC_SIGNAL	6
#define RW_REC_OPEN	7
#define RW_REC_RENAME	8
#define RW_REC_UNLINK	9
#define RW_REC_SWITCH	10
#define RW_REC_MARK	11
#define RW_REC_PROPERTY	12
#define RW_REC_DECISION	13
#define RW_REC_REPORT	14
#define RW_REC_WAITER	15
#define RW_REC_SYSCALL_ENTER	32
#define RW_REC_SYSCALL_EXIT	33
#define RW_REC_FUTEX_WAIT	34
#define RW_REC_FUTEX_WAKE	35
#define RW_REC_FAULT	36
#define RW_REC_MMAP	37
#define RW_REC_RICH_FIRST	32
#define RW_REPORT_STARTED	1
#define RW_REPORT_ENDED	2
#define RW_REPORT_OUTPUT	3
#define RW_REPORT_FAILED	4

/* --- device.rs */
#define RW_BLOCK_SEGMENTS	256
#define RW_BLOCK_IMAGES	8
#define RW_CORES_MAX	64
#define RW_BLOCK_INFO	0
#define RW_BLOCK_READ	1
#define RW_BLOCK_OK	0
#define RW_BLOCK_ABSENT	1
#define RW_BLOCK_EIO	2
#define RW_IOCTL_JOB	0xc0105201
#define RW_IOCTL_ATTACH	0x5202
#define RW_IOCTL_ROOT	0x5203
#define RW_IOCTL_CORES	0x5204
#define RW_IOCTL_REPORT	0x40185205


#ifndef __ASSEMBLY__
#include <linux/types.h>

struct rw_decision {		/* control.rs DecisionEntry */
	__u64 thread;
	__u64 syscall;
	__u32 returns;
	__u16 kind;
	__u16 state;
	__u64 arg;
};

struct rw_record {		/* record.rs RecordHeader */
	__u32 len;
	__u16 kind;
	__u16 flags;
	__u64 step;
	__u64 now;
	__u64 thread;
	__u32 tid;
	__u32 pid;
	__u32 payload_len;
	__u32 aux;
};

struct rw_segment {		/* device.rs BlockSegment */
	__u64 gpa;
	__u64 len;
};

struct rw_block_request {	/* device.rs BlockRequest */
	__u32 op;
	__u32 image;
	__u64 sector;
	__u32 segments;
	__u32 status;
	__u64 reserved;
	struct rw_segment segment[RW_BLOCK_SEGMENTS];
};

struct rw_job_buffer {		/* device.rs JobBuffer */
	__u64 ptr;
	__u64 len;
};

struct rw_report_buffer {	/* device.rs ReportBuffer */
	__u64 ptr;
	__u64 len;
	__u64 kind;
};
#endif
#endif
