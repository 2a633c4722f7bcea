//! `rewind blame`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use blame::{
    cache,
    error::BlameError,
    file, follow, heap, plot,
    report::{self, Report},
    reread,
    scope::Symbols,
    search,
    target::{self, Choice, Target},
    text,
};
use indicatif::{ProgressBar, ProgressStyle};
use run::{clock::Wall, seek::Timeline};
use vmm::{EngineKind, address::Position};

use crate::{context, look::RunFiles, output, position};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// The position from which to look back: a step (3291), a step and instructions (3291+120), @job, @crash or @end
    #[arg(long, value_name = "P")]
    at: String,
    /// A variable, p->next->count, *p, `a[3].x`, *(int *)0x7f00@4, or @ADDRESS,SIZE
    #[arg(value_name = "EXPR", required_unless_present = "file")]
    expr: Option<String>,
    /// A file instead: all of it, the byte at an offset (PATH:120) or a line (PATH:L7)
    #[arg(long, value_name = "PATH[:OFFSET|:LINE]", conflicts_with_all = ["expr", "pid", "tid"])]
    file: Option<String>,
    /// Every access, back to where the bytes come from
    #[arg(long)]
    reads: bool,
    /// The process to look in
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// The thread to look in
    #[arg(long, value_name = "N")]
    tid: Option<u32>,
    /// With --reads: the latest N accesses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Where the written value came from, step by step, until it leaves the program
    #[arg(long)]
    follow: bool,
    /// A picture of the value over the run's steps (implies --reads)
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// kvm: find the step in which the value changed by reading it again at each step, at hardware speed. Reads, and
    /// writes of the same value, are not seen there
    #[arg(long, value_enum, default_value = "auto", value_name = "ENGINE", conflicts_with_all = ["reads", "plot", "file"])]
    engine: context::Engine,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Machines that search at the same time.
const MACHINES: usize = 2;

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let began = Wall::now();
    let home = context::home()?;
    let interrupted = context::interrupted()?;
    // Only the software CPU sees every access; it replays what any engine recorded.
    let open = || context::timeline(&home, &args.run, Some(EngineKind::Soft));
    let mut timelines = vec![open()?];
    let at = position::find(&args.at, &mut timelines[0])?;
    let question = question(&args, at);
    if let Some(known) = cache::get(timelines[0].run(), &question) {
        return finish(&args, &known, "known from before");
    }
    let mut symbols = symbols(&timelines[0])?;
    let choice = Choice { pid: args.pid, tid: args.tid };
    let target = match (&args.file, &args.expr) {
        (Some(file), _) => {
            let (path, spot) = file::parse(file);
            file::resolve(&mut timelines[0], at, path, spot)?
        }
        (None, expr) => {
            let expr = expr.as_deref().unwrap_or_default();
            target::resolve(&mut timelines[0], &mut symbols, at, expr, choice)?
        }
    };
    while timelines.len() < MACHINES && timelines[0].windows(at).len() > timelines.len() {
        timelines.push(open()?);
    }
    let all = args.reads || args.plot.is_some();
    let bar = bar();
    let progress = |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    };
    let options = search::Options {
        all,
        reads: all,
        limit: args.limit.map(|limit| limit as usize),
        bits: target.bits,
        interrupted: &interrupted,
        progress: &progress,
    };
    let found = match context::engine(args.engine) {
        Some(EngineKind::Kvm) => {
            let mut on_kvm = context::timeline(&home, &args.run, Some(EngineKind::Kvm))?;
            reread(&mut on_kvm, &mut timelines, &target, options)
        }
        _ => {
            let (pieces, origins) = (&target.pieces, &target.origins);
            search::search(&mut timelines, pieces, origins, target.root, target.len, at, options)
        }
    };
    bar.finish_and_clear();
    let found = found?;
    let mut report = report::report(&mut timelines[0], &mut symbols, &target, &found)?;
    if !all {
        let last = found.last.as_ref().map(|access| access.position);
        if let Some(event) = heap::freed(&mut timelines[0], &target, last, options)? {
            report.freed = Some(report::freed(&mut timelines[0], &mut symbols, &target, &event, last)?);
        }
    }
    if args.follow {
        report.follow = follow::follow(&mut timelines, &mut symbols, &target, &found, options)?;
    }
    if let Err(error) = cache::put(timelines[0].run(), &question, &report) {
        context::notice(&format!("the answer is not kept: {error}"));
    }
    finish(&args, &report, &format!("{:.1} s", began.elapsed().as_secs_f64()))
}

/// Finds the step of the last change on an engine that sees no accesses, then the instruction on the software CPU.
fn reread(
    on_kvm: &mut Timeline<'_>,
    timelines: &mut [Timeline<'_>],
    target: &Target,
    options: search::Options<'_>,
) -> Result<search::Found, BlameError> {
    let change = reread::last_change(on_kvm, target, options)?;
    let (at, pieces, origins) = match change.step {
        Some(step) => {
            let (at, pieces) = reread::behind(&mut timelines[0], target, step)?;
            let origins = vec![None; pieces.len()];
            (at, pieces, origins)
        }
        // It never changed: where it comes from is in the accesses alone.
        None => (target.at, target.pieces.clone(), target.origins.clone()),
    };
    let mut found = search::search(timelines, &pieces, &origins, target.root, target.len, at, options)?;
    found.windows += change.windows;
    Ok(found)
}

/// Everything that makes the answer another one.
fn question(args: &Args, at: Position) -> String {
    let what = args.file.as_ref().map_or_else(
        || format!("expression {}", args.expr.as_deref().unwrap_or_default()),
        |file| format!("file {file}"),
    );
    let Args { pid, tid, follow, limit, engine, .. } = args;
    let engine = if matches!(engine, context::Engine::Kvm) { "\nengine kvm" } else { "" };
    let all = args.reads || args.plot.is_some();
    format!("{what}\nat {at} pid {pid:?} tid {tid:?} all {all} follow {follow} limit {limit:?}{engine}")
}

fn finish(args: &Args, report: &Report, took: &str) -> Result<ExitCode> {
    if let Some(path) = &args.plot {
        let picture = plot::svg(report).context("nothing to draw: no access has a number for its value")?;
        std::fs::write(path, picture).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        output::json(&serde_json::to_value(report)?)?;
    } else {
        for line in text::report(report, took).lines() {
            output::line(output::printable(line))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("searching back {bar:30} {pos}/{len} windows {elapsed}") {
        bar.set_style(style);
    }
    bar
}

/// Debug information and sources of what ran.
fn symbols(timeline: &Timeline<'_>) -> Result<Symbols> {
    let files = RunFiles::of(timeline)?;
    let sources = files.clone();
    Ok(Symbols::new(files.files()).with_source(move |path| sources.source(path)))
}
