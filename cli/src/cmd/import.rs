//! `rewind import`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use serde_json::json;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files that `rewind export` wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// One JSON object a run
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    for file in &args.files {
        let run = run::archive::import(&home, file)?;
        let command = run.spec()?.command();
        if args.json {
            let file = file.to_string_lossy();
            output::json(&json!({ "run": run.id().to_string(), "file": file, "command": command }))?;
        } else {
            output::line(format_args!("run {}  {}", run.id(), output::printable(&command)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
