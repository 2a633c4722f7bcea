//! A program started inside, with its input and output here.

use crate::{
    InsideError,
    servant::{Servant, call, checked, nr},
};

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments; the program is looked up in the environment's PATH unless it has a slash.
    pub argv: Vec<Vec<u8>>,
    /// Environment, `KEY=value` each.
    pub env: Vec<Vec<u8>>,
    /// On a terminal of so many rows and columns; else on pipes.
    pub terminal: Option<(u16, u16)>,
}

/// The other end of the program's input and output.
pub trait Host {
    /// Up to `most` bytes for the program: none now, or `None` at the end. `idle`: the program has nothing to say and may
    /// be waiting; taking a moment of wall time here lets it wait instead of making its clock run.
    fn input(&mut self, most: usize, idle: bool) -> std::io::Result<Option<Vec<u8>>>;
    /// What it wrote to its standard output (1) or error (2).
    fn output(&mut self, stream: u8, bytes: &[u8]) -> std::io::Result<()>;
    /// Is it to be given up?
    fn interrupted(&self) -> bool;
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this status.
    Exited(u8),
    /// It was killed by this signal.
    Killed(u8),
    /// It was given up.
    Interrupted,
}

/// Where PATH is not set.
const PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes passed at once: a pipe that polls writable takes as many without waiting (PIPE_BUF, pipe(7)).
const PART: u64 = 4096;
/// Milliseconds of virtual time between two looks at a program that says nothing.
const LOOK: u64 = 10;
/// Of the servant's room: where paths, argument vectors and poll's table lie.
const POLLS: u64 = 0;
const STATUS: u64 = 64;
const TEXT: u64 = 4096;

/// Events of poll(2).
const IN: u16 = 1;
const OUT: u16 = 4;
/// O_RDWR.
const READ_WRITE: u64 = 2;
/// O_RDWR | O_NOCTTY | O_CLOEXEC.
const TERMINAL: u64 = READ_WRITE | 0x100 | 0x8_0000;
/// O_CLOEXEC.
const CLOEXEC: u64 = 0x8_0000;

/// The servant's ends.
struct Ends {
    input: Option<u64>,
    /// With the stream each is.
    outputs: Vec<(u64, u8)>,
}

/// Runs a program to its end.
pub fn run(servant: &mut Servant<'_>, program: &Program, host: &mut dyn Host) -> Result<Ended, InsideError> {
    let (ends, process) = match program.terminal {
        Some(size) => on_terminal(servant, program, size)?,
        None => on_pipes(servant, program)?,
    };
    pass(servant, ends, process, host)
}

fn on_pipes(servant: &mut Servant<'_>, program: &Program) -> Result<(Ends, u64), InsideError> {
    let mut pipes = [[0u64; 2]; 3];
    for pipe in &mut pipes {
        servant.call("make a pipe", nr::PIPE2, [servant.room, CLOEXEC, 0, 0, 0, 0])?;
        let mut fds = [0; 8];
        servant.get(0, &mut fds)?;
        let fd = |at: usize| u64::from(u32::from_le_bytes([fds[at], fds[at + 1], fds[at + 2], fds[at + 3]]));
        *pipe = [fd(0), fd(4)];
    }
    let [input, output, error] = pipes;
    let process = start(servant, program, &[input[0], output[1], error[1]], None)?;
    for end in [input[0], output[1], error[1]] {
        servant.call("close a pipe", nr::CLOSE, [end, 0, 0, 0, 0, 0])?;
    }
    Ok((Ends { input: Some(input[1]), outputs: vec![(output[0], 1), (error[0], 2)] }, process))
}

fn on_terminal(
    servant: &mut Servant<'_>,
    program: &Program,
    (rows, columns): (u16, u16),
) -> Result<(Ends, u64), InsideError> {
    // /dev/ptmx of devtmpfs is another instance's where /dev/pts has its own.
    let master = match servant.open(b"/dev/pts/ptmx", TERMINAL, "a terminal") {
        Err(InsideError::Refused { .. }) => servant.open(b"/dev/ptmx", TERMINAL, "a terminal")?,
        other => other?,
    };
    // TIOCSPTLCK, TIOCGPTN, TIOCSWINSZ: include/uapi/asm-generic/ioctls.h.
    servant.put(0, &[0; 8])?;
    servant.call("unlock the terminal", nr::IOCTL, [master, 0x4004_5431, servant.room, 0, 0, 0])?;
    servant.call("name the terminal", nr::IOCTL, [master, 0x8004_5430, servant.room, 0, 0, 0])?;
    let mut number = [0; 4];
    servant.get(0, &mut number)?;
    let mut size = [0; 8];
    size[..2].copy_from_slice(&rows.to_le_bytes());
    size[2..4].copy_from_slice(&columns.to_le_bytes());
    servant.put(0, &size)?;
    servant.call("size the terminal", nr::IOCTL, [master, 0x5414, servant.room, 0, 0, 0])?;
    let slave = format!("/dev/pts/{}", u32::from_le_bytes(number));
    let slave = servant.open(slave.as_bytes(), TERMINAL, "the terminal")?;
    let process = start(servant, program, &[slave; 3], Some(slave))?;
    servant.call("close the terminal", nr::CLOSE, [slave, 0, 0, 0, 0, 0])?;
    Ok((Ends { input: Some(master), outputs: vec![(master, 1)] }, process))
}

/// Starts the program on these descriptors; returns its process id.
fn start(
    servant: &mut Servant<'_>,
    program: &Program,
    streams: &[u64; 3],
    terminal: Option<u64>,
) -> Result<u64, InsideError> {
    let name = program.argv.first().filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| InsideError::NoProgram("(none)".into()))?;
    let (argv, env, paths) = place_arguments(servant, program, name)?;
    let mut child = servant.child()?;
    // From here to the execve, calls are the child's; the servant waits in its clone.
    let mut ask = |servant: &mut Servant<'_>, what: &str, number, arguments| {
        checked(what, call(servant.machine, &mut child, number, arguments)?)
    };
    ask(servant, "make a session", nr::SETSID, [0; 6])?;
    if let Some(terminal) = terminal {
        // TIOCSCTTY.
        ask(servant, "take the terminal", nr::IOCTL, [terminal, 0x540e, 0, 0, 0, 0])?;
    }
    for (to, from) in streams.iter().enumerate() {
        ask(servant, "set up the descriptors", nr::DUP2, [*from, to as u64, 0, 0, 0, 0])?;
    }
    let none = servant.room + STATUS;
    ask(servant, "unblock signals", nr::RT_SIGPROCMASK, [2, none, 0, 8, 0, 0])?;
    let mut refused = None;
    for path in paths {
        match servant.execute(&mut child, [path, argv, env])? {
            Ok(process) => return Ok(process),
            // ENOENT, ENOTDIR: the next folder; anything else is the reason, if nothing is found.
            Err(2 | 20) => {}
            Err(errno) => refused = Some(errno),
        }
    }
    // The child may go now; nothing returns from that.
    let _ = call(servant.machine, &mut child, nr::EXIT_GROUP, [127, 0, 0, 0, 0, 0]);
    let shown = String::from_utf8_lossy(name).into_owned();
    Err(match refused {
        Some(errno) => InsideError::Refused { what: format!("cannot run {shown}"), errno },
        None => InsideError::NoProgram(shown),
    })
}

/// Puts the vectors and every path to try into the servant's room, which its child has a copy of.
fn place_arguments(
    servant: &mut Servant<'_>,
    program: &Program,
    name: &[u8],
) -> Result<(u64, u64, Vec<u64>), InsideError> {
    let mut at = TEXT;
    let mut place = |servant: &mut Servant<'_>, text: &[u8]| -> Result<u64, InsideError> {
        let len = text.len() as u64 + 1;
        if at + len > crate::servant::ROOM {
            return Err(InsideError::Refused {
                what: "cannot pass the arguments and environment".into(),
                errno: 7,
            });
        }
        servant.put(at, &[text, b"\0"].concat())?;
        at += len;
        Ok(servant.room + at - len)
    };
    let mut vector = |servant: &mut Servant<'_>, texts: &[Vec<u8>]| -> Result<Vec<u8>, InsideError> {
        let mut words = Vec::new();
        for text in texts {
            words.extend(place(servant, text)?.to_le_bytes());
        }
        words.extend([0; 8]);
        Ok(words)
    };
    let argv = vector(servant, &program.argv)?;
    let env = vector(servant, &program.env)?;
    let folders = program.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")).unwrap_or(PATH);
    let candidates: Vec<Vec<u8>> = if name.contains(&b'/') {
        vec![name.to_vec()]
    } else {
        folders.split(|byte| *byte == b':').map(|folder| [folder, b"/", name].concat()).collect()
    };
    let mut paths = Vec::new();
    for candidate in &candidates {
        paths.push(place(servant, candidate)?);
    }
    // The vectors last, in whole words.
    at = at.next_multiple_of(8);
    let (argv_at, env_at) = (at, at + argv.len() as u64);
    if env_at + env.len() as u64 > crate::servant::ROOM {
        return Err(InsideError::Refused {
            what: "cannot pass the arguments and environment".into(),
            errno: 7,
        });
    }
    servant.put(argv_at, &argv)?;
    servant.put(env_at, &env)?;
    // The empty signal mask, and where a wait status goes.
    servant.put(STATUS, &[0; 8])?;
    Ok((servant.room + argv_at, servant.room + env_at, paths))
}

/// Passes input and output until the process has ended and said all.
fn pass(
    servant: &mut Servant<'_>,
    mut ends: Ends,
    process: u64,
    host: &mut dyn Host,
) -> Result<Ended, InsideError> {
    let failed = |what| move |source| InsideError::Host { what, source };
    let mut waiting: Vec<u8> = Vec::new();
    let mut ended = None;
    let mut idle = false;
    loop {
        if host.interrupted() {
            return Ok(Ended::Interrupted);
        }
        if waiting.is_empty()
            && ended.is_none()
            && let Some(input) = ends.input
        {
            match host.input(PART as usize, idle).map_err(failed("read the input"))? {
                Some(bytes) => waiting = bytes,
                // A terminal has no end of its own but the one typed.
                None if ends.outputs.iter().any(|(fd, _)| *fd == input) => waiting = vec![4],
                None => {
                    servant.call("close the input", nr::CLOSE, [input, 0, 0, 0, 0, 0])?;
                    ends.input = None;
                }
            }
        }
        let wait = if ended.is_some() || !waiting.is_empty() { 0 } else { LOOK };
        let ready = poll(servant, &ends, !waiting.is_empty(), wait)?;
        idle = ready.iter().all(|(_, events)| *events == 0);
        let mut said = false;
        for (fd, events) in ready {
            if events & OUT != 0 && Some(fd) == ends.input && !waiting.is_empty() {
                servant.put(TEXT, &waiting)?;
                let room = servant.room + TEXT;
                match servant.try_call(nr::WRITE, [fd, room, waiting.len() as u64, 0, 0, 0])? {
                    // Nobody reads it any more.
                    ..=0 => waiting.clear(),
                    written => drop(waiting.drain(..(written as usize).min(waiting.len()))),
                }
            }
            let Some(&(_, stream)) = ends.outputs.iter().find(|(output, _)| *output == fd) else { continue };
            // Data, or the other side is gone (POLLHUP, POLLERR).
            if events & (IN | 0x18) != 0 {
                let room = servant.room + TEXT;
                let got = servant.try_call(nr::READ, [fd, room, PART, 0, 0, 0])?;
                if got <= 0 {
                    // The end; a terminal says EIO.
                    ends.outputs.retain(|(output, _)| *output != fd);
                    continue;
                }
                let mut bytes = vec![0; (got as usize).min(PART as usize)];
                servant.get(TEXT, &mut bytes)?;
                host.output(stream, &bytes).map_err(failed("write the output"))?;
                said = true;
            }
        }
        if let Some(ended) = ended
            && !said
        {
            return Ok(ended);
        }
        if ended.is_none() && !said {
            ended = wait_for(servant, process)?;
        }
    }
}

/// Which of the ends are ready, with the events.
fn poll(
    servant: &mut Servant<'_>,
    ends: &Ends,
    writing: bool,
    milliseconds: u64,
) -> Result<Vec<(u64, u16)>, InsideError> {
    let mut wanted: Vec<(u64, u16)> = ends.outputs.iter().map(|(fd, _)| (*fd, IN)).collect();
    if let Some(input) = ends.input.filter(|_| writing) {
        match wanted.iter_mut().find(|(fd, _)| *fd == input) {
            Some((_, events)) => *events |= OUT,
            None => wanted.push((input, OUT)),
        }
    }
    let mut table = Vec::new();
    for (fd, events) in &wanted {
        table.extend((*fd as u32).to_le_bytes());
        table.extend(events.to_le_bytes());
        table.extend([0; 2]);
    }
    servant.put(POLLS, &table)?;
    let count = wanted.len() as u64;
    servant.call("wait for the program", nr::POLL, [servant.room + POLLS, count, milliseconds, 0, 0, 0])?;
    servant.get(POLLS, &mut table)?;
    Ok(wanted
        .iter()
        .zip(table.chunks_exact(8))
        .map(|((fd, _), entry)| (*fd, u16::from_le_bytes([entry[6], entry[7]])))
        .collect())
}

/// The end of the process, if it has come to it (WNOHANG).
fn wait_for(servant: &mut Servant<'_>, process: u64) -> Result<Option<Ended>, InsideError> {
    let at = servant.room + STATUS;
    let found = servant.call("wait for the process", nr::WAIT4, [process, at, 1, 0, 0, 0])?;
    let mut status = [0; 4];
    servant.get(STATUS, &mut status)?;
    let status = u32::from_le_bytes(status);
    Ok((found == process).then_some(match status & 0x7f {
        0 => Ended::Exited((status >> 8) as u8),
        signal => Ended::Killed(signal as u8),
    }))
}
