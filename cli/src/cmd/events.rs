//! `rewind events`.

use std::process::ExitCode;

use anyhow::Result;
use clap::builder::PossibleValuesParser;
use rewind_platform::{
    control::{TRACE_FAULT, TRACE_FUTEX, TRACE_MMAP, TRACE_SYSCALL},
    record::RecordHeader,
};
use run::{
    describe::{self, KINDS},
    home::RunDir,
    seek::Timeline,
    trace::Record,
};

use vmm::Until;

use crate::{
    context::{self, Engine},
    output, position,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// First step
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Last step
    #[arg(long, value_name = "STEP")]
    to: Option<String>,
    /// Only these kinds; richer ones are found by replaying
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = PossibleValuesParser::new(KINDS.map(|(_, name)| name)))]
    kind: Vec<String>,
    /// Only this thread
    #[arg(long, value_name = "TID")]
    tid: Option<u32>,
    /// System calls too, found by replaying
    #[arg(long)]
    syscalls: bool,
    /// Futex waits and wakes too, found by replaying
    #[arg(long)]
    futexes: bool,
    /// Page faults too, found by replaying
    #[arg(long)]
    faults: bool,
    /// Mapping changes too, found by replaying
    #[arg(long)]
    maps: bool,
    /// Engine to replay with
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// One JSON object an event; text in it that is not UTF-8 is there a second time, all of its bytes in hex: `hex` beside
    /// `text`, `path_hex` beside `path`, `argv_hex` beside `argv`, and so on
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let level = [
        (args.syscalls, TRACE_SYSCALL),
        (args.futexes, TRACE_FUTEX),
        (args.faults, TRACE_FAULT),
        (args.maps, TRACE_MMAP),
    ]
    .iter()
    .fold(0, |level, (asked, bit)| if *asked { level | bit } else { level });
    let level = args.kind.iter().fold(level, |level, kind| level | level_of(kind));
    let run = context::find(&home, &args.run)?;
    let bounds = |run: &RunDir| -> Result<(u64, u64)> {
        let from = args.from.as_ref().map_or(Ok(0), |text| position::step(text, run))?;
        Ok((from, args.to.as_ref().map_or(Ok(u64::MAX), |text| position::step_at_most(text, run))?))
    };
    // What was recorded needs no machine.
    if level == 0 {
        let (trace, whole) = context::trace_left(&run)?;
        let (from, to) = bounds(&run)?;
        for record in trace.from_step(from) {
            let record = record?;
            if record.header.step > to {
                break;
            }
            print(&args, &record)?;
        }
        whole?;
        return Ok(ExitCode::SUCCESS);
    }
    drop(run);
    let mut timeline = context::timeline(&home, &args.run, context::engine(args.engine))?;
    let (from, to) = bounds(timeline.run())?;
    let (from, to) = (from.max(timeline.first()), to.min(timeline.last()));
    timeline.seek(Timeline::at(from))?;
    let mut failed = None;
    let mut show = |header: &RecordHeader, payload: &[u8]| {
        if failed.is_none() && (from..=to).contains(&header.step) {
            failed = print(&args, &Record::new(header, payload)).err();
        }
    };
    // Where a step begins is a place to go to, and what it did comes after.
    timeline.seek_showing(Timeline::at((to + 1).min(timeline.last())), level, Some(&mut show))?;
    let ends = timeline.outcome().is_some_and(|outcome| outcome.end.is_final());
    if to == timeline.last() && ends && !timeline.looking().ended() {
        timeline.go_on_showing(&Until::END, level, Some(&mut show))?;
    }
    match failed {
        Some(error) => Err(error),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// The richer level that records of a kind need; 0 for those every trace has.
fn level_of(kind: &str) -> u32 {
    match kind {
        "syscall-enter" | "syscall-exit" => TRACE_SYSCALL,
        "futex-wait" | "futex-wake" => TRACE_FUTEX,
        "fault" => TRACE_FAULT,
        "mmap" => TRACE_MMAP,
        _ => 0,
    }
}

fn print(args: &Args, record: &Record) -> Result<()> {
    let kind = describe::kind_name(record.header.kind);
    let wanted = (args.kind.is_empty() || args.kind.iter().any(|wanted| wanted == kind))
        && args.tid.is_none_or(|tid| tid == record.header.tid);
    match wanted {
        false => Ok(()),
        true if args.json => output::json(&describe::to_json(record)),
        true => output::line(describe::line(record)),
    }
}
