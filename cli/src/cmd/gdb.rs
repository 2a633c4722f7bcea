//! `rewind gdb`.

use std::{
    fmt::Write as _,
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

use crate::{context, look::RunFiles, position};

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
    let mut timeline = context::timeline(&home, &args.run, Some(EngineKind::Soft))?;
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
    let text = commands_for(session, files) + &format!("target extended-remote {}\n", socket.display());
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

/// What gdb is told before it connects.
fn commands_for(session: &mut Session<'_>, files: &RunFiles) -> String {
    let mut text = String::from(
        "set confirm off\nset breakpoint pending on\nset remotetimeout 600\nset tcp auto-retry off\n\
         set auto-connect-native-target off\n",
    );
    let local = local_root(session, files);
    match &local {
        Some(root) => {
            let _ = writeln!(text, "set sysroot {}", root.display());
            // A library may be known by a relative name.
            let directory = String::from_utf8_lossy(&session.program().directory).into_owned();
            if !directory.contains(['\n', ':']) {
                let root = root.display().to_string();
                let _ = writeln!(text, "set solib-search-path {}{directory}", root.trim_end_matches('/'));
            }
        }
        None => text.push_str("set sysroot target:/\n"),
    }
    // After a `monitor goto` everything gdb knows of the process is old.
    text.push_str(
        "define hookpost-monitor\n  maintenance flush register-cache\n  maintenance flush dcache\nend\n\
         document hookpost-monitor\nRewind: a monitor command may have gone to another place.\nend\n",
    );
    let executable = session.program().executable.clone();
    let content = session.content(&executable).unwrap_or_default();
    let mentions = |word: &[u8]| content.windows(word.len()).any(|part| part == word);
    if mentions(b"gdb_load_rust_pretty_printers") {
        rust_printers(&mut text);
    }
    if local.as_deref() != Some(Path::new("/")) {
        cpp_printers(&mut text);
        if let Some(root) = files.directory() {
            let _ = writeln!(text, "directory {}", root.display());
        }
    }
    text
}

/// A folder of this machine that has the files the process uses, byte for byte as far as it shows: gdb then reads
/// them itself, and finds what distributions put beside them.
fn local_root(session: &mut Session<'_>, files: &RunFiles) -> Option<PathBuf> {
    let root = files.directory()?;
    let mut paths: Vec<Vec<u8>> =
        session.program().mappings.iter().filter_map(|mapping| mapping.path.clone()).collect();
    paths.push(session.program().executable.clone());
    paths.sort();
    paths.dedup();
    for path in paths.iter().filter(|path| path.starts_with(b"/")) {
        let there = files.beside(path);
        if session.content(path).is_none_or(|own| there.as_ref() != Some(&own)) {
            return None;
        }
    }
    Some(root)
}

/// As `rust-gdb` does.
fn rust_printers(text: &mut String) {
    let Ok(found) = Command::new("rustc").args(["--print", "sysroot"]).output() else { return };
    let directory = Path::new(String::from_utf8_lossy(&found.stdout).trim()).join("lib/rustlib/etc");
    if directory.is_dir() {
        let directory = directory.display();
        let _ = writeln!(text, "directory {directory}\nadd-auto-load-safe-path {directory}");
    }
}

/// libstdc++'s printers, which gdb loads itself only for libraries of this machine's own root.
fn cpp_printers(text: &mut String) {
    text.push_str(
        "python\nimport glob, sys\nfor place in sorted(glob.glob('/usr/share/gcc*/python')):\n    try:\n        \
         sys.path.insert(0, place)\n        from libstdcxx.v6 import register_libstdcxx_printers\n        \
         register_libstdcxx_printers(None)\n        break\n    except (ImportError, RuntimeError):\n        pass\nend\n",
    );
}
