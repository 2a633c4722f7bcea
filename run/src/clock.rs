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
