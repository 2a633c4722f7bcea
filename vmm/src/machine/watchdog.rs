//! Notices a guest that makes no step: it computes, or waits for time that only steps move.
//!
//! It looks each time the limit of user instructions has been retired, counted from when the limit was set: where it
//! looks is a place in the run, the same whatever stopped the machine in between, and so is what it finds.

use super::{GuestFault, Machine, MachineError};
use crate::address::Instructions;

/// The limit and how far the guest is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watchdog {
    limit: Instructions,
    left: Instructions,
    /// The step when it last looked.
    step: u64,
}

impl Machine {
    /// A guest that makes no step between two looks, this many user instructions apart, ends as
    /// [`GuestFault::NoProgress`]: after one to two times the limit, at a place that depends on the run alone (and
    /// on where it was when this was called). Only on engines that count instructions cheaply; others need a
    /// watchdog by wall clock ([`Machine::interrupter`]).
    pub fn set_no_progress_limit(&mut self, limit: Option<Instructions>) {
        let step = self.step().0;
        self.watchdog = limit
            .filter(|limit| limit.0 > 0 && self.engine.capabilities().cheap_instruction_budget)
            .map(|limit| Watchdog { limit, left: limit, step });
    }

    /// User instructions until it looks again.
    pub(super) fn watchdog_left(&self) -> Option<Instructions> {
        self.watchdog.map(|dog| dog.left)
    }

    /// Books retired user instructions.
    pub(super) fn watchdog_retired(&mut self, retired: u64) {
        if let Some(dog) = &mut self.watchdog {
            dog.left = Instructions(dog.left.0.saturating_sub(retired));
        }
    }

    /// Looks, if it is time to.
    pub(super) fn watchdog_look(&mut self) -> Result<Option<GuestFault>, MachineError> {
        let step = self.step().0;
        let Some(dog) = self.watchdog.as_mut().filter(|dog| dog.left.0 == 0) else { return Ok(None) };
        dog.left = dog.limit;
        if std::mem::replace(&mut dog.step, step) != step {
            return Ok(None);
        }
        let instructions = dog.limit.0;
        let cpu = self.engine.cpu()?;
        Ok(Some(GuestFault::NoProgress { step, instructions, rip: cpu.rip, user: cpu.cs.selector & 3 == 3 }))
    }
}
