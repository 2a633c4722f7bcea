//! Where a thread was when a signal ended it.

use debug::look::{self, Files};
use vmm::{
    address::{Gva, Step},
    machine::{Stop, Until},
};

use crate::{
    base::{BaseError, Worker},
    decision::Decision,
    describe::line_of,
    trial::Crash,
};

impl Worker {
    /// Runs under `decisions` to the last instruction of the crashing thread: its line and function there, empty if
    /// it is not reached in a way that can be looked at.
    pub fn crash_line(
        &mut self,
        decisions: &[Decision],
        crash: &Crash,
        files: &mut Files,
    ) -> Result<(String, String), BaseError> {
        let none = (String::new(), String::new());
        if !self.run_to(decisions, crash.step)? || self.machine().thread() != crash.thread {
            return Ok(none);
        }
        // At a fault the saved address is that of the instruction; when the thread sent itself the signal, of the one
        // after `syscall` (two bytes).
        let at = [Gva(crash.ip), Gva(crash.ip.wrapping_sub(2))];
        let machine = self.machine();
        let failed = |error: vmm::engine::EngineError| BaseError::Machine(error.into());
        machine.engine().breakpoints(&at).map_err(failed)?;
        let next = Step(machine.step().0 + 1);
        let stop = machine.run(&Until::step(next), &mut ());
        machine.engine().breakpoints(&[]).map_err(failed)?;
        if !matches!(stop?, Stop::Breakpoint(_)) {
            return Ok(none);
        }
        let view = look::committed(machine, files).map_err(|error| BaseError::Stop(error.to_string()))?;
        Ok(view.map_or(none, |view| line_of(&view)))
    }
}
