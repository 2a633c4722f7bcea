//! `rewind export`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use run::archive::{Kind, export};

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// The file to write; ID.rewind without it
    file: Option<PathBuf>,
    /// Without what replaying needs: only to look at its events and output
    #[arg(long)]
    view: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let run = context::find(&home, &args.run)?;
    let file = args.file.unwrap_or_else(|| format!("{}.rewind", run.id()).into());
    export(&home, &run, &file, if args.view { Kind::View } else { Kind::Replayable })?;
    let size = std::fs::metadata(&file)?.len();
    output::line(format_args!("{}: run {}, {}", file.display(), run.id(), output::bytes(size)))?;
    Ok(ExitCode::SUCCESS)
}
