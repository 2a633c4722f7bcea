//! The `rewind` command: arguments, text and JSON output, progress. No logic of its own.

// These panic where the output cannot be written: `output::line` tells it, `output::say` does without.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cmd;
mod context;
mod gather;
mod gdb_setup;
mod guest;
mod live;
mod look;
mod output;
mod path_text;
mod position;
mod root;

use std::{process::ExitCode, sync::Arc};

use clap::Parser;

/// The software CPU makes a block of code from many small pieces: with the C library's allocator that is a sixth of the
/// time to a run's first event.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs Linux programs so that every run can be repeated exactly, searched, and gone back in.
#[derive(Parser)]
#[command(name = "rewind", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: cmd::Command,
}

fn main() -> ExitCode {
    // A file that may not grow (`ulimit -f`) is an error of its write, and no signal that ends this program without a word.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let done = match Arguments::try_parse() {
        Ok(arguments) => cmd::dispatch(arguments.command).and_then(|code| output::passed().map(|()| code)),
        Err(usage) => said_instead(&usage),
    };
    match done {
        Ok(code) => code,
        // A reader that closes the pipe ends us quietly, as it does other commands.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::say!("rewind: {}", output::error(&error));
            if output::is_interrupt(&error) {
                ExitCode::from(context::INTERRUPTED)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Help, the version, or what is wrong with the arguments.
fn said_instead(usage: &clap::Error) -> anyhow::Result<ExitCode> {
    let code = u8::try_from(usage.exit_code()).unwrap_or(2);
    match usage.print().and_then(|()| std::io::Write::flush(&mut std::io::stdout())) {
        // Help that was asked for is a result, and must be written.
        Err(error) if !usage.use_stderr() => Err(output::CannotWrite::out(error).into()),
        _ => Ok(ExitCode::from(code)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Commands that print nothing a program would read: they pass a program's own output on, or write files.
    const WITHOUT: [&str; 4] = ["shell", "gdb", "completions", "man"];

    #[test]
    fn the_definitions_are_sound_and_every_reading_command_has_json() {
        let mut command = super::Arguments::command();
        command.build();
        command.clone().debug_assert();
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let json = sub.get_arguments().any(|argument| argument.get_long() == Some("json"));
            assert_ne!(json, WITHOUT.contains(&sub.get_name()), "{}", sub.get_name());
            assert!(sub.get_about().is_some(), "{} says what it does", sub.get_name());
            for argument in sub.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", sub.get_name(), argument.get_id());
            }
        }
    }
}
