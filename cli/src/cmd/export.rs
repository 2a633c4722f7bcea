//! `rewind export`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use run::{
    archive::{Kind, export},
    spec::ImageSpec,
};
use serde_json::json;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// The file to write, or a link to it; ID.rewind without it
    file: Option<PathBuf>,
    /// Without what replaying needs: only to look at its events and output
    #[arg(long)]
    view: bool,
    /// With all of its root, not only what it read: to fork it there, or start a shell in it
    #[arg(long, conflicts_with = "view")]
    whole: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let run = context::find(&home, &args.run)?;
    let file = args.file.unwrap_or_else(|| format!("{}.rewind", run.id()).into());
    let kind = match (args.view, args.whole) {
        (true, _) => Kind::View,
        (false, true) => Kind::Whole,
        (false, false) => Kind::Replayable,
    };
    let interrupted = context::stopped()?;
    let image = |spec: &ImageSpec, source: &str| context::again(&home, spec, source);
    export(&home, &run, &file, kind, &image, &context::notice, &interrupted)?;
    let size = std::fs::metadata(&file)?.len();
    if args.json {
        let (path, id) = (file.to_string_lossy(), run.id().to_string());
        let kind = format!("{kind:?}").to_lowercase();
        output::json(&json!({ "run": id, "file": path, "kind": kind, "bytes": size }))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(format_args!("{}: run {}, {}", file.display(), run.id(), output::bytes(size)))?;
    Ok(ExitCode::SUCCESS)
}
