//! `rewind completions`.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::output::{self, Stream};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell they are for
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Arguments::command(), "rewind", &mut text);
    output::write(Stream::Out, &text)?;
    Ok(ExitCode::SUCCESS)
}
