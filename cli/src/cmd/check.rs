//! `rewind check`.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, anyhow};
use check::{
    base::{Base, BaseError, Worker},
    decision::Decision,
    describe::first_difference,
    facts::Facts,
    learn::learn,
    pool::{Pool, Subject},
    report,
    schedule_file::ScheduleFile,
    search::{Explained, Judged, Search, explain},
    strategy::StrategyName,
    verdict::{ALL, Property, violated},
};
use debug::look::Files;
use indicatif::{ProgressBar, ProgressStyle};
use run::{
    boot::{self, Boot, Kernel},
    home::Home,
    record::{Inputs, Options, SPACING},
    root::Root,
    spec::{Schedule, Spec},
    stage::Stage,
};
use serde_json::json;
use vmm::{EngineKind, Machine};

use super::run::JobArgs;
use crate::{context, guest, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Schedules to try besides the undisturbed one
    #[arg(long, value_name = "N", default_value_t = 64)]
    schedules: u64,
    /// How schedules are made: mix (all by turns), random, pct:D, fair-stall or accesses
    #[arg(long, value_name = "NAME", default_value = "mix")]
    strategy: StrategyName,
    /// Seed of the schedules
    #[arg(long, value_name = "S", default_value_t = 1)]
    schedule_seed: u64,
    /// What must hold (all of them if not given): same-outcome, sdk, no-crash, no-hang
    #[arg(long = "property", value_name = "NAME")]
    properties: Vec<Property>,
    /// Go on after the first failing schedule
    #[arg(long)]
    all: bool,
    /// Schedules tried at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Keep the narrowed failing schedule in this file, for --replay
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Run the schedule of this file instead of searching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "schedules", "all"])]
    replay: Option<PathBuf>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// Everything a schedule's run is made from.
struct Setting {
    home: Home,
    kernel: Kernel,
    roots: Vec<Root>,
    spec: Spec,
    engine: EngineKind,
    boot: Arc<Boot>,
}

impl Setting {
    fn machine(&self) -> Result<Machine, BaseError> {
        let failed = |error: &dyn std::fmt::Display| BaseError::Make(error.to_string());
        let mut images = Vec::new();
        for root in &self.roots {
            images.push((root.open)().map_err(|error| failed(&format!("{}: {error}", root.source)))?);
        }
        let stage = Stage::new(&self.home, &self.spec, self.engine, self.boot.clone(), images);
        Ok(stage.map_err(|error| failed(&error))?.into_machine())
    }

    /// Records the run of these decisions, so that it can be replayed, asked and gone back in.
    fn keep(&self, decisions: &[Decision]) -> Result<String> {
        let mut spec = self.spec.clone();
        spec.schedule = Schedule::new(0, decisions.to_vec());
        let make = || Ok(self.kernel.clone());
        let inputs = Inputs { spec, kernel: &make, roots: &self.roots, parent: None };
        let mut options = Options {
            engine: self.engine,
            timeout: None,
            interrupted: context::interrupted()?,
            keyframes: Some(SPACING),
            again: false,
            live: &mut |_, _| {},
            notice: &context::notice,
        };
        Ok(run::record::record(&self.home, &inputs, &mut options)?.run.id().to_string())
    }

    /// Reads files of the root for symbols: only a directory, or this machine's own root, can be read by path.
    fn files(&self) -> Files {
        use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
        let source = match self.roots.first() {
            Some(root) if root.logged => "/".to_owned(),
            Some(root) => root.source.clone(),
            None => String::new(),
        };
        let root = open(&source, OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        Files::new(Box::new(move |path| {
            use std::{io::Read as _, os::unix::ffi::OsStrExt as _};
            let path = std::ffi::OsStr::from_bytes(path);
            // As the guest sees it: a link to an absolute path stays inside the root.
            let opened = openat2(
                root.as_ref()?,
                path,
                OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK,
                Mode::empty(),
                ResolveFlags::IN_ROOT,
            );
            let mut content = Vec::new();
            std::fs::File::from(opened.ok()?).take(1 << 30).read_to_end(&mut content).ok()?;
            Some(content)
        }))
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let kernel = guest::kernel()?;
    let roots = args.job.roots(&home)?;
    let spec = args.job.spec(&home, &kernel, &roots)?;
    let engine = args.job.engine(&home)?;
    let boot = Arc::new(boot::ensure(&home, &spec, engine, &|| Ok(kernel.clone()), &context::notice)?);
    let setting = Setting { home, kernel, roots, spec, engine, boot };
    let base = Arc::new(Base::new(&mut || setting.machine(), None)?);
    let properties = if args.properties.is_empty() { ALL.to_vec() } else { args.properties.clone() };
    match &args.replay {
        Some(path) => replay(&setting, &base, &properties, path, args.json),
        None => search(&setting, base, &properties, &args),
    }
}

fn worker(setting: &Setting, base: &Arc<Base>) -> Result<Worker> {
    Ok(Worker::new(setting.machine()?, base.clone())?)
}

fn search(setting: &Setting, base: Arc<Base>, properties: &[Property], args: &Args) -> Result<ExitCode> {
    let base_run = setting.keep(&[])?;
    let facts = learn(&mut worker(setting, &base)?)?;
    if args.strategy == StrategyName::Accesses && facts.accesses.is_empty() {
        context::notice(
            "the program's threads share no memory that was seen: preempting at system calls instead",
        );
    }
    let jobs = u64::from(args.jobs).min(args.schedules.max(1));
    let subjects = (0..jobs).map(|_| Ok(Box::new(worker(setting, &base)?) as Box<dyn Subject>));
    let mut pool = Pool::new(subjects.collect::<Result<_>>()?);
    let strategy = args.strategy.make();
    let search = Search {
        strategy: &*strategy,
        seed: args.schedule_seed,
        schedules: args.schedules,
        properties,
        all: args.all,
    };
    let bar = progress(args.schedules);
    let mut failed = None;
    let found = search.run(&mut pool, &facts, &base.reference, |judged| {
        bar.inc(1);
        let run = (judged.index == 0).then_some(base_run.as_str());
        let shown = bar.suspend(|| show_schedule(judged, run, args));
        if let Err(error) = shown {
            failed.get_or_insert(error);
        }
    })?;
    bar.finish_and_clear();
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(judged) = &found.first {
        let explained = explain(&mut pool, properties, &base.reference, judged)?;
        drop(pool);
        tell(setting, &base, judged, &explained, args)?;
        if let Some(path) = &args.save {
            save(&facts, &explained, path)?;
        }
    }
    let promise = strategy.promise(&facts, args.schedules);
    if args.json {
        let missing: Vec<_> =
            found.coverage.missing().iter().map(|(kind, name)| json!([kind.name(), name])).collect();
        output::json(&json!({
            "kind": "summary", "tried": found.tried, "failing": found.failing, "never": missing, "promise": promise,
            "threads": facts.thread_count(), "points": facts.point_count(),
        }))?;
    } else {
        print_text(&report::summary(&found, &promise))?;
    }
    Ok(if found.first.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print_text(text: &str) -> Result<()> {
    text.lines().try_for_each(|line| output::line(output::printable(line)))
}

fn progress(schedules: u64) -> ProgressBar {
    let bar = ProgressBar::new(schedules + 1);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} schedules  {per_sec}  {elapsed}") {
        bar.set_style(style);
    }
    bar
}

fn show_schedule(judged: &Judged, run: Option<&str>, args: &Args) -> Result<()> {
    if args.json {
        let violates: Vec<_> = judged.violates.iter().map(|property| property.name()).collect();
        return output::json(&json!({
            "kind": "schedule", "index": judged.index, "end": judged.trial.ending.word(), "steps": judged.trial.steps,
            "output": judged.trial.output_id(), "decisions": judged.decisions.len(), "run": run, "violates": violates,
        }));
    }
    output::line(report::schedule_line(judged, run))
}

/// Describes, keeps and prints what was found.
fn tell(
    setting: &Setting,
    base: &Arc<Base>,
    judged: &Judged,
    explained: &Explained,
    args: &Args,
) -> Result<()> {
    let mut files = setting.files();
    let described = worker(setting, base)?.describe(explained, &mut files)?;
    let failing = setting.keep(&explained.decisions)?;
    let mut order: Vec<usize> = (0..explained.decisions.len()).collect();
    order.sort_by_key(|&i| explained.failing.applied.get(i).copied().flatten());
    let mut left_out = None;
    let mut passing = None;
    let mut difference = None;
    if let Some((decision, trial)) = &explained.partner {
        left_out = order.iter().position(|&i| explained.decisions[i] == *decision).map(|at| at + 1);
        let less: Vec<_> = explained.decisions.iter().copied().filter(|own| own != decision).collect();
        passing = Some(setting.keep(&less)?);
        difference = first_difference(&explained.failing, trial);
    }
    let story = report::Story {
        judged,
        explained,
        reference: &base.reference,
        described: &described,
        left_out,
        difference: difference.as_ref(),
        runs: (Some(&failing), passing.as_deref()),
    };
    if args.json {
        return output::json(&json!({
            "kind": "failure", "schedule": judged.index, "run": failing, "passing": passing,
            "decisions": described, "left_out": left_out, "difference": difference,
            "violations": report::violations(explained, &base.reference),
        }));
    }
    print_text(&report::story(&story))
}

fn save(facts: &Facts, explained: &Explained, path: &std::path::Path) -> Result<()> {
    let names = explained.violates.iter().map(|property| property.name().to_owned()).collect();
    let file = ScheduleFile::new(&explained.decisions, names, |name| facts.path(name), |_| String::new());
    let file = file.ok_or_else(|| {
        anyhow!("a decision names a thread that schedule 0 does not have; it cannot be saved")
    })?;
    let new = path.with_extension("new");
    std::fs::write(&new, file.to_text()).with_context(|| format!("cannot write {}", new.display()))?;
    std::fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))?;
    context::notice(&format!("saved; `rewind check --replay {}` runs it as a test", path.display()));
    Ok(())
}

/// A saved schedule as a regression test: passes if nothing is violated, and says which places are gone.
fn replay(
    setting: &Setting,
    base: &Arc<Base>,
    properties: &[Property],
    path: &std::path::Path,
    as_json: bool,
) -> Result<ExitCode> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let parsed = ScheduleFile::parse(&text).with_context(|| path.display().to_string())?;
    let decisions = parsed.decisions().with_context(|| path.display().to_string())?;
    let trial = worker(setting, base)?.run(&decisions, false)?;
    let violates = violated(properties, &trial, &base.reference);
    let gone: Vec<&str> = parsed
        .decisions
        .iter()
        .zip(&trial.applied)
        .filter(|(_, at)| at.is_none())
        .map(|(saved, _)| saved.thread.as_str())
        .collect();
    let run = setting.keep(&decisions)?;
    if as_json {
        let names: Vec<_> = violates.iter().map(|property| property.name()).collect();
        output::json(&json!({
            "kind": "replay", "end": trial.ending.word(), "steps": trial.steps, "run": run, "violates": names,
            "not_reached": gone.len(),
        }))?;
    } else {
        let judged =
            Judged { index: 1, strategy: String::new(), decisions, trial, violates: violates.clone() };
        output::line(report::schedule_line(&judged, Some(&run)))?;
        if !gone.is_empty() {
            output::line(format!(
                "{} of {} decisions were not reached (threads {}): the program has changed there, and this test may \
                 no longer test what it did",
                gone.len(),
                parsed.decisions.len(),
                gone.join(", ")
            ))?;
        }
    }
    Ok(if violates.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
