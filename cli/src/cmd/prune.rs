//! `rewind prune`.

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The runs
    runs: Vec<String>,
    /// All runs
    #[arg(long)]
    all: bool,
    /// One JSON object a run
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let ids = match (args.all, args.runs.is_empty()) {
        (true, true) => home.runs(),
        (false, false) => args.runs.iter().map(|prefix| home.find(prefix)).collect::<Result<_, _>>()?,
        _ => bail!("name runs, or give --all"),
    };
    let (mut dropped, mut failed) = (0, false);
    for id in ids {
        let freed = match home.run(id).and_then(|run| run::gc::prune(&run)) {
            Ok(freed) => freed,
            Err(error) => {
                context::notice(&output::error(&error.into()));
                failed = true;
                continue;
            }
        };
        dropped += freed;
        if args.json {
            output::json(&serde_json::json!({ "run": id.to_string(), "bytes": freed }))?;
            continue;
        }
        output::line(format_args!("{id}: {} of keyframes dropped", output::bytes(freed)))?;
    }
    if dropped > 0 {
        output::say!("their pages go with `rewind gc`");
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
