//! `rewind shell`.

use std::{
    ffi::OsString,
    io::{self, Read},
    os::unix::ffi::OsStringExt,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};

use anyhow::{Context, Result};
use inside::{Ended, Host, Program, Servant};
use rustix::termios::{self, Termios};

use crate::{
    context::{self, Engine},
    output::{self, CannotWrite, Stream},
    position,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// Where: a step, a position (3291+120), @job, @crash or @end
    at: String,
    /// A command for the root's /bin/sh, instead of a shell to type into
    #[arg(short = 'c', value_name = "TEXT", conflicts_with = "command")]
    text: Option<OsString>,
    /// A program of the root, instead of /bin/sh
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
    /// Engine to go there with; auto = the one it was recorded on
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let typed = args.text.is_none() && args.command.is_empty();
    let terminal = (typed && termios::isatty(io::stdin()) && termios::isatty(io::stdout()))
        .then(|| termios::tcgetwinsize(io::stdout()).map_or((24, 80), |size| (size.ws_row, size.ws_col)));
    // A raw terminal passes Ctrl-C on as a character, and is to be set back. Else there is nothing to be tidied up, and a
    // program that computes would not let the machine come to a place where a flag could be looked at.
    if terminal.is_none() {
        context::end_at_interrupt()?;
    }
    let home = context::home()?;
    let mut timeline = context::throw_away(&home, &args.run, context::engine(args.engine))?;
    let at = position::parse(&args.at, &timeline)?;
    timeline.seek(at)?;
    let argv: Vec<Vec<u8>> = match (args.text, args.command) {
        (Some(text), _) => vec![b"/bin/sh".to_vec(), b"-c".to_vec(), text.into_vec()],
        (None, command) if command.is_empty() => vec![b"/bin/sh".to_vec()],
        (None, command) => command.into_iter().map(OsString::into_vec).collect(),
    };
    let mut env = timeline.spec().job.env.clone();
    if terminal.is_some()
        && let Some(term) = std::env::var_os("TERM")
    {
        env.retain(|entry| !entry.starts_with(b"TERM="));
        env.push([b"TERM=", term.as_encoded_bytes()].concat());
    }
    let id = timeline.run().id();
    let interrupted = if terminal.is_some() { context::interrupted()? } else { Arc::default() };
    let mut servant = Servant::enter(timeline.stage().machine())?;
    super::cat::tell_if_later(at.step.0, servant.began());
    let raw = match terminal {
        Some(_) => {
            context::notice(&format!(
                "a throw-away fork of run {id} at step {}: all else stands still, nothing is kept; exit leaves it",
                servant.began()
            ));
            Some(Raw::set()?)
        }
        None => None,
    };
    let mut passer = Passer {
        // A terminal that nobody asked to type into is not read.
        input: (typed || !termios::isatty(io::stdin())).then(reader),
        terminal: terminal.is_some(),
        interrupted,
        failed: None,
    };
    let ended = inside::run(&mut servant, &Program { argv, env, terminal }, &mut passer);
    drop(raw);
    if let Some(failed) = passer.failed {
        return Err(failed.into());
    }
    Ok(match ended? {
        Ended::Exited(status) => ExitCode::from(status),
        Ended::Killed(signal) => ExitCode::from(128u8.saturating_add(signal)),
        Ended::Interrupted => ExitCode::from(context::INTERRUPTED),
    })
}

/// Reads standard input in a thread of its own; an empty piece is its end.
fn reader() -> mpsc::Receiver<Vec<u8>> {
    let (send, receive) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        let mut buffer = vec![0; 4096];
        loop {
            match input.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An input that cannot be read has ended, as for any program.
                Ok(0) | Err(_) => return drop(send.send(Vec::new())),
                Ok(len) if send.send(buffer[..len].to_vec()).is_err() => return,
                Ok(_) => {}
            }
        }
    });
    receive
}

/// How long a program on a terminal that says nothing is let wait, before its clock goes on.
const MOMENT: Duration = Duration::from_millis(20);

struct Passer {
    input: Option<mpsc::Receiver<Vec<u8>>>,
    terminal: bool,
    interrupted: Arc<AtomicBool>,
    /// Why our own output took no more.
    failed: Option<CannotWrite>,
}

impl Host for Passer {
    fn input(&mut self, most: usize, idle: bool) -> io::Result<Option<Vec<u8>>> {
        let Some(input) = &self.input else { return Ok(None) };
        let received = match (idle, self.terminal) {
            (true, true) => {
                input.recv_timeout(MOMENT).map_err(|error| error == mpsc::RecvTimeoutError::Timeout)
            }
            _ => input.try_recv().map_err(|error| error == mpsc::TryRecvError::Empty),
        };
        Ok(match received {
            Ok(bytes) if !bytes.is_empty() => {
                debug_assert!(bytes.len() <= most);
                Some(bytes)
            }
            Err(true) => Some(Vec::new()),
            Ok(_) | Err(false) => None,
        })
    }

    fn output(&mut self, stream: u8, bytes: &[u8]) -> io::Result<()> {
        let to = if stream == 2 { Stream::Err } else { Stream::Out };
        output::write(to, bytes).map_err(|error| {
            self.failed = Some(error);
            io::Error::other("our own output")
        })
    }

    fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The terminal in raw mode, until this is dropped.
struct Raw(Termios);

impl Raw {
    fn set() -> Result<Raw> {
        let before = termios::tcgetattr(io::stdin()).context("cannot look at the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), termios::OptionalActions::Now, &raw)
            .context("cannot set the terminal")?;
        Ok(Raw(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The shell that started us sets it again, too.
        let _ = termios::tcsetattr(io::stdin(), termios::OptionalActions::Now, &self.0);
    }
}
