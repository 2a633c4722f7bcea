//! The one place above the machine that looks at the host's clock: limits, spacing of keyframes, and what the last
//! line says. Nothing it returns may reach a spec, a trace or an outcome.

use std::time::{Duration, Instant};

/// A moment of wall time.
#[derive(Clone, Copy, Debug)]
pub struct Wall(Instant);

impl Wall {
    /// Now.
    #[expect(clippy::disallowed_methods, reason = "the one clock type of this layer; see the module")]
    pub fn now() -> Wall {
        Wall(Instant::now())
    }

    /// Since then.
    pub fn elapsed(self) -> Duration {
        Wall::now().0.duration_since(self.0)
    }
}

/// Processor time of the thread that asks. What is spaced by it does not depend on what else the machine has to do.
#[derive(Clone, Copy, Debug)]
pub struct Worked(Duration);

impl Worked {
    /// The calling thread's until now.
    pub fn now() -> Worked {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Worked(Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32))
    }

    /// Since then; asked in the same thread.
    pub fn elapsed(self) -> Duration {
        Worked::now().0.saturating_sub(self.0)
    }
}
