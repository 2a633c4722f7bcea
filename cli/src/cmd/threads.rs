//! `rewind threads`.

use std::process::ExitCode;

use anyhow::{Result, bail};
use run::processes::{Processes, Stretch, Thread};
use serde_json::json;

use crate::{context, output, position};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// First step (also @job, @crash, @end)
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Last step
    #[arg(long, value_name = "STEP")]
    to: Option<String>,
    /// Columns of the picture
    #[arg(long, value_name = "N", default_value_t = 72, value_parser = clap::value_parser!(u64).range(8..=1000))]
    width: u64,
    /// One JSON object a stretch of running
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let run = context::find(&home, &args.run)?;
    let (trace, outcome) = (context::trace(&run)?, run.outcome()?);
    let last = outcome.as_ref().map_or(trace.last_step(), |outcome| outcome.steps);
    let started = outcome.and_then(|outcome| outcome.started).unwrap_or(0);
    let bound = |text: Option<String>| text.map(|text| position::step(&text, &run)).transpose();
    let (from, to) = (bound(args.from)?.unwrap_or(started), bound(args.to)?.unwrap_or(last));
    if from > to {
        bail!("step {from} is behind {to}: nothing to show (run {} ends at step {last})", run.id());
    }
    let (threads, lanes) = Processes::at(trace.iter(), to)?.lanes(to);
    let shown = |lane: &&Stretch| lane.to > from && lane.from <= to;
    if args.json {
        for lane in lanes.iter().filter(shown) {
            output::json(&json!(lane))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let width = args.width.min(to - from + 1);
    output::line(format_args!("steps {from} to {to}, {} a column", (to - from + 1).div_ceil(width)))?;
    for thread in &threads {
        let own: Vec<&Stretch> = lanes.iter().filter(shown).filter(|lane| lane.tid == thread.tid).collect();
        if !own.is_empty() {
            output::line(picture(thread, &own, from, to, width))?;
        }
    }
    output::line("# ran all of the column, - part of it, ! was taken off while it could have run on")?;
    Ok(ExitCode::SUCCESS)
}

fn picture(thread: &Thread, own: &[&Stretch], from: u64, to: u64, width: u64) -> String {
    let span = to - from + 1;
    let mut text = format!("{:>6} {:<16.16} ", thread.tid, output::printable(&thread.command));
    for column in 0..width {
        let begin = from + column * span / width;
        let end = (from + (column + 1) * span / width).max(begin + 1);
        let inside = |lane: &&&Stretch| lane.from < end && lane.to > begin;
        let ran: u64 = own.iter().filter(inside).map(|lane| lane.to.min(end) - lane.from.max(begin)).sum();
        let taken = own.iter().any(|lane| lane.preempted && (begin..end).contains(&lane.to));
        text.push(match ran {
            _ if taken => '!',
            0 => ' ',
            ran if ran >= end - begin => '#',
            _ => '-',
        });
    }
    text.truncate(text.trim_end().len());
    text
}
