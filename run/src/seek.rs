//! Going to a position of a run, in a throw-away machine, checking each event on the way.

use std::sync::Arc;

use vmm::{
    EngineKind, Machine, Stop, Until,
    address::{Instructions, Position, Step},
};

use crate::{
    boot::{self, Boot, Kernel},
    decision,
    error::StageError,
    home::{Home, RunDir},
    keyframe::{self, Whole},
    outcome::Outcome,
    spec::Spec,
    stage::Stage,
    trace::TraceReader,
    verify::{OnRecord, Verifier},
};

mod going;
mod images;
mod ready;
pub use going::Checkpoint;
use images::{Beyond, open_images_beyond};
pub use images::{FindImage, FindRest, best, open_images, unchanged};
pub(crate) use ready::is_view;
pub use ready::{is_whole, unfinished, whole_trace};

/// A run, opened for going about in it.
pub struct Timeline<'h> {
    home: &'h Home,
    run: RunDir,
    spec: Spec,
    outcome: Option<Outcome>,
    trace: TraceReader,
    boot: Arc<Boot>,
    stage: Stage,
    /// Default records made by where the machine is.
    records: u64,
    /// The machine was run or changed by somebody else since it was last placed.
    astray: bool,
}

impl<'h> Timeline<'h> {
    /// Opens a run. `engine`: none = the one it was recorded on.
    pub fn open(
        home: &'h Home,
        run: RunDir,
        engine: Option<EngineKind>,
        find: FindImage<'_>,
        notice: &dyn Fn(&str),
    ) -> Result<Timeline<'h>, StageError> {
        Timeline::open_with(home, run, engine, find, None, notice)
    }

    /// As [`Timeline::open`], for somebody who will go on otherwise than the recorded run did.
    pub fn open_beyond(
        home: &'h Home,
        run: RunDir,
        engine: Option<EngineKind>,
        find: FindImage<'_>,
        rest: FindRest<'_>,
        notice: &dyn Fn(&str),
    ) -> Result<Timeline<'h>, StageError> {
        Timeline::open_with(home, run, engine, find, Some(Beyond { rest, notice }), notice)
    }

    fn open_with(
        home: &'h Home,
        run: RunDir,
        engine: Option<EngineKind>,
        find: FindImage<'_>,
        beyond: Option<Beyond<'_>>,
        notice: &dyn Fn(&str),
    ) -> Result<Timeline<'h>, StageError> {
        let spec = run.spec()?;
        // All that may be missing of a run is asked for before a guest boots for it.
        ready::may_be_gone_about_in(&run)?;
        let (recording, outcome) = (run.recording()?, run.outcome()?);
        let trace = whole_trace(&run)?;
        let engine = engine.or(recording.as_ref().map(|r| r.engine)).unwrap_or(EngineKind::Soft);
        let recorded_on = recording.as_ref().and_then(|recording| recording.boot);
        let source = recording.map(|recording| recording.source).unwrap_or_default();
        let images = open_images_beyond(home, &run, &spec, &source, find, beyond)?;
        // The keyframes build on the boot keyframe they were recorded over, whatever engine replays them.
        let found = recorded_on.map(|key| match boot::open_own(home, &run, key)? {
            Some(own) => Ok::<_, StageError>(Some(own)),
            None => boot::open(home, key),
        });
        let boot = match found.transpose()?.flatten() {
            Some(boot) => boot,
            None => boot::ensure(home, &spec, engine, &|| Kernel::of(home, &spec), notice)?,
        };
        let boot = Arc::new(boot);
        let stage = Stage::new(home, &spec, engine, boot.clone(), images)?;
        let records = boot.records;
        Ok(Timeline { home, run, spec, outcome, trace, boot, stage, records, astray: false })
    }

    /// The home.
    pub fn home(&self) -> &'h Home {
        self.home
    }

    /// The run.
    pub fn run(&self) -> &RunDir {
        &self.run
    }

    /// Its spec.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// What came of it; none for one that was not finished.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Its trace.
    pub fn trace(&self) -> &TraceReader {
        &self.trace
    }

    /// The first step that can be gone to.
    pub fn first(&self) -> u64 {
        self.boot.whole.keyframe.step
    }

    /// The last one.
    pub fn last(&self) -> u64 {
        self.outcome.as_ref().map_or(self.trace.last_step(), |outcome| outcome.steps)
    }

    /// Default records made by where the machine is.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// The machine where it is now. It may be run and changed freely: the next seek puts it back.
    pub fn stage(&mut self) -> &mut Stage {
        self.astray = true;
        &mut self.stage
    }

    /// The machine where it is now, for looking alone: what is changed or run stays so.
    pub fn looking(&mut self) -> &mut Machine {
        self.stage.machine()
    }

    /// Steps of the places a machine can be restored at, ascending, the boot keyframe's first.
    pub fn keyframes(&self) -> Vec<u64> {
        let mut steps = vec![self.first()];
        steps.extend(keyframe::list(&self.run.keyframes()).into_iter().filter(|step| *step > self.first()));
        steps
    }

    /// Restores the keyframe at exactly this step (one of [`Timeline::keyframes`]).
    pub fn restore(&mut self, step: u64) -> Result<(), StageError> {
        let id = self.run.id().to_string();
        if step == self.first() {
            self.stage.restore_boot()?;
            self.records = self.boot.records;
        } else {
            let whole: Whole = keyframe::whole(&self.run.keyframes(), &id, step)?;
            let records = whole.keyframe.records;
            let taken = decision::taken(&self.spec.schedule, step, &self.trace, records)?;
            self.stage.restore(&whole, &id, taken)?;
            self.records = records;
        }
        self.astray = false;
        Ok(())
    }

    /// Puts the machine at `at`: from where it is, or from the latest keyframe before if that is nearer. Every
    /// event on the way is checked against the recording.
    pub fn seek(&mut self, at: Position) -> Result<(), StageError> {
        self.seek_showing(at, 0, None)
    }

    /// As [`Timeline::seek`], with richer records (`level`, `TRACE_*` bits) handed to `on_record`: all from here to `at`, so
    /// no keyframe on the way is jumped to.
    pub fn seek_showing(
        &mut self,
        at: Position,
        level: u32,
        on_record: Option<OnRecord<'_>>,
    ) -> Result<(), StageError> {
        let (first, last) = (self.first(), self.last());
        if at.step.0 > last {
            return Err(StageError::PastEnd { id: self.run.id(), asked: at.step.0, end: last });
        }
        if at.step.0 < first {
            return Err(StageError::BeforeJob { id: self.run.id(), asked: at.step.0, first });
        }
        let nearest = self.keyframes().into_iter().rfind(|step| *step <= at.step.0).unwrap_or(first);
        let here = self.stage.position();
        let jumps = here.step.0 < nearest && on_record.is_none();
        if self.astray || here > at || jumps || self.stage.machine().ended() {
            self.restore(nearest)?;
        }
        self.advance(at, level, on_record)
    }

    /// Runs on to `at`, checking.
    fn advance(
        &mut self,
        at: Position,
        level: u32,
        on_record: Option<OnRecord<'_>>,
    ) -> Result<(), StageError> {
        if self.stage.position() == at && at.step.0 == self.first() && self.records == self.boot.records {
            return Ok(()); // The boot keyframe is not at a commit: there is nothing to run to.
        }
        let stop = self.stage.machine().interrupter();
        let mut verifier = Verifier::new(self.trace.from_record(self.records), self.records).stopping(stop);
        if let Some(on_record) = on_record {
            verifier = verifier.showing(on_record);
        }
        self.stage.machine().set_trace_level(level);
        let until = if at.offset.0 == 0 { Until::step(at.step) } else { Until::position(at) };
        let stop = self.stage.run(&until, &mut verifier);
        self.stage.machine().set_trace_level(0);
        let difference = verifier.check()?;
        self.records = verifier.number();
        if let Some(difference) = difference {
            self.astray = true;
            return Err(StageError::Diverged { id: self.run.id(), difference: Box::new(difference) });
        }
        match stop? {
            Stop::Position => Ok(()),
            Stop::Step if self.stage.position() == at => Ok(()),
            Stop::Step => {
                let (step, offset) = (at.step.0, at.offset.0);
                Err(StageError::NoSuchInstruction { id: self.run.id(), step, offset })
            }
            // The end is a place too: the last step, gone through.
            Stop::End(_) | Stop::Fault(_) if at.step.0 == self.last() && at.offset == Instructions(0) => {
                Ok(())
            }
            _ => Err(StageError::PastEnd {
                id: self.run.id(),
                asked: at.step.0,
                end: self.stage.machine().step().0,
            }),
        }
    }

    /// The machine was run on by a scan and is where it seems: the next seek may go on from here.
    pub(crate) fn placed_at(&mut self, records: u64) {
        self.records = records;
        self.astray = false;
    }

    /// The engine the machine runs on.
    pub fn engine_kind(&mut self) -> EngineKind {
        self.stage.machine().engine().kind()
    }

    /// A step as a position.
    pub fn at(step: u64) -> Position {
        Position { step: Step(step), offset: Instructions(0) }
    }
}
