//! The job's first process: from fork to exec.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use rewind_platform::{job::Job, record::REPORT_STARTED};

use crate::{
    device::Device,
    identity::Identity,
    sys::{self, check},
    terminal::Terminal,
};

/// Exit status of a shell for a program that is not there, and for one that cannot be run.
const NOT_FOUND: i32 = 127;
const NOT_RUNNABLE: i32 = 126;

/// Where programs are looked up when the job's environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Everything the child needs, allocated before the fork.
struct Prepared {
    argv: Vec<CString>,
    env: Vec<CString>,
    /// Programs to try, in order.
    candidates: Vec<CString>,
    name: String,
}

/// Starts the job and returns its process id. The child has executed the program, or ended with 126 or 127 and a
/// line on its standard error, by the time this returns.
pub(crate) fn start(
    device: &Device,
    job: &Job,
    identity: &Identity,
    terminal: Option<&Terminal>,
) -> Result<i32, String> {
    let prepared = prepare(job)?;
    let null = open_stream(c"/dev/null", libc::O_RDWR)?;
    let input = match terminal {
        Some(_) => None,
        None => outside_input()?,
    };
    let (out, err) = match terminal {
        Some(_) => (None, None),
        None => (
            Some(open_stream(c"/dev/rewind-out", libc::O_WRONLY)?),
            Some(open_stream(c"/dev/rewind-err", libc::O_WRONLY)?),
        ),
    };
    let (errors, child_errors) = pipe().map_err(|e| format!("cannot make a pipe: {e}"))?;
    // SAFETY: init has one thread, so the child may do what the parent may.
    let pid = check(unsafe { libc::fork() }).map_err(|e| format!("cannot start a process: {e}"))?;
    if pid == 0 {
        let streams = match (terminal, &out, &err) {
            (Some(t), ..) => [t.slave.as_raw_fd(); 3],
            (None, Some(out), Some(err)) => {
                [input.as_ref().unwrap_or(&null).as_raw_fd(), out.as_raw_fd(), err.as_raw_fd()]
            }
            _ => [null.as_raw_fd(); 3],
        };
        let text = match enter(device, identity, streams, terminal.is_some()) {
            Ok(()) => execute(&prepared),
            Err(text) => text,
        };
        // SAFETY: pointer and length of one string. If even this fails the parent sees an empty text, and says so.
        unsafe { libc::write(child_errors.as_raw_fd(), text.as_ptr().cast(), text.len()) };
        exit(NOT_RUNNABLE);
    }
    drop(child_errors);
    let mut text = String::new();
    io::Read::read_to_string(&mut std::fs::File::from(errors), &mut text)
        .map_err(|e| format!("cannot start the job: {e}"))?;
    if text.is_empty() { Ok(pid) } else { Err(text) }
}

/// Where outside input is read; none in a machine without.
pub(crate) fn outside_input() -> Result<Option<OwnedFd>, String> {
    match sys::open(c"/dev/rewind-in", libc::O_RDONLY) {
        Ok(input) => Ok(Some(input)),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(e) => Err(format!("cannot open /dev/rewind-in: {e}")),
    }
}

fn open_stream(path: &CStr, flags: i32) -> Result<OwnedFd, String> {
    sys::open(path, flags).map_err(|e| format!("cannot open {}: {e}", path.to_string_lossy()))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    check(unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) })?;
    // SAFETY: two descriptors that were just made and are nobody else's.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

fn prepare(job: &Job) -> Result<Prepared, String> {
    let strings = |from: &[Vec<u8>], what: &str| {
        from.iter()
            .map(|s| CString::new(s.clone()).map_err(|_| format!("{what} of the job has a NUL byte in it")))
            .collect::<Result<Vec<_>, _>>()
    };
    let argv = strings(&job.argv, "an argument")?;
    let program = job.argv.first().filter(|p| !p.is_empty()).ok_or("the job names no program")?;
    let path = job.env.iter().find_map(|e| e.strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
    let candidates = if program.contains(&b'/') {
        vec![program.clone()]
    } else {
        path.split(|b| *b == b':')
            .map(|folder| {
                let folder: &[u8] = if folder.is_empty() { b"." } else { folder };
                [folder, b"/", program].concat()
            })
            .collect()
    };
    Ok(Prepared {
        argv,
        env: strings(&job.env, "the environment")?,
        candidates: strings(&candidates, "the PATH")?,
        name: String::from_utf8_lossy(program).into_owned(),
    })
}

/// In the child: descriptors, session, name and user.
fn enter(device: &Device, identity: &Identity, streams: [i32; 3], terminal: bool) -> Result<(), String> {
    let failed = |what: &'static str| move |e: io::Error| format!("cannot {what} of the job: {e}");
    // SAFETY: no memory is touched.
    check(unsafe { libc::setsid() }).map_err(failed("make the session"))?;
    for (to, from) in streams.into_iter().enumerate() {
        // SAFETY: two descriptor numbers. Init's own are above 2, so no source is overwritten.
        check(unsafe { libc::dup2(from, to as i32) }).map_err(failed("set up the descriptors"))?;
    }
    if terminal {
        // SAFETY: descriptor 0 lives as long as this process.
        let stdin = unsafe { BorrowedFd::borrow_raw(0) };
        sys::ioctl_number(stdin, libc::TIOCSCTTY, 0).map_err(failed("set the terminal"))?;
    }
    reset_signals();
    device.report(REPORT_STARTED, b"").map_err(failed("report the start"))?;
    // From here on this process is the job's, and the device refuses it.
    device.become_root().map_err(failed("name the first process"))?;
    // SAFETY: pointer and length of one vector.
    check(unsafe { libc::setgroups(identity.groups.len(), identity.groups.as_ptr()) })
        .map_err(failed("take on the groups"))?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresgid(identity.gid, identity.gid, identity.gid) })
        .map_err(failed("take on the group"))?;
    // SAFETY: numbers only.
    check(unsafe { libc::setresuid(identity.uid, identity.uid, identity.uid) })
        .map_err(failed("take on the user"))?;
    Ok(())
}

/// Rust's runtime ignores SIGPIPE and init blocks SIGCHLD: the program gets the defaults.
fn reset_signals() {
    // SAFETY: the set is initialised by sigemptyset before it is used; SIG_DFL is a valid disposition.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
    }
}

/// In the child: as execvpe(3) and a shell do. Does not return but by leaving the process.
fn execute(prepared: &Prepared) -> ! {
    let mut refused = None;
    for path in &prepared.candidates {
        let error = exec(path, &prepared.argv, &prepared.env);
        match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) if !exists(path) => {}
            // A script without a first line that names its interpreter: the shell's.
            Some(libc::ENOEXEC) => {
                let mut argv = vec![c"/bin/sh".to_owned(), path.clone()];
                argv.extend(prepared.argv.iter().skip(1).cloned());
                let error = exec(c"/bin/sh", &argv, &prepared.env);
                refuse(path, &format!("not a program, and /bin/sh cannot run it: {error}"), NOT_RUNNABLE);
            }
            Some(libc::ENOENT) => {
                refuse(path, "its interpreter (loader or #! line) does not exist", NOT_FOUND)
            }
            // The search goes on, as execvp's does; if nothing is found this is the reason.
            Some(libc::EACCES) => refused = Some((path, error.to_string())),
            _ => refuse(path, &error.to_string(), NOT_RUNNABLE),
        }
    }
    match refused {
        Some((path, error)) => refuse(path, &error, NOT_RUNNABLE),
        None => {
            eprintln!("rewind: no such program: {}", prepared.name);
            exit(NOT_FOUND)
        }
    }
}

fn refuse(path: &CStr, why: &str, status: i32) -> ! {
    eprintln!("rewind: cannot run {}: {why}", path.to_string_lossy());
    exit(status)
}

fn exists(path: &CStr) -> bool {
    // SAFETY: a string that outlives the call.
    unsafe { libc::access(path.as_ptr(), libc::F_OK) == 0 }
}

/// execve(2); returns only its error.
fn exec(path: &CStr, argv: &[CString], env: &[CString]) -> io::Error {
    let pointers =
        |from: &[CString]| from.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>();
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with a null pointer and all strings outlive the call.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    io::Error::last_os_error()
}

fn exit(status: i32) -> ! {
    // SAFETY: ends the process, running nothing of the parent's.
    unsafe { libc::_exit(status) }
}
