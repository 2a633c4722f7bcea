//! The injectable fault point of every write. Off unless a test arms it, in its own process.
//!
//! Armed, call number N to [`super`] (creates, writes, syncs, renames, removals, truncations; counted from 1)
//! either kills the process, or kills it half-way through a write, or fails as a full disk does.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process dies before the call.
    Kill,
    /// The process dies with half of the bytes written (calls that do not write: before the call).
    KillTorn,
    /// This call and all later ones that need space fail with ENOSPC, half of the bytes written.
    NoSpace,
}

/// Kinds of call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Create,
    Write,
    Sync,
    Rename,
    Remove,
    Truncate,
}

static CALLS: AtomicU64 = AtomicU64::new(0);
/// Call number in the low 62 bits, kind of fault in the top two; 0 = never.
static PLAN: AtomicU64 = AtomicU64::new(0);

/// Arms a fault at call number `at` (from 1), counting from now. For tests, in a process of their own.
pub fn arm(fault: Fault, at: u64) {
    CALLS.store(0, Ordering::SeqCst);
    let kind = match fault {
        Fault::Kill => 1,
        Fault::KillTorn => 2,
        Fault::NoSpace => 3,
    };
    PLAN.store(kind << 62 | at, Ordering::SeqCst);
}

/// Calls made since the process began or [`arm`] was called.
pub fn calls() -> u64 {
    CALLS.load(Ordering::SeqCst)
}

pub(super) struct Part {
    pub(super) bytes: usize,
    kill: bool,
}

impl Part {
    pub(super) fn finish(self) -> io::Result<()> {
        if self.kill {
            std::process::abort();
        }
        Err(no_space())
    }
}

fn no_space() -> io::Error {
    rustix::io::Errno::NOSPC.into()
}

/// To call before a write of `len` bytes: `Some` = write only so many, then [`Part::finish`].
pub(super) fn torn(call: Call, len: usize) -> io::Result<Option<Part>> {
    let n = CALLS.fetch_add(1, Ordering::SeqCst) + 1;
    let plan = PLAN.load(Ordering::Relaxed);
    if plan == 0 {
        return Ok(None);
    }
    let (kind, at) = (plan >> 62, plan & (u64::MAX >> 2));
    match kind {
        1 if n == at => std::process::abort(),
        2 if n == at && call == Call::Write => Ok(Some(Part { bytes: len / 2, kill: true })),
        2 if n == at => std::process::abort(),
        3 if n >= at => match call {
            Call::Write => Ok(Some(Part { bytes: len / 2, kill: false })),
            Call::Create => Err(no_space()),
            Call::Sync | Call::Rename | Call::Remove | Call::Truncate => Ok(None),
        },
        _ => Ok(None),
    }
}

/// To call before anything else that changes the disk.
pub(super) fn pass(call: Call) -> io::Result<()> {
    match torn(call, 0)? {
        None => Ok(()),
        Some(part) => part.finish(),
    }
}
