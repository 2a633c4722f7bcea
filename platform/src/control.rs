//! The control page and the decision table: written by the monitor, read by the guest only to stop or act.
//! Offsets are bytes from [`crate::layout::CONTROL_BASE`]; all fields little-endian.

/// u32, monitor: [`crate::PLATFORM_VERSION`].
pub const CTL_VERSION: u64 = 0x00;
/// u32, monitor: `TRACE_*` bits of the richer record kinds.
pub const CTL_TRACE: u64 = 0x04;
/// u64, monitor: stop at the first commit whose step is at least this; `u64::MAX` never.
pub const CTL_STOP_STEP: u64 = 0x08;
/// u32, monitor (any time, any thread): non-zero stops at the next commit. For wall-clock limits and Ctrl-C.
pub const CTL_STOP_NOW: u64 = 0x10;
/// u32, monitor: number of decisions in the table; 0 skips the look-up.
pub const CTL_DECISIONS: u64 = 0x14;
/// u64, guest: bytes ever written to the ring since the monitor reset it; published last (release).
pub const CTL_RING_HEAD: u64 = 0x18;
/// u64, monitor: bytes ever drained.
pub const CTL_RING_TAIL: u64 = 0x20;
/// u32, monitor: what the injected interrupt does (`DECISION_*`, 0 = only look at the deadline).
pub const CTL_INJECT_KIND: u64 = 0x28;
/// u64, monitor: its argument.
pub const CTL_INJECT_ARG: u64 = 0x30;
/// u64, monitor: bytes of the job in the job area.
pub const CTL_JOB_LEN: u64 = 0x38;

/// u64, monitor (any time, any thread): the guest asks for input ([`crate::port::DEVICE`]) at the first return to user mode
/// or idle whose poll number ([`crate::state::ST_POLLS`]) is at least this; `u64::MAX` never.
pub const CTL_INPUT_POLL: u64 = 0x40;
/// u32, monitor, inside [`crate::port::DEVICE`]: bytes in the input area, or [`INPUT_CLOSED`]. The guest takes them at once
/// and sets this to 0.
pub const CTL_INPUT_LEN: u64 = 0x48;
/// u32, monitor: non-zero drops every record and rings no [`crate::port::RING`]: for a machine that nobody drains. Nothing
/// else of the guest changes.
pub const CTL_NO_RECORDS: u64 = 0x4c;

/// [`CTL_INPUT_LEN`]: there will be no more input.
pub const INPUT_CLOSED: u32 = u32::MAX;

/// Record system call enter and exit.
pub const TRACE_SYSCALL: u32 = 1 << 0;
/// Record futex wait and wake with their address.
pub const TRACE_FUTEX: u32 = 1 << 1;
/// Record page faults from user mode.
pub const TRACE_FAULT: u32 = 1 << 2;
/// Record mmap, munmap, mprotect, brk results.
pub const TRACE_MMAP: u32 = 1 << 3;

/// One entry of the decision table, 32 bytes. Open addressing with linear probing from
/// [`decision_slot`]; several entries may name one place, all are applied in table order from that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct DecisionEntry {
    /// The thread's name ([`thread_name`]).
    pub thread: u64,
    /// That thread's own system call number (count of system calls it entered), from 0.
    pub syscall: u64,
    /// Commits by that thread since that system call was entered, from 0.
    pub returns: u32,
    /// `DECISION_*`.
    pub kind: u16,
    /// `SLOT_EMPTY`, `SLOT_ARMED` (monitor) or `SLOT_DONE` (guest, when applied).
    pub state: u16,
    /// Virtual nanoseconds for a stall or late timer; the rank for a rank.
    pub arg: u64,
}

/// Table slot never used: ends a probe.
pub const SLOT_EMPTY: u16 = 0;
/// Decision waiting for its place.
pub const SLOT_ARMED: u16 = 1;
/// Decision applied.
pub const SLOT_DONE: u16 = 2;

/// The thread gets the worst rank until another user thread of the job has committed a step.
pub const DECISION_PREEMPT: u16 = 1;
/// The thread sleeps `arg` nanoseconds of virtual time.
pub const DECISION_STALL: u16 = 2;
/// The next timer expiry is delayed by `arg` nanoseconds.
pub const DECISION_LATE_TIMER: u16 = 3;
/// The thread's rank becomes `arg` (lower runs first; 0x8000_0000 is the default).
pub const DECISION_RANK: u16 = 4;
/// The commit at this place writes [`crate::port::STOP`] (so that the monitor can go on by instructions).
pub const DECISION_STOP: u16 = 5;

/// First slot to probe for a place: the top 12 bits of a mix of its three parts.
pub const fn decision_slot(thread: u64, syscall: u64, returns: u32) -> u64 {
    let mix = thread
        ^ syscall.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (returns as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    mix.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52
}

/// Name of the job's first process.
pub const THREAD_ROOT: u64 = 0x5245_5749_4e44_0001;

/// Name of the `n`-th clone (from 1) of the thread called `parent`: splitmix64's output function over the pair.
/// Threads outside the job (kernel threads, init) have name 0 and so have their children until init marks
/// the job's first process.
pub const fn thread_name(parent: u64, n: u64) -> u64 {
    let mut z = parent.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
