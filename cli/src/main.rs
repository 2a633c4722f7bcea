//! The `rewind` command: arguments, text and JSON output, progress. No logic of its own.

mod cmd;
mod context;
mod guest;
mod look;
mod output;
mod place;
mod root;

use std::process::ExitCode;

use clap::Parser;

/// Runs Linux programs so that every run can be repeated exactly, searched, and gone back in.
#[derive(Parser)]
#[command(name = "rewind", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    // A reader that closes the pipe ends us quietly, as it does other commands.
    let arguments = Arguments::parse();
    match cmd::dispatch(arguments.command) {
        Ok(code) => code,
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rewind: {error:#}");
            ExitCode::FAILURE
        }
    }
}
