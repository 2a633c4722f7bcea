//! `rewind gdb`.

use std::{
    net::TcpListener,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, bail};
use debug::{
    gdb::{self, Session},
    travel::Travel,
};
use run::{processes::Processes, seek::Timeline};
use vmm::{EngineKind, address::Position};

use crate::{
    context,
    gdb_setup::{commands_for, old_sources},
    look::RunFiles,
    position,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// Where to begin: a step (3291), a step and instructions (3291+120), @job, @crash or @end
    #[arg(value_name = "P")]
    at: String,
    /// Debug this process; without it the one on the CPU there, else the job's first
    #[arg(long, value_name = "N")]
    pid: Option<u32>,
    /// Wait for a gdb here (HOST:PORT, :PORT or the path of a socket) instead of starting one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// The gdb to start
    #[arg(long, value_name = "PROGRAM", env = "REWIND_GDB", default_value = "gdb")]
    gdb: PathBuf,
    /// Arguments for gdb
    #[arg(last = true, value_name = "GDB ARGS")]
    arguments: Vec<std::ffi::OsString>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    if args.listen.is_some() && !args.arguments.is_empty() {
        bail!("with --listen no gdb is started, so there is nobody to give arguments to");
    }
    let home = context::home()?;
    // Only the software CPU stops at an exact instruction and sees every access.
    // Programs may be made to go on otherwise there.
    let mut timeline = context::throw_away(&home, &args.run, Some(EngineKind::Soft))?;
    let mut at = position::find(&args.at, &mut timeline)?;
    let files = RunFiles::of(&timeline)?;
    if args.at == "@end" {
        at = end(&timeline, args.pid)?.unwrap_or(at);
    }
    let again = || context::timeline(&home, &args.run, Some(EngineKind::Soft));
    let mut travel = Travel::new(timeline, at, args.pid)?.with_helper(Box::new(|| match again() {
        Ok(timeline) => Some(timeline),
        Err(error) => {
            context::notice(&format!("no second machine to search with: {error:#}"));
            None
        }
    }));
    if args.at == "@end" {
        travel.jump_to_end()?;
    }
    if args.at == "@job" {
        travel.jump_to_program()?;
    }
    let mut session = Session::new(travel, files.files(), Box::new(context::notice))?;
    let directory = tempdir()?;
    let served = match &args.listen {
        Some(address) => listen(&mut session, &files, address),
        None => start(&mut session, &files, &directory, &args),
    };
    // What cannot be removed lies in the system's temporary folder.
    let _ = std::fs::remove_dir_all(&directory);
    served
}

/// A position at which the process whose end is wanted is still there: that of `pid`, or the job's first, if it ends.
fn end(timeline: &Timeline<'_>, pid: Option<u32>) -> Result<Option<Position>> {
    let processes = Processes::at(timeline.trace().iter(), timeline.last())?;
    let all = processes.all();
    let mut found = all.iter().filter(|thread| thread.tid == thread.pid && thread.pid > 1);
    let wanted = match pid {
        Some(pid) => found.rfind(|thread| thread.pid == pid),
        None => found.next(),
    };
    Ok(wanted.and_then(|thread| thread.ended).map(|(step, _)| Timeline::at(step)))
}

/// A folder of our own for the socket and gdb's commands.
fn tempdir() -> Result<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let top = std::env::temp_dir();
    for number in 0..1000 {
        let path = top.join(format!("rewind-gdb-{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("cannot make {}", path.display())),
        }
    }
    bail!("cannot make a folder in {}", top.display())
}

/// Starts gdb on a socket and serves it.
fn start(session: &mut Session<'_>, files: &RunFiles, directory: &Path, args: &Args) -> Result<ExitCode> {
    let socket = directory.join("socket");
    let listener =
        UnixListener::bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let commands = directory.join("commands");
    let mut text = commands_for(session, files).into_bytes();
    text.extend(old_sources(session, files, directory)?);
    text.extend(format!("target extended-remote {}\n", socket.display()).into_bytes());
    std::fs::write(&commands, text).with_context(|| format!("cannot write {}", commands.display()))?;
    // Ctrl-C at the terminal is for gdb, which tells us.
    let _interrupted = context::interrupt_is_gdbs()?;
    let mut child = Command::new(&args.gdb)
        .arg("-q")
        .arg("-x")
        .arg(&commands)
        .args(&args.arguments)
        .spawn()
        .with_context(|| {
            format!("cannot start {}: install gdb, or name it with --gdb", args.gdb.display())
        })?;
    let served = match wait_for(&listener, &mut child)? {
        Some(stream) => {
            let reader = stream.try_clone().context("cannot share the socket")?;
            gdb::serve(session, reader, stream)
        }
        None => Ok(()),
    };
    let status = child.wait().context("gdb went away")?;
    served?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// gdb's connection; none if it ended without one.
fn wait_for(
    listener: &UnixListener,
    child: &mut std::process::Child,
) -> Result<Option<std::os::unix::net::UnixStream>> {
    listener.set_nonblocking(true).context("cannot wait for gdb")?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).context("cannot use the socket")?;
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot accept gdb's connection"),
        }
        if child.try_wait().context("gdb went away")?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

fn listen(session: &mut Session<'_>, files: &RunFiles, address: &str) -> Result<ExitCode> {
    let commands = commands_for(session, files);
    let told = |at: &str| {
        context::notice(&format!("waiting for gdb; in it: target extended-remote {at}"));
        for line in commands.lines().filter(|line| line.starts_with("set sysroot")) {
            context::notice(&format!("before that: {line}"));
        }
    };
    if address.contains('/') {
        let listener = UnixListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
        told(address);
        let (stream, _) = listener.accept().context("cannot accept gdb's connection")?;
        let reader = stream.try_clone().context("cannot share the socket")?;
        let served = gdb::serve(session, reader, stream);
        let _ = std::fs::remove_file(address);
        served?;
        return Ok(ExitCode::SUCCESS);
    }
    // Only from this machine unless a host is named: whoever connects reads the run's files.
    let full = if address.starts_with(':') { format!("127.0.0.1{address}") } else { address.to_owned() };
    let listener = TcpListener::bind(&full).with_context(|| format!("cannot listen on {full}"))?;
    let at = listener.local_addr().context("where do we listen?")?;
    told(&at.to_string());
    let (stream, _) = listener.accept().context("cannot accept gdb's connection")?;
    stream.set_nodelay(true).context("cannot set up the connection")?;
    let reader = stream.try_clone().context("cannot share the socket")?;
    gdb::serve(session, reader, stream)?;
    Ok(ExitCode::SUCCESS)
}
