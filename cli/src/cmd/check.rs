//! `rewind check`.

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
};

use anyhow::{Context, Result, bail};
use check::{
    base::{Base, BaseError, BaseOptions, Worker},
    decision::Decision,
    describe::Described,
    difference::first_difference,
    facts::Facts,
    learn::learn,
    pool::{Pool, Subject},
    report,
    schedule_file::ScheduleFile,
    search::{Explained, Judged, Search, explain},
    strategy::StrategyName,
    trial::Trial,
    verdict::{ALL, Property, violated},
};
use debug::look::Files;
use indicatif::{ProgressBar, ProgressStyle};
use run::{
    boot::{self, Boot, Kernel},
    clock::Wall,
    home::{Home, RunDir},
    outcome::End,
    record::{Cut, Inputs, Keyframes, Options},
    root::Root,
    spec::{Schedule, Spec},
    stage::Stage,
};
use serde_json::json;
use vmm::{EngineKind, Machine, address::Step};

use super::run::JobArgs;
use crate::{context, gather, guest, look::RunFiles, output, position};

#[derive(clap::Args)]
#[command(mut_arg("command", |command| command.required(false)))]
pub(crate) struct Args {
    #[command(flatten)]
    job: JobArgs,
    /// Schedules to try besides the undisturbed one
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    schedules: u64,
    /// How schedules are made: mix (all by turns), random, pct:D, fair-stall or accesses
    #[arg(long, value_name = "NAME", default_value = "mix")]
    strategy: StrategyName,
    /// Seed of the schedules
    #[arg(long, value_name = "S", default_value_t = SCHEDULE_SEED)]
    schedule_seed: u64,
    /// What must hold (all of them if not given): same-outcome, sdk, no-crash, no-hang
    #[arg(long = "property", value_name = "NAME")]
    properties: Vec<Property>,
    /// Lines of output may come in any order (for same-outcome)
    #[arg(long)]
    any_order: bool,
    /// Go on after the first failing schedule
    #[arg(long)]
    all: bool,
    /// Schedules tried at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    /// Cut a schedule off (as hung) after this much virtual time from the start of the job: seconds, or with ms, s, m, h
    #[arg(long, value_name = "T", value_parser = duration)]
    timeout: Option<u64>,
    /// Disturb nothing before this step (with --run also @job, @crash or @end)
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Check the job of this run, as it was recorded, instead of a command
    #[arg(
        long,
        value_name = "RUN",
        conflicts_with_all = ["command", "root", "cwd", "env", "user", "cores", "seed", "epoch", "outputs", "tty", "clock", "memory"]
    )]
    run: Option<String>,
    /// Keep the narrowed failing schedule in this file, for --replay
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Run the schedule of this file instead of searching
    #[arg(long, value_name = "FILE", conflicts_with_all = ["save", "schedules", "all", "strategy", "schedule_seed"])]
    replay: Option<PathBuf>,
    /// One JSON object per line
    #[arg(long)]
    json: bool,
}

/// A virtual duration in nanoseconds.
fn duration(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1e6,
        "" | "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        other => return Err(format!("{other} is no unit of time: ms, s, m or h")),
    };
    match digits.parse::<f64>() {
        Ok(number) if number > 0.0 && number * unit <= 1e18 => Ok((number * unit) as u64),
        _ => Err("a time like 500ms, 2s or 10m".into()),
    }
}

/// The run that a fork is of, as a hint.
fn recorded_parent(run: &RunDir) -> String {
    let parent = run.recording().ok().flatten().and_then(|recording| recording.parent);
    parent.map_or(String::new(), |(id, _)| format!(", which it is a fork of: {id}"))
}

/// Everything a schedule's run is made from.
pub(super) struct Setting {
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
    /// `trial` is what came of them: a run that never ends is cut off where the trial was.
    fn keep(&self, decisions: &[Decision], trial: &Trial) -> Result<String> {
        let mut spec = self.spec.clone();
        spec.schedule = Schedule::new(0, decisions.to_vec());
        let make = || Ok(self.kernel.clone());
        let inputs = Inputs { spec, kernel: &make, roots: &self.roots, parent: None };
        let mut options = Options {
            engine: self.engine,
            timeout: None,
            interrupted: context::stopped()?,
            keyframes: Keyframes::Thrifty,
            again: false,
            doubt: false,
            spin_limit: None,
            called: Wall::now(),
            cut: Cut { step: (trial.ending == End::TimedOut).then_some(trial.steps), virtual_ns: None },
            reminder: None,
            live: &mut |_, _| {},
            notice: &context::notice,
            gather: &gather::of(&self.spec),
        };
        Ok(run::record::record(&self.home, &inputs, &mut options)?.run.id().to_string())
    }

    /// Files of the root, for symbols.
    fn files(&self) -> Files {
        self.roots
            .first()
            .map_or_else(|| Files::new(Box::new(|_| None)), |root| RunFiles::of_root(root).files())
    }

    /// Of the command line.
    fn of_command(home: Home, job: &super::run::JobArgs, timeout: Option<u64>) -> Result<Setting> {
        let kernel = guest::kernel(&home)?;
        let roots = job.roots(&home, crate::root::Moment::Now)?;
        let mut spec = job.spec(&kernel, &roots)?;
        let mut engine = job.engine(&home)?;
        job.settle(&home, &kernel, &roots, &mut spec, &mut engine, timeout)?;
        Setting::new(home, kernel, roots, spec, engine)
    }

    /// Of a run that was recorded.
    pub(super) fn of_run(home: Home, prefix: &str, engine: EngineKind) -> Result<Setting> {
        let run = context::find(&home, prefix)?;
        let spec = run.spec()?.closed();
        if !spec.schedule.segments().is_empty() {
            bail!(
                "run {} is one under a schedule: give the undisturbed run of its command{}",
                run.id(),
                recorded_parent(&run)
            );
        }
        let kernel = Kernel::of(&home, &spec)?;
        let roots = crate::root::of_run(&home, &run, &spec)?;
        Setting::new(home, kernel, roots, spec, engine)
    }

    fn new(home: Home, kernel: Kernel, roots: Vec<Root>, spec: Spec, engine: EngineKind) -> Result<Setting> {
        let boot = boot::ensure(&home, &spec, engine, &|| Ok(kernel.clone()), &context::notice)?;
        Ok(Setting { home, kernel, roots, spec, engine, boot: Arc::new(boot) })
    }
}

pub(crate) fn run(mut args: Args) -> Result<ExitCode> {
    // A program that makes a worker for each core (a language's runtime, a thread pool) has no races with one.
    args.job.cores.get_or_insert(2);
    if args.run.is_none() && args.job.command.is_empty() {
        clap::Error::raw(
            clap::error::ErrorKind::MissingRequiredArgument,
            "no command to check: give it after --, or a recorded run with --run\n",
        )
        .exit();
    }
    let home = context::home()?;
    let from = args.from.as_deref().map(|text| from(text, &home, args.run.as_deref())).transpose()?;
    let setting = match &args.run {
        Some(prefix) => {
            let engine = args.job.engine(&home)?;
            Setting::of_run(home, prefix, engine)?
        }
        None => Setting::of_command(home, &args.job, args.timeout)?,
    };
    let options = BaseOptions { timeout: args.timeout, any_order: args.any_order, from };
    let base = Arc::new(Base::new(&mut || setting.machine(), &options)?);
    let properties = if args.properties.is_empty() { ALL.to_vec() } else { args.properties.clone() };
    match &args.replay {
        Some(path) => replay(&setting, &base, &properties, path, args.json),
        None => search(&setting, base, &properties, &args),
    }
}

/// `--from`: of a command nothing is recorded yet that a position could name.
fn from(text: &str, home: &Home, run: Option<&str>) -> Result<Step> {
    match (run, text.parse()) {
        (Some(prefix), _) => Ok(Step(position::step(text, &context::find(home, prefix)?)?)),
        (None, Ok(step)) => Ok(Step(step)),
        (None, Err(_)) => clap::Error::raw(
            clap::error::ErrorKind::ValueValidation,
            format!("--from {text}: a step's number; positions have a meaning in a recorded run only, given with --run\n"),
        )
        .exit(),
    }
}

/// The decisions of schedule `number` of those that `check` would try from step `from` of the setting's run on.
pub(super) fn schedule(setting: &Setting, from: u64, number: u64) -> Result<Vec<Decision>> {
    let options = BaseOptions { timeout: None, any_order: false, from: Some(Step(from)) };
    let base = Arc::new(Base::new(&mut || setting.machine(), &options)?);
    let facts = learn(&mut worker(setting, &base)?, &mut setting.files())?;
    Ok(StrategyName::Mix.make().schedule(SCHEDULE_SEED, number, &facts))
}

/// Seed of the schedules where none is given.
const SCHEDULE_SEED: u64 = 1;

fn worker(setting: &Setting, base: &Arc<Base>) -> Result<Worker> {
    Ok(Worker::new(setting.machine()?, base.clone())?)
}

fn search(setting: &Setting, base: Arc<Base>, properties: &[Property], args: &Args) -> Result<ExitCode> {
    let base_run = setting.keep(&[], &base.reference)?;
    let facts = learn(&mut worker(setting, &base)?, &mut setting.files())?;
    if !base.forks {
        context::notice("the job is one thread from start to end: schedules only move its timers");
    }
    if base.forks && args.strategy == StrategyName::Accesses && facts.accesses.is_empty() {
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
    let stopped = context::stopped()?;
    let mut failed = None;
    let found = search.run(&mut pool, &facts, &base.reference, |judged| {
        bar.inc(1);
        let run = (judged.index == 0).then_some(base_run.as_str());
        let shown = bar.suspend(|| show_schedule(judged, run, args));
        if let Err(error) = shown {
            failed.get_or_insert(error);
        }
        failed.is_none() && !stopped.load(Ordering::Relaxed)
    })?;
    bar.finish_and_clear();
    if let Some(error) = failed {
        return Err(error);
    }
    if let Some(judged) = &found.first {
        let explained = explain(&mut pool, properties, &base.reference, judged)?;
        drop(pool);
        let mut worker = worker(setting, &base)?;
        let mut files = setting.files();
        let described = worker.describe(&explained, &facts, &mut files)?;
        tell(setting, &base, judged, &explained, &described, (&mut worker, &mut files), args)?;
        if let Some(path) = &args.save {
            save(&facts, &explained, &described, (&mut worker, &mut files), path)?;
        }
    }
    if stopped.load(Ordering::Relaxed) {
        context::notice("stopped before all were tried");
    }
    let promise = strategy.promise(&facts, found.tried.saturating_sub(1));
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
    Ok(match found.first {
        Some(_) => ExitCode::FAILURE,
        // Nothing was found in what was tried, which is not what was asked for.
        None if stopped.load(Ordering::Relaxed) => ExitCode::from(context::INTERRUPTED),
        None => ExitCode::SUCCESS,
    })
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

/// Keeps and prints what was found.
fn tell(
    setting: &Setting,
    base: &Arc<Base>,
    judged: &Judged,
    explained: &Explained,
    described: &[Described],
    (worker, files): (&mut Worker, &mut Files),
    args: &Args,
) -> Result<()> {
    let steps = explained.failing.steps;
    let out_of_time = base.deadline.is_some() && Step(steps) < base.limit;
    let mut end = report::EndFacts { out_of_time, ..report::EndFacts::default() };
    if explained.violates.contains(&Property::NoHang) {
        end.stuck = worker.stuck(&explained.decisions, files)?;
    }
    if let Some(crash) = explained.failing.crashes.first() {
        end.crash = worker.crash_line(&explained.decisions, crash, files)?;
    }
    let failing = setting.keep(&explained.decisions, &explained.failing)?;
    let mut order: Vec<usize> = (0..explained.decisions.len()).collect();
    order.sort_by_key(|&i| explained.failing.applied.get(i).copied().flatten());
    let mut left_out = None;
    let mut passing = None;
    let mut difference = None;
    if let Some((decision, trial)) = &explained.partner {
        left_out = order.iter().position(|&i| explained.decisions[i] == *decision).map(|at| at + 1);
        let less: Vec<_> = explained.decisions.iter().copied().filter(|own| own != decision).collect();
        passing = Some(setting.keep(&less, trial)?);
        difference = first_difference(&explained.failing, trial);
    }
    let story = report::Story {
        judged,
        explained,
        reference: &base.reference,
        described,
        left_out,
        end: &end,
        difference: difference.as_ref(),
        runs: (Some(&failing), passing.as_deref()),
    };
    if args.json {
        return output::json(&json!({
            "kind": "failure", "schedule": judged.index, "strategy": judged.strategy, "run": failing,
            "passing": passing, "from": judged.decisions.len(), "waiting": end.stuck,
            "decisions": described, "left_out": left_out, "difference": difference,
            "violations": report::violations(explained, &base.reference, &end),
        }));
    }
    print_text(&report::story(&story))
}

fn save(
    facts: &Facts,
    explained: &Explained,
    described: &[Described],
    (worker, files): (&mut Worker, &mut Files),
    path: &std::path::Path,
) -> Result<()> {
    let names = explained.violates.iter().map(|property| property.name().to_owned()).collect();
    let mut order: Vec<usize> = (0..explained.decisions.len()).collect();
    order.sort_by_key(|&i| explained.failing.applied.get(i).copied().flatten());
    let mut before: Vec<Decision> = Vec::new();
    let mut saved = Vec::new();
    for (n, decision) in order.into_iter().map(|i| explained.decisions[i]).enumerate() {
        let commit = worker.commit_at(&before, &decision.place, files)?;
        let code = match decision.place.offset {
            0 => None,
            _ => worker.code_at(&before, &decision.place, files)?,
        };
        before.push(decision);
        saved.push((decision, commit, code, described.get(n).map_or_else(String::new, Described::text)));
    }
    let file = ScheduleFile::new(&saved, names, |name| facts.path(name));
    let file = file.context("a decision names a thread whose parents are not known; it cannot be saved")?;
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
    let saved = parsed.decisions().with_context(|| path.display().to_string())?;
    let mut worker = worker(setting, base)?;
    let mut files = setting.files();
    // The saved call, and inside a step the saved code, are looked for: a change of the program moves both.
    let mut decisions: Vec<Decision> = Vec::new();
    let mut gone: Vec<usize> = Vec::new();
    let mut moved: Vec<usize> = Vec::new();
    for (i, (decision, entry)) in saved.iter().zip(&parsed.decisions).enumerate() {
        let mut place = match &entry.commit {
            Some(commit) => worker.find_commit(&decisions, &decision.place, commit, &mut files)?,
            None => Some(decision.place),
        };
        if let (Some(at), Some(code)) = (place, &entry.code) {
            place = worker.find_code(&decisions, &at, code, &mut files)?;
        }
        if place.is_some_and(|place| place.syscall != decision.place.syscall) {
            moved.push(i);
        }
        match place {
            Some(place) => decisions.push(Decision { place, ..*decision }),
            None => gone.push(i),
        }
    }
    let trial = worker.run(&decisions, false)?;
    let violates = violated(properties, &trial, &base.reference);
    let mut kept = (0..saved.len()).filter(|i| !gone.contains(i)).collect::<Vec<_>>().into_iter();
    let missed: Vec<usize> =
        trial.applied.iter().filter_map(|at| kept.next().filter(|_| at.is_none())).collect();
    gone.extend(missed);
    gone.sort_unstable();
    let run = setting.keep(&decisions, &trial)?;
    let nothing_left = !saved.is_empty() && gone.len() == saved.len();
    if as_json {
        let names: Vec<_> = violates.iter().map(|property| property.name()).collect();
        output::json(&json!({
            "kind": "replay", "end": trial.ending.word(), "steps": trial.steps, "run": run, "violates": names,
            "decisions": saved.len(), "moved": moved, "not_reached": gone,
        }))?;
    } else {
        let strategy = String::new();
        let judged = Judged { index: 1, strategy, decisions, trial, violates: violates.clone() };
        output::line(report::schedule_line(&judged, Some(&run)))?;
        for i in &moved {
            output::line(format!("decision {} is at another system call of its thread now", i + 1))?;
        }
        for i in &gone {
            let entry = &parsed.decisions[*i];
            let was = if entry.was.is_empty() { String::new() } else { format!(" (it was: {})", entry.was) };
            let text = format!(
                "decision {} was not reached: thread {} has no such place any more{was}",
                i + 1,
                entry.thread
            );
            output::line(output::printable(&text))?;
        }
        if nothing_left {
            output::line(
                "no decision of the file was reached: the program has changed, and this tests nothing; search again and save",
            )?;
        } else if !gone.is_empty() {
            output::line("the program has changed there, and this test may no longer test what it did")?;
        }
    }
    Ok(if violates.is_empty() && !nothing_left { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
