//! `rewind rm`.

use std::process::ExitCode;

use anyhow::Result;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The runs
    #[arg(required = true)]
    runs: Vec<String>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let mut failed = false;
    for prefix in &args.runs {
        let removed = context::find(&home, prefix).and_then(|run| {
            let id = run.id();
            run.remove()?;
            Ok(id)
        });
        match removed {
            Ok(id) => output::line(format_args!("removed {id}"))?,
            Err(error) => {
                eprintln!("rewind: {error:#}");
                failed = true;
            }
        }
    }
    eprintln!("pages no run needs any more go with `rewind gc`");
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
