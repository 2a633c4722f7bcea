//! Recording a run.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rewind_platform::record::{REC_EXEC, RecordHeader};
use vmm::{
    EngineKind, GuestFault, Interrupter, RecordSink, Stop, Until,
    address::{Instructions, Step},
};

use crate::{
    boot::{self, Boot, Kernel},
    clock::{Wall, Worked},
    decision,
    durable::WriteError,
    ending::Facts,
    error::StageError,
    home::{Finished, Home, OpenRun, RunDir},
    input::InputLog,
    kept,
    keyframe::{self, Base},
    outcome::{End, Outcome, Recording},
    root::Root,
    spec::Spec,
    stage::Stage,
    trace::{TraceHasher, TraceWriter, prefix_path},
    verify::Verifier,
};

mod auto;
mod images;
mod keeper;
mod thrift;
mod ticker;
pub use auto::{LIMIT, SLICE, record_auto};
pub use images::{Gather, Programs};
use images::{Opened, PROGRAMS};
use keeper::Keeper;
pub use thrift::{Keyframes, SPACING};
use ticker::Ticker;

/// How to record.
pub struct Options<'a> {
    /// The engine.
    pub engine: EngineKind,
    /// Stop after this much wall time.
    pub timeout: Option<Duration>,
    /// Set by Ctrl-C: stop and keep what is done.
    pub interrupted: Arc<AtomicBool>,
    /// How often keyframes are kept.
    pub keyframes: Keyframes,
    /// Record even if the run is known, and compare.
    pub again: bool,
    /// Check the pages of the home that this recording shares with others, and mend those that are corrupt.
    pub doubt: bool,
    /// Give up ([`StageError::Spins`]) on a guest that makes no step between two looks, so many user instructions
    /// apart. Engines that do not count give up by wall time ([`StageError::NoStep`]).
    pub spin_limit: Option<Instructions>,
    /// When the user asked: times of the recording count from here.
    pub called: Wall,
    /// Where to stop at the latest.
    pub cut: Cut,
    /// Told to the user if the recording takes more than ten seconds.
    pub reminder: Option<&'a str>,
    /// Told every record as it is drained.
    pub live: &'a mut dyn FnMut(&RecordHeader, &[u8]),
    /// Told what takes time.
    pub notice: &'a dyn Fn(&str),
    /// Reads what a debugger will want of the root, when the run has ended.
    pub gather: Gather<'a>,
}

/// Where a recording stops, as [`End::TimedOut`], though its job has not ended: places in the run, not in wall time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cut {
    /// At this step.
    pub step: Option<u64>,
    /// At the first look, every 4096 steps, at which so many virtual nanoseconds have passed since the job began.
    pub virtual_ns: Option<u64>,
}

impl Cut {
    /// Steps between two looks at the virtual clock.
    const LOOK: u64 = 4096;

    fn until(&self, step: u64) -> Until {
        let look = self.virtual_ns.map(|_| step.saturating_add(Cut::LOOK));
        let first = self.step.into_iter().chain(look).min();
        first.map_or(Until::END, |first| Until::step(Step(first)))
    }

    fn reached(&self, step: u64, since_start: u64) -> bool {
        self.step.is_some_and(|last| step >= last) || self.virtual_ns.is_some_and(|last| since_start > last)
    }
}

/// When [`Options::reminder`] is due.
const SLOW: Duration = Duration::from_secs(10);

/// What came of [`record`].
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub run: RunDir,
    /// What came of it.
    pub outcome: Outcome,
    /// How it was recorded.
    pub recording: Recording,
    /// It was known and not run now.
    pub found: bool,
}

/// Everything a recording starts from.
pub struct Inputs<'a> {
    /// The spec, not sealed.
    pub spec: Spec,
    /// Kernel and initramfs, asked for if a boot is needed.
    pub kernel: &'a dyn Fn() -> Result<Kernel, StageError>,
    /// Its images.
    pub roots: &'a [Root],
    /// The parent and the step from which this run may differ, for a fork.
    pub parent: Option<(&'a RunDir, u64)>,
}

/// Records the run of a spec, or finds it.
pub fn record(home: &Home, inputs: &Inputs<'_>, options: &mut Options<'_>) -> Result<Recorded, StageError> {
    if !options.again
        && let Some(found) = find(home, inputs)?
    {
        return Ok(found);
    }
    if options.doubt || home.has_dir(inputs.spec.id()) {
        // The one before may be damaged, and share pages with this one that are.
        home.pages().doubt();
    }
    let boot = Arc::new(boot::ensure(home, &inputs.spec, options.engine, inputs.kernel, options.notice)?);
    // What a fork's parent has read, the fork reads the same.
    let known = inputs.parent.map(|(parent, _)| parent.inputs()).transpose()?.unwrap_or_default();
    let before = inputs.parent.map(|(parent, _)| parent.kept()).transpose()?.flatten();
    let (images, opened) = Opened::new(home, inputs.roots, &known, before)?;
    let mut stage = Stage::new(home, &inputs.spec, options.engine, boot.clone(), images)?;
    stage.machine().set_no_progress_limit(options.spin_limit);
    let open = home.begin(&inputs.spec)?;
    let result =
        Recorder { home, inputs, called: options.called, boot, opened }.run(&open, &mut stage, options);
    match result {
        Ok((log, outcome, recording)) => {
            let run = match open.finish(&log, &outcome, &recording)? {
                Finished::New(run) | Finished::Replaced(run) => run,
                Finished::Same(run) => {
                    let before = run.outcome()?;
                    if before.as_ref() != Some(&outcome) {
                        let whole = before.is_some_and(|before| before.end.is_final());
                        let why = if whole { "is there to its end" } else { "is in use" };
                        (options.notice)(&format!(
                            "run {} {why}: what was recorded now is not kept",
                            run.id()
                        ));
                    }
                    run
                }
            };
            Ok(Recorded { run, outcome, recording, found: false })
        }
        Err(error) => {
            // What failed is told; what is half there would only look like a run.
            let _ = open.discard();
            Err(error)
        }
    }
}

/// The kept run of these inputs. Over the host's own files: the one whose used files are still as they were.
pub fn find(home: &Home, inputs: &Inputs<'_>) -> Result<Option<Recorded>, StageError> {
    let found = match home.finished(&inputs.spec) {
        Some(found) => Some(found),
        None if inputs.roots.iter().any(|root| root.logged) => {
            let known = inputs.parent.map(|(parent, _)| parent.inputs()).transpose()?.unwrap_or_default();
            home.with_input(&inputs.spec)
                .into_iter()
                .find(|(run, _)| run.seems_whole() && still_so(run, inputs.roots, &known))
        }
        None => None,
    };
    // What came from elsewhere is run here once before it is believed; a damaged run is recorded again, not found.
    let found = found.filter(|(run, _)| !run.is_imported() && run.seems_whole());
    let Some((run, outcome)) = found else { return Ok(None) };
    let Ok(Some(recording)) = run.recording() else { return Ok(None) };
    Ok(Some(Recorded { run, outcome, recording, found: true }))
}

/// Would a recording now log the same input? A fork reads what its parent `known` as the parent did.
fn still_so(run: &RunDir, roots: &[Root], known: &InputLog) -> bool {
    let (Ok(log), Ok(origins)) = (run.inputs(), run.origins()) else { return false };
    let mut origins = origins.iter();
    log.devices.is_empty()
        && roots.iter().enumerate().filter(|(_, root)| root.logged).all(|(image, root)| {
            let (Some(same), Some(origin)) = (&root.same, origins.next()) else { return false };
            let mut blocks = log.blocks.get(&(image as u32)).cloned().unwrap_or_default();
            for (number, hash) in known.blocks.get(&(image as u32)).into_iter().flatten() {
                if blocks.remove(number).is_some_and(|now| now != *hash) {
                    return false;
                }
            }
            same(origin, &blocks)
        })
}

struct Recorder<'a> {
    home: &'a Home,
    inputs: &'a Inputs<'a>,
    called: Wall,
    boot: Arc<Boot>,
    opened: Opened,
}

/// Where a recording begins: what is already in its trace and keyframes.
struct Start {
    records: u64,
    hasher: TraceHasher,
    facts: Facts,
    base: Base,
}

/// What [`Recorder::drive`] needs of [`Options`].
struct Limits<'a> {
    cut: Cut,
    reminder: Option<&'a str>,
    notice: &'a dyn Fn(&str),
    timeout: Option<Duration>,
    interrupted: Arc<AtomicBool>,
    /// The engine does not count instructions: a guest without steps is noticed by wall time.
    by_wall: bool,
    /// Between two keyframes, and before the first.
    spacing: Duration,
    first: Duration,
    /// Only if a keyframe is worth its bytes.
    thrifty: bool,
    /// Bytes that the first may cost beyond that.
    grant: u64,
}

impl Recorder<'_> {
    fn run(
        &self,
        open: &OpenRun,
        stage: &mut Stage,
        options: &mut Options<'_>,
    ) -> Result<(InputLog, Outcome, Recording), StageError> {
        let dir = open.dir().path();
        let start = match self.inputs.parent {
            None => self.begin_at_boot(dir)?,
            Some((parent, step)) => self.begin_at_fork(dir, stage, parent, step)?,
        };
        if self.inputs.parent.is_some() {
            open.dir().inherits(start.records)?;
        }
        let writer = TraceWriter::create_after(dir, start.records, start.hasher.clone())?;
        let mut sink = Sink {
            writer,
            facts: start.facts.clone(),
            live: options.live,
            error: None,
            execs: 0,
            programs: Programs::new(),
            stop: stage.machine().interrupter(),
            called: self.called,
            first_event: None,
        };
        let (spacing, thrifty) = match options.keyframes {
            Keyframes::Every(spacing) => (spacing, false),
            Keyframes::Thrifty | Keyframes::Never => (SPACING, true),
        };
        let keeper = (options.keyframes != Keyframes::Never)
            .then(|| Keeper::start(self.home, dir, &self.boot, &start, stage));
        let limits = Limits {
            // A fork begins with its parent's keyframes: a short one needs none of its own.
            first: if matches!(start.base, Base::Step(_)) { spacing * 4 } else { spacing },
            cut: options.cut,
            reminder: options.reminder,
            notice: options.notice,
            timeout: options.timeout,
            interrupted: options.interrupted.clone(),
            by_wall: options.spin_limit.is_some() && options.engine != EngineKind::Soft,
            spacing,
            thrifty,
            grant: if matches!(start.base, Base::Step(_)) { 0 } else { thrift::FIRST },
        };
        let stopped = self.drive(stage, &mut sink, keeper, &limits)?;
        sink.writer.sync()?;
        let origins: Vec<Vec<u8>> =
            self.inputs.roots.iter().filter_map(|root| root.origin.as_ref()).map(|origin| origin()).collect();
        // What the run needs lasts before anything more is read: of that a full disk may only cost what is more.
        self.home.pages().sync()?;
        let mut kept = self.opened.keep(self.home, &sink.programs, options.gather);
        if let Err(error) = self.home.pages().sync() {
            (options.notice)(&format!("programs and sources are not kept with the run: {error}"));
            kept = self.opened.read();
        }
        if !origins.is_empty() {
            crate::origin::write(&dir.join("origin"), &origins)?;
        }
        crate::envelope::write(kept::FILE, &dir.join("images"), &kept)?;
        for outside in stage.machine().engine().outside_model() {
            (options.notice)(&format!("outside the CPU model ({}): {outside}", self.inputs.spec.cpu_model));
        }
        let position = stage.machine().step().0;
        let outcome = Outcome {
            end: stopped,
            steps: position,
            virtual_ns: stage.machine().now().0,
            started: sink.facts.started.map(|(step, _)| step),
            started_ns: sink.facts.started.map_or(0, |(_, now)| now),
            records: sink.writer.records(),
            trace_hash: sink.writer.hash(),
            outputs: sink.facts.outputs.clone(),
            missed: stage.missed()?,
        };
        let source: Vec<&str> = self.inputs.roots.iter().map(|root| root.source.as_str()).collect();
        let recording = Recording {
            version: env!("CARGO_PKG_VERSION").into(),
            engine: options.engine,
            wall_ms: self.called.elapsed().as_millis() as u64,
            first_event_ms: sink.first_event.map(|after| after.as_millis() as u64),
            parent: self.inputs.parent.map(|(run, step)| (run.id(), step)),
            boot: Some(self.boot.key),
            source: source.join(", "),
        };
        Ok((self.opened.seal(), outcome, recording))
    }

    fn begin_at_boot(&self, dir: &Path) -> Result<Start, StageError> {
        share(&self.boot.dir.join("trace"), &prefix_path(dir, 0))?;
        Ok(Start {
            records: self.boot.records,
            hasher: self.boot.hasher.clone(),
            facts: Facts::default(),
            base: Base::Boot(self.boot.key),
        })
    }

    /// Shares what the parent has up to `step` and goes there, checking each event.
    fn begin_at_fork(
        &self,
        dir: &Path,
        stage: &mut Stage,
        parent: &RunDir,
        step: u64,
    ) -> Result<Start, StageError> {
        let trace = parent.trace()?;
        for (n, file) in trace.files().enumerate() {
            share(file, &prefix_path(dir, n))?;
        }
        let id = parent.id().to_string();
        let mut base = Base::Boot(self.boot.key);
        let mut records = self.boot.records;
        let steps: Vec<u64> =
            keyframe::list(&parent.keyframes()).into_iter().filter(|at| *at <= step).collect();
        if let Some(&last) = steps.last() {
            let whole = keyframe::whole(&parent.keyframes(), &id, last)?;
            // A parent recorded on another engine builds on another boot keyframe: go from boot then.
            if whole.boot == Some(self.boot.key) {
                records = whole.keyframe.records;
                let taken = decision::taken(&stage.spec().schedule, last, &trace, records)?;
                stage.restore(&whole, &id, taken)?;
                base = Base::Step(last);
                for at in &steps {
                    let name = keyframe::file_name(*at);
                    share(&parent.keyframes().join(&name), &keyframe::dir_of(dir).join(&name))?;
                }
            }
        }
        let mut verifier =
            Verifier::new(trace.from_record(records), records).stopping(stage.machine().interrupter());
        let stop = stage.run(&Until::step(Step(step)), &mut verifier)?;
        if let Some(difference) = verifier.check()? {
            return Err(StageError::Diverged { id: parent.id(), difference: Box::new(difference) });
        }
        if stop != Stop::Step {
            let end = stage.machine().step().0;
            return Err(StageError::PastEnd { id: parent.id(), asked: step, end });
        }
        let records = verifier.number();
        let mut hasher = TraceHasher::default();
        let mut facts = Facts::default();
        for record in trace.iter().take(records as usize) {
            let record = record?;
            hasher.add(&record.header, &record.payload);
            facts.add(&record.header, &record.payload);
        }
        Ok(Start { records, hasher, facts, base })
    }

    /// Runs to the end, keeping keyframes on the way.
    fn drive(
        &self,
        stage: &mut Stage,
        sink: &mut Sink<'_, '_>,
        mut keeper: Option<Keeper>,
        limits: &Limits<'_>,
    ) -> Result<End, StageError> {
        let ticker = Ticker::start(stage.machine().interrupter(), limits);
        let spacing = limits.spacing;
        let mut last = Worked::now();
        let mut wait = limits.first;
        let mut grant = limits.grant;
        let (mut execs, mut settling) = (0, Worked::now());
        let mut reminder = limits.reminder;
        let end = loop {
            let until = limits.cut.until(stage.machine().step().0);
            let stop = stage.run(&until, sink)?;
            if let Some(error) = sink.error.take() {
                return Err(error.into());
            }
            if let Stop::Fault(GuestFault::NoProgress { step, rip, .. }) = stop {
                return Err(StageError::Spins { step, rip });
            }
            if let Some(end) = sink.facts.end(&stop) {
                break end;
            }
            if ticker.stuck() {
                return Err(StageError::NoStep { step: stage.machine().step().0 });
            }
            ticker.beat();
            if execs != sink.execs {
                (execs, settling) = (sink.execs, Worked::now());
            }
            let since_start =
                sink.facts.started.map_or(0, |(_, began)| stage.machine().now().0.saturating_sub(began));
            if stop == Stop::Step && limits.cut.reached(stage.machine().step().0, since_start) {
                break End::TimedOut;
            }
            if let Some(text) = reminder.take_if(|_| self.called.elapsed() >= SLOW) {
                (limits.notice)(text);
            }
            if ticker.timed_out() {
                break End::TimedOut;
            }
            if limits.interrupted.load(Ordering::Relaxed) {
                break End::Interrupted;
            }
            // Only at a commit may anything be kept: a stop elsewhere depends on the host.
            if let Some(keeper) = &mut keeper
                && last.elapsed() >= wait
                && stage.machine().at_commit()
            {
                let began = Worked::now();
                let waited = last.elapsed();
                if limits.thrifty
                    && let cost = stage.snapshot_cost(&self.opened.reads().contents)?
                    && !thrift::is_worth(cost.saturating_sub(grant), waited, settling.elapsed())
                {
                    // Looking takes time too.
                    wait = waited + spacing.max(began.elapsed() * 20);
                    continue;
                }
                grant = 0;
                keeper.keep(stage.snapshot()?, sink.writer.records())?;
                // Copying may take a fifth of the time at most.
                wait = spacing.max(began.elapsed() * 4);
                last = Worked::now();
            }
        };
        drop(ticker);
        if let Some(keeper) = keeper {
            keeper.finish()?;
        }
        Ok(end)
    }
}

/// Gives `to` the content of `from` without copying where the file system can; neither is ever written again.
fn share(from: &Path, to: &Path) -> Result<(), StageError> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let bytes = std::fs::read(from).map_err(|source| {
        let path = from.to_owned();
        crate::home::BlobError::Io { path, source }
    })?;
    Ok(crate::durable::replace(to, &bytes)?)
}

/// Writes the trace and passes records on.
struct Sink<'s, 'l> {
    writer: TraceWriter,
    facts: Facts,
    live: &'s mut (dyn FnMut(&RecordHeader, &[u8]) + 'l),
    error: Option<WriteError>,
    /// Programs started.
    execs: u64,
    programs: Programs,
    stop: Interrupter,
    called: Wall,
    first_event: Option<Duration>,
}

impl RecordSink for Sink<'_, '_> {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        self.facts.add(header, payload);
        if header.kind == REC_EXEC {
            self.execs += 1;
            let path = payload.split(|byte| *byte == 0).next().unwrap_or_default();
            if self.programs.len() < PROGRAMS && !self.programs.contains(path) {
                self.programs.insert(path.to_vec());
            }
        }
        if self.first_event.is_none() && header.thread != 0 {
            self.first_event = Some(self.called.elapsed());
        }
        if let Err(error) = self.writer.add(header, payload) {
            self.error.get_or_insert(error);
            self.stop.stop_soon();
            self.stop.stop_now();
        }
        (self.live)(header, payload);
    }
}

/// Locks even if another thread panicked while it held the lock: the data is replaced whole.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
