//! `rewind import`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use run::archive::{Imported, import};
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
    let interrupted = context::stopped()?;
    for file in &args.files {
        let Imported { run, known } = import(&home, file, &interrupted)?;
        let command = run.spec()?.command();
        if args.json {
            let file = file.to_string_lossy();
            let id = run.id().to_string();
            output::json(&json!({ "run": id, "file": file, "command": command, "known": known }))?;
        } else {
            let known = if known { "  (was here already)" } else { "" };
            output::line(format_args!("run {}  {}{known}", run.id(), output::one_line(&command)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
