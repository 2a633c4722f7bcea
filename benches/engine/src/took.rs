//! How long a process takes: processor time, which other work on the machine changes little, and wall time beside it.

use std::{
    process::{Command, Output},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

/// What a process and its children took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Took {
    /// Processor time, user and system, all threads: what is compared.
    pub(crate) cpu: Duration,
    /// By the clock on the wall.
    pub(crate) wall: Duration,
}

impl Took {
    /// The least of each.
    pub(crate) fn least(self, other: Took) -> Took {
        Took { cpu: self.cpu.min(other.cpu), wall: self.wall.min(other.wall) }
    }

    /// What is left of each beyond `base`.
    pub(crate) fn beyond(self, base: Took) -> Took {
        Took { cpu: self.cpu.saturating_sub(base.cpu), wall: self.wall.saturating_sub(base.wall) }
    }
}

/// Processor time of all children that were waited for.
fn of_children() -> Duration {
    let part = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    // SAFETY: the structure is plain numbers, and the kernel fills it in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage);
        usage
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// Runs a process to its end. Only one may run at a time.
pub(crate) fn timed(command: &mut Command) -> Result<(Took, Output)> {
    #[expect(
        clippy::disallowed_methods,
        reason = "a benchmark measures host time; nothing of it reaches a run"
    )]
    let (cpu, start) = (of_children(), Instant::now());
    let out = command.output().with_context(|| format!("cannot run {command:?}"))?;
    Ok((Took { cpu: of_children().saturating_sub(cpu), wall: start.elapsed() }, out))
}
