//! `rewind import`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files that `rewind export` wrote
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    for file in &args.files {
        let run = run::archive::import(&home, file)?;
        output::line(format_args!("run {}  {}", run.id(), output::printable(&run.spec()?.command())))?;
    }
    Ok(ExitCode::SUCCESS)
}
