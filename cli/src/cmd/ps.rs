//! `rewind ps`.

use std::process::ExitCode;

use anyhow::Result;
use run::{
    processes::Processes,
    trace::{Record, TraceError},
};
use serde_json::json;

use crate::{context, output, position};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// At this step (also @job, @crash, @end); the end without it
    #[arg(default_value = "@end")]
    step: String,
    /// Threads that have ended too
    #[arg(long)]
    all: bool,
    /// One JSON object a thread
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let run = context::find(&home, &args.run)?;
    let trace = context::trace(&run)?;
    let step = position::step(&args.step, &run)?;
    // What crashed is there when it does, and gone at the end of the same step.
    let crashes = |record: &Record| record.header.step == step && position::crashes(record);
    let before =
        |record: &Result<Record, TraceError>| !(args.step == "@crash" && record.as_ref().is_ok_and(crashes));
    let processes = Processes::at(trace.iter().take_while(before), step)?;
    let threads = if args.all { processes.all() } else { processes.living() };
    if !args.json {
        output::line(format_args!(
            "{:>6} {:>6} {:>6} {:>9} {:>10}  COMMAND",
            "TID", "PID", "PARENT", "BEGAN", "ENDED"
        ))?;
    }
    for thread in threads {
        if args.json {
            output::json(&json!(thread))?;
        } else {
            let ended = thread.ended.map_or(String::from("-"), |(step, _)| step.to_string());
            output::line(format_args!(
                "{:>6} {:>6} {:>6} {:>9} {ended:>10}  {}",
                thread.tid,
                thread.pid,
                thread.parent,
                thread.began,
                output::one_line(&thread.command)
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
