//! The job from its arrival to its end.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    ptr,
};

use rewind_platform::{
    job::{Job, JobEnd, OutputHash},
    record::{REPORT_ENDED, REPORT_OUTPUT},
};

use crate::{
    device::Device,
    identity, mounts, network, outputs, process,
    sys::{self, check},
    terminal::{self, Terminal},
};

/// Gets the job and does it. An error is the reason why it could not be done.
pub(crate) fn run(device: &Device) -> Result<(), String> {
    let job = device.job()?;
    sys::set_wall_clock(job.epoch).map_err(|e| format!("cannot set the clock to {}: {e}", job.epoch))?;
    sys::seed_generator(job.seed).map_err(|e| format!("cannot seed the random generator: {e}"))?;
    device.set_cores(job.cores).map_err(|e| format!("cannot report {} cores: {e}", job.cores))?;
    match job.images {
        0 => {}
        1 => mounts::enter_image(device, job.overlay_bytes)?,
        n => return Err(format!("the job has {n} images; one is the most that can be mounted")),
    }
    sys::set_host_name(&job.hostname)
        .map_err(|e| format!("cannot set the host name {}: {e}", job.hostname))?;
    mounts::complete_root(&job.hostname)?;
    network::loopback_up()?;
    let identity = identity::look_up(&job.user)?;
    let folder = Path::new(std::ffi::OsStr::from_bytes(&job.cwd));
    std::env::set_current_dir(folder)
        .map_err(|e| format!("cannot change to the working directory {}: {e}", folder.display()))?;

    let children = child_signals().map_err(|e| format!("cannot wait for processes: {e}"))?;
    let terminal = job.tty.then(terminal::open).transpose()?;
    let pid = process::start(device, &job, &identity, terminal.as_ref())?;
    let status = match terminal {
        None => wait_for(pid).map_err(|e| format!("cannot wait for the job: {e}"))?,
        Some(terminal) => {
            relay(terminal, &children, pid).map_err(|e| format!("cannot serve the terminal: {e}"))?
        }
    };
    end_the_rest();
    report(device, &job, status)
}

fn report(device: &Device, job: &Job, status: i32) -> Result<(), String> {
    let put = |kind, payload: Result<Vec<u8>, postcard::Error>| {
        let payload = payload.map_err(|e| e.to_string())?;
        device.report(kind, &payload).map_err(|e| format!("cannot report the end of the job: {e}"))
    };
    for path in &job.outputs {
        // The job has ended, and how is not for its outputs to say: one that cannot be read is as one that is not there.
        let hash = outputs::hash(Path::new(std::ffi::OsStr::from_bytes(path))).unwrap_or(None);
        put(REPORT_OUTPUT, postcard::to_allocvec(&OutputHash { path: path.clone(), hash }))?;
    }
    put(REPORT_ENDED, postcard::to_allocvec(&JobEnd { status }))
}

/// Blocks SIGCHLD and opens a descriptor that becomes readable with it.
fn child_signals() -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised by sigemptyset before it is used.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()))?;
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Reaps one process: its id and status, or `None` if none has ended or there is none at all (only with WNOHANG).
fn reap(flags: i32) -> io::Result<Option<(i32, i32)>> {
    let mut status = 0;
    loop {
        // SAFETY: points to an int.
        match check(unsafe { libc::waitpid(-1, &raw mut status, flags) }) {
            Ok(0) => return Ok(None),
            Ok(pid) => return Ok(Some((pid, status))),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(libc::ECHILD) && flags & libc::WNOHANG != 0 => {
                return Ok(None);
            }
            Err(e) => return Err(e),
        }
    }
}

/// Reaps whatever ends until `pid` has; its wait status.
fn wait_for(pid: i32) -> io::Result<i32> {
    loop {
        if let Some((ended, status)) = reap(0)?
            && ended == pid
        {
            return Ok(status);
        }
    }
}

/// Control-D, the terminal's VEOF.
const END_OF_INPUT: u8 = 4;

/// As [`wait_for`], passing on what is typed into the job's terminal and what it shows.
fn relay(terminal: Terminal, children: &OwnedFd, pid: i32) -> io::Result<i32> {
    drop(terminal.slave);
    let mut master = File::from(terminal.master);
    let mut output = File::from(sys::open(c"/dev/rewind-out", libc::O_WRONLY)?);
    let mut input = process::outside_input().map_err(io::Error::other)?.map(File::from);
    let mut buffer = vec![0; 4096];
    let mut pending = Vec::new();
    let mut ended = None;
    loop {
        // More is read only when the terminal has taken what there was; poll(2) passes over a negative descriptor.
        let typed = input.as_ref().filter(|_| pending.is_empty()).map_or(-1, AsRawFd::as_raw_fd);
        let mut fds = [master.as_raw_fd(), children.as_raw_fd(), typed].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        if !pending.is_empty() {
            fds[0].events |= libc::POLLOUT;
        }
        // What the terminal still holds when the job has ended is shown, not waited for.
        let timeout = if ended.is_some() { 0 } else { -1 };
        // SAFETY: pointer and length of one array.
        check(unsafe { libc::poll(fds.as_mut_ptr(), 3, timeout) })?;
        let readable = fds[0].revents & libc::POLLIN != 0;
        if readable {
            let n = master.read(&mut buffer)?;
            output.write_all(&buffer[..n])?;
        }
        if fds[2].revents & libc::POLLIN != 0
            && let Some(from) = &mut input
        {
            match from.read(&mut buffer)? {
                // The end of input, as one types it.
                0 => {
                    input = None;
                    pending.push(END_OF_INPUT);
                }
                n => pending.extend_from_slice(&buffer[..n]),
            }
        }
        if fds[0].revents & libc::POLLOUT != 0 {
            match master.write(&pending) {
                Ok(n) => drop(pending.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            }
        }
        if let (Some(status), false) = (ended, readable) {
            return Ok(status);
        }
        if fds[1].revents & libc::POLLIN != 0 || fds[0].revents & libc::POLLHUP != 0 {
            let mut signals = [0; 128 * 8];
            match File::from(children.try_clone()?).read(&mut signals) {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                _ => {}
            }
            // A terminal that everybody closed stays ready: from then on waiting is for the process alone.
            let hung_up = fds[0].revents & libc::POLLHUP != 0 && !readable;
            if hung_up && ended.is_none() {
                return wait_for(pid);
            }
            while let Some((reaped, status)) = reap(libc::WNOHANG)? {
                if reaped == pid {
                    ended = Some(status);
                    // What it left behind ends with it, and shows no more than the terminal holds.
                    kill_the_rest();
                }
            }
        }
    }
}

fn kill_the_rest() {
    // SAFETY: numbers only. It fails only if there is nobody to kill.
    unsafe { libc::kill(-1, libc::SIGKILL) };
}

/// Kills every process but this one and waits until they are gone.
fn end_the_rest() {
    kill_the_rest();
    // Ends with ECHILD: all of them have become children of init.
    while reap(0).is_ok() {}
}
