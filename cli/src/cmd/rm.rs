//! `rewind rm`.

use std::process::ExitCode;

use anyhow::Result;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The runs
    #[arg(required = true)]
    runs: Vec<String>,
    /// One JSON object a run
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let (mut failed, mut removed) = (false, false);
    for prefix in &args.runs {
        let done = context::find(&home, prefix).and_then(|run| {
            let id = run.id();
            run.remove()?;
            Ok(id)
        });
        removed |= done.is_ok();
        match done {
            Ok(id) if args.json => output::json(&serde_json::json!({ "removed": id.to_string() }))?,
            Ok(id) => output::line(format_args!("removed {id}"))?,
            Err(error) => {
                context::notice(&output::error(&error));
                failed = true;
            }
        }
    }
    if removed {
        output::say!("pages no run needs any more go with `rewind gc`");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
