//! Runs a window step by step, on any engine.

use std::{ops::ControlFlow, sync::atomic::Ordering};

use vmm::{Machine, Stop, Until, address::Step};

use super::{Watcher, Window};
use crate::{error::StageError, seek::Timeline, verify::Verifier};

impl Timeline<'_> {
    /// Runs a window and shows the machine where the window begins and at every step in it; a break ends it. It is not
    /// run into its last step, where that has a part in the window. Every event on the way is checked against the
    /// recording.
    pub fn each_step(
        &mut self,
        window: &Window,
        watcher: Watcher<'_>,
        on_step: &mut dyn FnMut(&mut Machine, Step) -> ControlFlow<()>,
    ) -> Result<(), StageError> {
        self.restore(window.from)?;
        let (trace, first, id) = (self.run().trace()?, self.records(), self.run().id());
        let stage = self.stage();
        let mut verifier =
            Verifier::new(trace.from_record(first), first).stopping(stage.machine().interrupter());
        let mut flow = on_step(stage.machine(), Step(window.from));
        let mut done = Ok(());
        for step in window.from + 1..=window.until.step.0 {
            if flow.is_break() {
                break;
            }
            if watcher.interrupted.load(Ordering::Relaxed) {
                return Err(StageError::Interrupted);
            }
            (watcher.progress)(step);
            match stage.run(&Until::step(Step(step)), &mut verifier) {
                Ok(Stop::Step) => flow = on_step(stage.machine(), Step(step)),
                Ok(Stop::Interrupted) => done = Err(StageError::Interrupted),
                Ok(_) => done = Err(StageError::EndsEarly { asked: step, end: stage.machine().step().0 }),
                Err(error) => done = Err(error),
            }
            if done.is_err() {
                break;
            }
        }
        if let Some(difference) = verifier.check()? {
            return Err(StageError::Diverged { id, difference: Box::new(difference) });
        }
        done
    }
}
