//! Going about in a run by smaller things than positions: to whatever stops, from a checkpoint in memory.

use vmm::{Stop, Until};

use super::{OnRecord, Timeline};
use crate::{error::StageError, stage::Checkpoint as Inner, verify::Verifier};

/// A place in memory to come back to.
#[derive(Debug)]
pub struct Checkpoint {
    inner: Inner,
    records: u64,
}

impl std::ops::Deref for Checkpoint {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl Timeline<'_> {
    /// Remembers where the machine is, which must be on the recorded way.
    pub fn checkpoint(&mut self) -> Result<Checkpoint, StageError> {
        Ok(Checkpoint { inner: self.stage.checkpoint()?, records: self.records })
    }

    /// Back to a checkpoint of this timeline.
    pub fn return_to(&mut self, checkpoint: &Checkpoint) -> Result<(), StageError> {
        self.stage.return_to(&checkpoint.inner)?;
        self.records = checkpoint.records;
        self.astray = false;
        Ok(())
    }

    /// Runs on from where the machine is until it stops, at `until` or for a watch, a breakpoint, the end or an
    /// interruption. Every event on the way is checked against the recording.
    pub fn go_on(&mut self, until: &Until) -> Result<Stop, StageError> {
        self.go_on_showing(until, 0, None)
    }

    /// As [`Timeline::go_on`], with richer records (`level`, `TRACE_*` bits) handed to `on_record`.
    pub fn go_on_showing(
        &mut self,
        until: &Until,
        level: u32,
        on_record: Option<OnRecord<'_>>,
    ) -> Result<Stop, StageError> {
        let mut verifier = Verifier::new(self.trace.from_record(self.records), self.records)
            .stopping(self.stage.machine().interrupter());
        if let Some(on_record) = on_record {
            verifier = verifier.showing(on_record);
        }
        self.stage.machine().set_trace_level(level);
        let stop = self.stage.run(until, &mut verifier);
        self.stage.machine().set_trace_level(0);
        let difference = verifier.check()?;
        self.records = verifier.number();
        if let Some(difference) = difference {
            self.astray = true;
            return Err(StageError::Diverged { id: self.run.id(), difference: Box::new(difference) });
        }
        stop
    }
}
