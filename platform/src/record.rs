//! The trace ring's records.
//!
//! A record is a [`RecordHeader`] and `len - 48` payload bytes, padded with zeros to a multiple of 8 (`len`
//! counts the padding; `payload_len` does not). Records wrap at the end of the ring byte-wise.

/// Header of every record, 48 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct RecordHeader {
    /// Bytes of header, payload and padding; a multiple of 8; at least 48, at most [`RECORD_MAX`].
    pub len: u32,
    /// `REC_*`.
    pub kind: u16,
    /// Meaning depends on the kind; 0 unless said.
    pub flags: u16,
    /// Steps committed when the record was made: the record happened in the kernel before step `step + 1`.
    pub step: u64,
    /// Virtual nanoseconds since boot.
    pub now: u64,
    /// Thread name, 0 outside the job.
    pub thread: u64,
    /// Thread id.
    pub tid: u32,
    /// Process id (thread group).
    pub pid: u32,
    /// Bytes of payload without padding.
    pub payload_len: u32,
    /// Meaning depends on the kind; 0 unless said.
    pub aux: u32,
}

/// Longest record. Longer output is split by the kernel; a longer path or argv is cut, with `FLAG_CUT` set.
pub const RECORD_MAX: u32 = 0x4000;
/// `flags`: the payload was cut to fit.
pub const FLAG_CUT: u16 = 0x8000;
/// `flags`: a string argument was not resident and is missing (rich kinds only).
pub const FLAG_NOT_RESIDENT: u16 = 0x4000;

/// Kernel or init console text.
pub const REC_CONSOLE: u16 = 1;
/// Job output; `aux` = 1 or 2, the descriptor.
pub const REC_OUTPUT: u16 = 2;
/// execve: payload = path NUL argv0 NUL argv1 NUL ...
pub const REC_EXEC: u16 = 3;
/// fork or clone; payload = child name u64, n u64 (n-th clone of the parent), child tid u32, child pid u32, clone flags u64.
pub const REC_FORK: u16 = 4;
/// Thread exit; `aux` = wait status as wait(2) has it; payload = comm.
pub const REC_EXIT: u16 = 5;
/// Signal delivered; `aux` = number; payload = si_code i32, pad u32, address u64, user ip u64, handled u64 (1 if a handler runs).
pub const REC_SIGNAL: u16 = 6;
/// open for writing, create or truncate; `aux` = flags; payload = path.
pub const REC_OPEN: u16 = 7;
/// rename; payload = from NUL to.
pub const REC_RENAME: u16 = 8;
/// unlink or rmdir; payload = path.
pub const REC_UNLINK: u16 = 9;
/// Task switch to a thread of the job; `aux` = previous tid; payload = previous thread name u64, previous state u64 (0 = was preempted).
pub const REC_SWITCH: u16 = 10;
/// A mark from `/dev/rewind`: payload = the JSON line.
pub const REC_MARK: u16 = 11;
/// A property from `/dev/rewind`: payload = the JSON line.
pub const REC_PROPERTY: u16 = 12;
/// A decision was applied; `aux` = kind; payload = syscall u64, returns u64, arg u64.
pub const REC_DECISION: u16 = 13;
/// From init: `flags` = `REPORT_*`; payload = postcard of the matching type in [`crate::job`].
pub const REC_REPORT: u16 = 14;
/// Waiting threads at a stall: one per thread of the job; payload = task state u64, syscall nr i64, args 3 x u64, wait channel
/// (kernel function name, NUL-terminated), comm NUL, then for futexes: uaddr u64, value there u64 (`u64::MAX` = not resident).
pub const REC_WAITER: u16 = 15;
/// Rich: system call entered; `aux` = number; payload = args 6 x u64.
pub const REC_SYSCALL_ENTER: u16 = 32;
/// Rich: system call left; `aux` = number; payload = result i64.
pub const REC_SYSCALL_EXIT: u16 = 33;
/// Rich: futex wait begins; payload = uaddr u64, val u64.
pub const REC_FUTEX_WAIT: u16 = 34;
/// Rich: futex wake; payload = uaddr u64, woken u64.
pub const REC_FUTEX_WAKE: u16 = 35;
/// Rich: user page fault; `aux` = error code; payload = address u64, ip u64.
pub const REC_FAULT: u16 = 36;
/// Rich: mapping changed; `aux` = syscall number; payload = addr u64, len u64, prot u64, flags u64, result i64.
pub const REC_MMAP: u16 = 37;

/// First kind that only richer levels write; these never enter the trace hash.
pub const REC_RICH_FIRST: u16 = 32;

/// [`REC_REPORT`]: the job started (written when its first process is about to exec).
pub const REPORT_STARTED: u16 = 1;
/// [`REC_REPORT`]: the job ended: [`crate::job::JobEnd`].
pub const REPORT_ENDED: u16 = 2;
/// [`REC_REPORT`]: one declared output: [`crate::job::OutputHash`].
pub const REPORT_OUTPUT: u16 = 3;
/// [`REC_REPORT`]: init could not do the job; payload = UTF-8 text that names what failed.
pub const REPORT_FAILED: u16 = 4;
