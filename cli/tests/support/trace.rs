//! A process traced from outside, whose calls that change files are counted, and which is killed at one of them or made to
//! find the disk full from there on.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{Read, Seek, SeekFrom},
    os::unix::{fs::FileExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::{
    errno::Errno,
    libc::user_regs_struct,
    sys::{
        ptrace::{self, Options},
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

/// What happens at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process is killed before it.
    Kill,
    /// With half of it written, if it writes.
    Torn,
    /// It and all later ones that need space fail with ENOSPC.
    NoSpace,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Traced {
    /// Calls that change files.
    pub(crate) calls: u64,
    /// Its exit status; none if it was killed.
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

/// `-ENOSYS`: what RAX holds when a call is entered (ptrace(2), syscall-stops on x86-64).
const ENTERED: u64 = -38i64 as u64;
const NO_SPACE: u64 = -28i64 as u64;

/// Numbers of arch/x86/entry/syscalls/syscall_64.tbl.
const WRITES: [u64; 5] = [1, 18, 20, 296, 285];
const BY_DESCRIPTOR: [u64; 3] = [77, 74, 75];
const BY_PATH: [u64; 11] = [83, 258, 82, 264, 316, 87, 263, 84, 86, 265, 88];
const MAKES: [u64; 5] = [83, 258, 86, 265, 88];
const OPENAT: u64 = 257;
const O_CREAT: u64 = 0o100;

/// Runs the command; `at` counts from 1.
pub(crate) fn traced(mut command: Command, home: &Path, plan: Option<(Fault, u64)>) -> Traced {
    let output = |name: &str| {
        let path = home.with_file_name(format!("traced-{name}"));
        File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap()
    };
    let (mut out, mut errors) = (output("out"), output("err"));
    command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(errors.try_clone().unwrap());
    // SAFETY: one system call, which is safe between fork and exec.
    unsafe { command.pre_exec(|| Ok(ptrace::traceme()?)) };
    #[expect(clippy::zombie_processes, reason = "the tracer waits for it and all its threads")]
    let child = command.spawn().unwrap();
    let main = Pid::from_raw(child.id() as i32);
    let mut tracer = Tracer { home: home.to_owned(), plan, calls: 0, leaving: BTreeMap::new(), main };
    let status = tracer.follow();
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Traced { calls: tracer.calls, status, out: text(&mut out), errors: text(&mut errors) }
}

/// What to do when a call returns.
enum Leave {
    Kill,
    NoSpace,
}

struct Tracer {
    home: PathBuf,
    plan: Option<(Fault, u64)>,
    calls: u64,
    leaving: BTreeMap<Pid, Leave>,
    main: Pid,
}

impl Tracer {
    fn follow(&mut self) -> Option<i32> {
        let stopped = waitpid(self.main, None).unwrap();
        assert!(matches!(stopped, WaitStatus::Stopped(_, Signal::SIGTRAP)), "{stopped:?}");
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_EXITKILL;
        ptrace::setoptions(self.main, options).unwrap();
        ptrace::syscall(self.main, None).unwrap();
        let mut status = None;
        loop {
            let event = match waitpid(None, Some(WaitPidFlag::__WALL)) {
                Ok(event) => event,
                Err(Errno::ECHILD) => return status,
                Err(error) => panic!("waitpid: {error}"),
            };
            let (pid, signal) = match event {
                WaitStatus::Exited(pid, code) => {
                    status = if pid == self.main { Some(code) } else { status };
                    continue;
                }
                WaitStatus::Signaled(..) => continue,
                WaitStatus::PtraceSyscall(pid) => {
                    self.system_call(pid);
                    (pid, None)
                }
                // A new thread begins with a stop of its own.
                WaitStatus::Stopped(pid, Signal::SIGSTOP) | WaitStatus::PtraceEvent(pid, ..) => (pid, None),
                WaitStatus::Stopped(pid, signal) => (pid, Some(signal)),
                other => panic!("{other:?}"),
            };
            match ptrace::syscall(pid, signal) {
                // Killed meanwhile.
                Ok(()) | Err(Errno::ESRCH) => {}
                Err(error) => panic!("ptrace: {error}"),
            }
        }
    }

    fn system_call(&mut self, pid: Pid) {
        let Ok(mut regs) = ptrace::getregs(pid) else { return };
        if let Some(leave) = self.leaving.remove(&pid) {
            match leave {
                Leave::Kill => kill(self.main, Signal::SIGKILL).unwrap(),
                Leave::NoSpace => {
                    regs.rax = NO_SPACE;
                    ptrace::setregs(pid, regs).unwrap();
                }
            }
            return;
        }
        if regs.rax != ENTERED || !self.changes_files(pid, &regs) {
            return;
        }
        self.calls += 1;
        match self.plan {
            Some((Fault::Torn, at)) if at == self.calls && WRITES[..2].contains(&regs.orig_rax) => {
                regs.rdx /= 2;
                ptrace::setregs(pid, regs).unwrap();
                self.leaving.insert(pid, Leave::Kill);
            }
            Some((Fault::Kill | Fault::Torn, at)) if at == self.calls => {
                kill(self.main, Signal::SIGKILL).unwrap()
            }
            Some((Fault::NoSpace, at)) if at <= self.calls && self.needs_space(pid, &regs) => {
                // No call of this number: the kernel does nothing.
                regs.orig_rax = u64::MAX;
                ptrace::setregs(pid, regs).unwrap();
                self.leaving.insert(pid, Leave::NoSpace);
            }
            _ => {}
        }
    }

    fn changes_files(&self, pid: Pid, regs: &user_regs_struct) -> bool {
        let number = regs.orig_rax;
        if WRITES.contains(&number) || BY_DESCRIPTOR.contains(&number) {
            let file = std::fs::read_link(format!("/proc/{pid}/fd/{}", regs.rdi));
            return file.is_ok_and(|file| file.starts_with(&self.home));
        }
        BY_PATH.contains(&number) || (number == OPENAT && regs.rdx & O_CREAT != 0)
    }

    fn needs_space(&self, pid: Pid, regs: &user_regs_struct) -> bool {
        let number = regs.orig_rax;
        let new = || {
            let path = string(pid, regs.rsi);
            !Path::new(&path).exists()
        };
        WRITES.contains(&number) || MAKES.contains(&number) || (number == OPENAT && new())
    }
}

/// A path in the process's memory.
fn string(pid: Pid, at: u64) -> String {
    let mut bytes = vec![0; 4096];
    let memory = File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut got = 0;
    // The page behind may not be there.
    while got < bytes.len() && !bytes[..got].contains(&0) {
        let part = (4096 - (at as usize + got) % 4096).min(bytes.len() - got);
        match memory.read_at(&mut bytes[got..got + part], at + got as u64) {
            Ok(len) if len > 0 => got += len,
            _ => break,
        }
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(got);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
