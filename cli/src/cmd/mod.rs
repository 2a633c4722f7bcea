//! The subcommands, one file each.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

mod blame;
mod cat;
mod check;
mod completions;
mod diff;
mod doctor;
mod events;
mod export;
mod fork;
mod gc;
mod gdb;
mod import;
mod log;
mod ls;
mod man;
mod prune;
mod ps;
mod replay;
mod rm;
mod run;
mod shell;
mod threads;
mod where_;

/// What can be asked.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// What this host can do, and what that means for you
    Doctor(doctor::Args),
    /// Run a command in a machine of its own and record it
    Run(run::Args),
    /// Find the thread schedule that breaks a command, and say why
    Check(check::Args),
    /// Who wrote a value last, or everybody who read or wrote it
    Blame(blame::Args),
    /// Run a recorded run again and compare every event
    Replay(replay::Args),
    /// Show where two runs first differ
    Diff(diff::Args),
    /// Go on from a step of a run with other decisions
    Fork(fork::Args),
    /// List what happened in a run
    Events(events::Args),
    /// Print a run's output
    Log(log::Args),
    /// List the processes at a step
    Ps(ps::Args),
    /// Show which thread ran when
    Threads(threads::Args),
    /// Debug a recorded run with gdb, forward and back
    Gdb(gdb::Args),
    /// Show the line each thread is on, with callers
    Where(where_::Args),
    /// Print a file as it was at a step
    Cat(cat::Args),
    /// Start a shell, or a program, in a throw-away fork at a step
    Shell(shell::Args),
    /// List runs
    Ls(ls::Args),
    /// Remove runs
    Rm(rm::Args),
    /// Drop keyframes, keeping the runs
    Prune(prune::Args),
    /// Give back what no run needs
    Gc(gc::Args),
    /// Write a run to one file
    Export(export::Args),
    /// Take a run from such a file
    Import(import::Args),
    /// Print what a shell needs to complete this command's arguments
    Completions(completions::Args),
    /// Write the manual pages
    Man(man::Args),
}

/// Does it.
pub(crate) fn dispatch(command: Command) -> Result<ExitCode> {
    match command {
        Command::Doctor(args) => doctor::run(args),
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(args),
        Command::Blame(args) => blame::run(args),
        Command::Replay(args) => replay::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Fork(args) => fork::run(args),
        Command::Events(args) => events::run(args),
        Command::Log(args) => log::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Threads(args) => threads::run(args),
        Command::Gdb(args) => gdb::run(args),
        Command::Where(args) => where_::run(args),
        Command::Cat(args) => cat::run(args),
        Command::Shell(args) => shell::run(args),
        Command::Ls(args) => ls::run(args),
        Command::Rm(args) => rm::run(args),
        Command::Prune(args) => prune::run(args),
        Command::Gc(args) => gc::run(args),
        Command::Export(args) => export::run(args),
        Command::Import(args) => import::run(args),
        Command::Completions(args) => completions::run(args),
        Command::Man(args) => man::run(args),
    }
}
