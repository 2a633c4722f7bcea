//! `rewind log`.

use std::process::ExitCode;

use anyhow::Result;
use rewind_platform::record::{REC_CONSOLE, REC_OUTPUT};
use run::describe;

use crate::{
    context,
    output::{self, Stream},
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// Put the step and the thread before each line
    #[arg(long)]
    steps: bool,
    /// The kernel's messages too
    #[arg(long)]
    kernel: bool,
    /// One JSON object a piece of output; one that is not UTF-8 has all of its bytes in `hex`, beside `text`
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let (trace, whole) = context::trace_left(&context::find(&home, &args.run)?)?;
    for record in trace.iter() {
        let record = record?;
        let header = &record.header;
        if !(header.kind == REC_OUTPUT || (args.kernel && header.kind == REC_CONSOLE)) {
            continue;
        }
        if args.json {
            output::json(&describe::to_json(&record))?;
        } else if args.steps {
            let text = String::from_utf8_lossy(&record.payload);
            for line in text.split_inclusive('\n') {
                let line = output::printable(line.strip_suffix('\n').unwrap_or(line));
                output::line(format_args!("{:>9} {:>5} {} {line}", header.step, header.tid, header.aux))?;
            }
        } else {
            output::write(Stream::Out, &record.payload)?;
        }
    }
    whole?;
    Ok(ExitCode::SUCCESS)
}
