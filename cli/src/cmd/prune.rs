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
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let ids = match (args.all, args.runs.is_empty()) {
        (true, true) => home.runs(),
        (false, false) => args.runs.iter().map(|prefix| home.find(prefix)).collect::<Result<_, _>>()?,
        _ => bail!("name runs, or give --all"),
    };
    for id in ids {
        let freed = run::gc::prune(&home.run(id)?)?;
        output::line(format_args!("{id}: {} of keyframes dropped", output::bytes(freed)))?;
    }
    eprintln!("their pages go with `rewind gc`");
    Ok(ExitCode::SUCCESS)
}
