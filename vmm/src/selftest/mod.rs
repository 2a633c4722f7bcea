//! Can this host's KVM be trusted? Micro-guests check what the `kvm` engine stands on, each in its own thread
//! with a time limit, so that a broken KVM can neither hang nor crash the program.

mod checks;
mod choose;
mod numeric;
mod remember;

use std::{sync::mpsc, thread, time::Duration};

use serde::{Deserialize, Serialize};

pub use choose::{Choice, choose, decide};
pub use numeric::fingerprint;
pub use remember::remembered;

use crate::micro::Micro;

/// How long one check may take. On a good host none needs a tenth of a second; the limit of kernel-mode speed is
/// part of what is tested.
const LIMIT: Duration = Duration::from_secs(4);
/// How long a check that was interrupted may take to come back before its thread is left behind.
const GRACE: Duration = Duration::from_secs(1);

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Short stable name.
    pub name: String,
    /// What was tested, in words.
    pub tests: String,
    /// The `kvm` engine is refused without it.
    pub essential: bool,
    /// `None` it holds; else what was seen instead.
    pub failure: Option<String>,
    /// What a failure means for the user.
    pub means: String,
    /// How to mend it.
    pub mend: String,
}

/// Result of the self-test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// In the order tested. Ends early when nothing further can be tested.
    pub lines: Vec<Line>,
}

impl Report {
    /// The first essential check that failed, if any.
    pub fn refused(&self) -> Option<&Line> {
        self.lines.iter().find(|line| line.essential && line.failure.is_some())
    }

    /// Did the check of this name pass?
    pub fn holds(&self, name: &str) -> bool {
        self.lines.iter().any(|line| line.name == name && line.failure.is_none())
    }
}

/// A check: what it is called, tests and means, and the test itself.
struct Check {
    name: &'static str,
    tests: &'static str,
    essential: bool,
    means: &'static str,
    mend: &'static str,
    /// `Err`: what was seen.
    run: fn(&mut Micro) -> Result<(), String>,
}

/// Runs every check. Takes about a second on a good host.
pub fn run() -> Report {
    let mut lines = vec![checks::opens()];
    if lines[0].failure.is_some() {
        return Report { lines };
    }
    for check in checks::CHECKS {
        let failure = limited(check.run).err();
        lines.push(Line {
            name: check.name.to_owned(),
            tests: check.tests.to_owned(),
            essential: check.essential,
            failure,
            means: check.means.to_owned(),
            mend: check.mend.to_owned(),
        });
    }
    Report { lines }
}

/// Do debug registers stop a guest, both at a write and before an instruction?
pub(crate) fn debug_registers_fire() -> bool {
    let both = checks::CHECKS.iter().filter(|check| matches!(check.name, "breakpoint" | "data-watch"));
    both.map(|check| limited(check.run)).all(|result| result.is_ok())
}

/// Runs a check on a fresh micro-guest, but not for ever.
fn limited(check: fn(&mut Micro) -> Result<(), String>) -> Result<(), String> {
    let mut micro = checks::micro()?;
    let interrupt = micro.engine.interrupter();
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name("kvm self-test".into()).spawn(move || {
        // The receiver is gone only if the check ran out of time.
        let _ = sender.send(check(&mut micro));
    });
    thread.map_err(|error| format!("no thread: {error}"))?;
    let late = || format!("it did not end within {} seconds", LIMIT.as_secs());
    match receiver.recv_timeout(LIMIT) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            Err("the check failed by itself (a fault of this program)".into())
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            interrupt();
            // Whatever it says now, it was too late.
            let _ = receiver.recv_timeout(GRACE);
            Err(late())
        }
    }
}
