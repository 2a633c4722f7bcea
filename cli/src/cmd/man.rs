//! `rewind man`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::CommandFactory;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The directory to write them to, one for each command
    dir: PathBuf,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let dir = args.dir;
    std::fs::create_dir_all(&dir)
        .and_then(|()| clap_mangen::generate_to(crate::Arguments::command(), &dir))
        .with_context(|| format!("cannot write the manual pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
