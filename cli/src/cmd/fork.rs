//! `rewind fork`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use rewind_platform::record::RecordHeader;
use run::{
    boot::Kernel,
    clock::Wall,
    decision::Decision,
    record::{Cut, Inputs, Options},
};
use vmm::EngineKind;

use super::check::{self, Setting};
use crate::{
    context::{self, Engine},
    gather,
    live::Live,
    position,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run to fork
    run: String,
    /// The step from which the fork may differ
    step: String,
    /// Run threads from there on as schedule N of `check` would: the same number is the same schedule
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    schedule: Option<u64>,
    /// Decisions, as JSON: a list of {"place": {"thread", "syscall", "returns", "offset"}, "action": "preempt" |
    /// {"stall": NS} | {"late-timer": NS} | {"rank": N}}; threads are named as in `events --json`
    #[arg(long, value_name = "FILE", conflicts_with = "schedule")]
    decisions: Option<PathBuf>,
    /// Run even if this fork is known, and compare
    #[arg(long)]
    again: bool,
    /// Milliseconds of processor time between keyframes; none in the first four times as long [default: as `run` has it]
    #[arg(long, value_name = "MS")]
    spacing: Option<u64>,
    /// Engine; auto = the parent's
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// Print events and the result as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let called = Wall::now();
    let home = context::home()?;
    let mut decisions: Vec<Decision> = match &args.decisions {
        None => Vec::new(),
        Some(path) => {
            let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_slice(&text)
                .with_context(|| format!("{} is no list of decisions", path.display()))?
        }
    };
    let timeline = context::timeline(&home, &args.run, context::engine(args.engine))?;
    let at = position::parse(&args.step, &timeline)?;
    if at.offset.0 != 0 {
        bail!("a fork begins at a step, not inside one");
    }
    let step = at.step.0;
    if step > timeline.last() {
        bail!(
            "step {step} is past the end of run {}: it ends at step {}",
            timeline.run().id(),
            timeline.last()
        );
    }
    drop(timeline);
    let parent = context::find(&home, &args.run)?;
    let recorded_on = parent.recording()?.map_or(EngineKind::Soft, |recording| recording.engine);
    let engine = context::engine(args.engine).unwrap_or(recorded_on);
    if let Some(number) = args.schedule {
        let setting = Setting::of_run(context::home()?, &args.run, engine)?;
        decisions = check::schedule(&setting, step, number)?;
        context::notice(&format!("schedule {number}: {} decisions from step {step} on", decisions.len()));
    }
    let mut spec = parent.spec()?.closed();
    spec.schedule = spec.schedule.then(step, decisions);
    // Then it is recorded as the run, which may be one that came from elsewhere: no second hold on it is in the way.
    let itself = spec == parent.spec()?.closed();
    if itself {
        context::notice(match spec.schedule.segments() {
            [] => "without decisions the fork is the run itself",
            _ => "with these decisions the fork is the run itself",
        });
    }
    let roots = crate::root::of_run(&home, &parent, &spec)?;
    let kernel = || Kernel::of(&home, &spec);
    let live = Live::new(args.json);
    let mut show = |header: &RecordHeader, payload: &[u8]| live.show(header, payload);
    let mut options = Options {
        engine,
        timeout: None,
        interrupted: context::stopped()?,
        keyframes: super::run::spaced(args.spacing),
        again: args.again,
        doubt: args.again,
        spin_limit: None,
        called,
        cut: Cut::default(),
        reminder: None,
        live: &mut show,
        notice: &context::notice,
        gather: &gather::of(&spec),
    };
    let parent = Some(parent).filter(|_| !itself);
    let from = parent.as_ref().map(|parent| (parent, step));
    let inputs = Inputs { spec: spec.clone(), kernel: &kernel, roots: &roots, parent: from };
    let recorded = run::record::record(&home, &inputs, &mut options)?;
    if recorded.found {
        for record in context::trace(&recorded.run)?.iter() {
            let record = record?;
            // What the parent did is the parent's.
            if record.header.step >= step {
                live.show(&record.header, &record.payload);
            }
        }
    }
    super::run::finish(&recorded, args.json)?;
    Ok(ExitCode::from(recorded.outcome.end.exit_status()))
}
