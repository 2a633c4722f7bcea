//! `rewind gc`.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read and check every page, and drop what is corrupt
    #[arg(long)]
    verify: bool,
    /// Boot keyframes no run builds on too (the next run boots again)
    #[arg(long)]
    boots: bool,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let done = run::gc::collect(&home, args.verify, args.boots)?;
    let freed = done.freed + done.pages.freed;
    for damaged in &done.damaged {
        output::say!("rewind: damaged: {damaged}");
    }
    if args.json {
        output::json(&json!({
            "freed": freed, "pages_kept": done.pages.kept, "pages_dropped": done.pages.dropped,
            "pages_corrupt": done.pages.corrupt, "died": done.died, "files": done.files,
            "damaged": done.damaged,
        }))?;
    } else {
        output::line(format_args!(
            "{} given back: {} pages dropped, {} kept, {} corrupt; {} dead recordings, {} files",
            output::bytes(freed),
            done.pages.dropped,
            done.pages.kept,
            done.pages.corrupt,
            done.died,
            done.files
        ))?;
    }
    Ok(if done.pages.corrupt > 0 || !done.damaged.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
