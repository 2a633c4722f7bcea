//! Why a thread is not running: what it waits for in the kernel.

use rewind_platform::state::Fact;
use vmm::address::Gva;

use crate::{
    files,
    kernel::{Kernel, Read},
    look::View,
    symbols::KernelSymbols,
};

/// What a thread does in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// "runnable", "sleeping", "stopped", ...
    pub state: &'static str,
    /// The system call with what is known of its arguments: "read(3: pipe)".
    pub syscall: Option<String>,
    /// Kernel functions it sleeps in, innermost first, without the scheduler's own; empty without kernel symbols.
    pub kernel: Vec<String>,
}

/// Task state bits (include/linux/sched.h).
const TASK_INTERRUPTIBLE: u32 = 1;
const TASK_UNINTERRUPTIBLE: u32 = 2;
const TASK_STOPPED: u32 = 4;
const TASK_TRACED: u32 = 8;
const EXITED: u32 = 0xb0;

/// The state in a word.
pub fn state_word(state: u32) -> &'static str {
    match state {
        0 => "runnable",
        s if s & TASK_STOPPED != 0 => "stopped",
        s if s & TASK_TRACED != 0 => "traced",
        s if s & EXITED != 0 => "exited",
        s if s & TASK_INTERRUPTIBLE != 0 => "sleeping",
        s if s & TASK_UNINTERRUPTIBLE != 0 => "waiting",
        _ => "not running",
    }
}

/// The name of a system call.
pub fn syscall_name(number: u64) -> String {
    let name = usize::try_from(number).ok().and_then(syscalls::Sysno::new);
    name.map_or_else(|| format!("syscall {number}"), |name| name.name().to_owned())
}

/// What a thread that is not on the CPU is doing. `symbols`: the guest kernel's.
pub fn wait(kernel: &Kernel<'_>, view: &View, symbols: Option<&KernelSymbols>) -> Wait {
    let syscall = view.syscall.map(|call| {
        let arguments = arguments(kernel, view, call.number);
        format!("{}({arguments})", syscall_name(call.number))
    });
    let asleep = view.thread.state != 0 && !view.on_cpu;
    let kernel = match symbols {
        Some(symbols) if asleep => kernel_stack(kernel, view.thread.task, symbols).unwrap_or_default(),
        _ => Vec::new(),
    };
    Wait { state: state_word(view.thread.state), syscall, kernel }
}

/// Arguments that say something: descriptors with what they are, addresses waited on.
fn arguments(kernel: &Kernel<'_>, view: &View, number: u64) -> String {
    let [_, _, rdx, _, _, _, rsi, rdi, ..] = view.registers.gpr;
    match syscalls::Sysno::new(usize::try_from(number).unwrap_or(usize::MAX)) {
        Some(syscalls::Sysno::futex) => {
            let mut value = [0; 4];
            let held = match view.thread.read(kernel, Gva(rdi), &mut value) {
                Ok(()) => format!(", holds {}", u32::from_le_bytes(value)),
                Err(_) => String::new(),
            };
            // FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME are flags (include/uapi/linux/futex.h).
            let operation = match rsi & 0x7f {
                0 | 9 | 11 => "wait",
                1 | 10 => "wake",
                3 | 4 | 12 => "requeue",
                6 | 13 => "lock",
                7 => "unlock",
                _ => "other",
            };
            format!("{rdi:#x}, {operation} for {}{held}", rdx as u32)
        }
        Some(syscalls::Sysno::wait4) => match rdi as i32 {
            -1 => "any child".into(),
            pid => format!("process {pid}"),
        },
        Some(syscalls::Sysno::clock_nanosleep) => time(kernel, view, rdx),
        Some(syscalls::Sysno::nanosleep) => time(kernel, view, rdi),
        Some(syscalls::Sysno::poll | syscalls::Sysno::ppoll) => polled(kernel, view, rdi, rsi),
        Some(syscalls::Sysno::epoll_wait | syscalls::Sysno::epoll_pwait) => descriptor(kernel, view, rdi),
        Some(call) if takes_descriptor(call) => descriptor(kernel, view, rdi),
        _ => String::new(),
    }
}

fn takes_descriptor(call: syscalls::Sysno) -> bool {
    use syscalls::Sysno as S;
    matches!(
        call,
        S::read
            | S::write
            | S::readv
            | S::writev
            | S::pread64
            | S::pwrite64
            | S::close
            | S::fsync
            | S::fstat
            | S::lseek
            | S::ioctl
            | S::fcntl
            | S::flock
            | S::accept
            | S::accept4
            | S::connect
            | S::recvfrom
            | S::sendto
            | S::recvmsg
            | S::sendmsg
            | S::getdents64
            | S::ftruncate
    )
}

fn descriptor(kernel: &Kernel<'_>, view: &View, fd: u64) -> String {
    let name = files::open_files(kernel, view.thread.task).ok().and_then(|open| {
        let file = open.into_iter().find(|file| u64::from(file.fd) == fd & 0xffff_ffff)?;
        Some(String::from_utf8_lossy(&file.path).into_owned())
    });
    match name {
        Some(name) if !name.is_empty() => format!("{}: {name}", fd as i32),
        _ => format!("{}", fd as i32),
    }
}

/// `struct timespec` at `at`.
fn time(kernel: &Kernel<'_>, view: &View, at: u64) -> String {
    let mut bytes = [0; 16];
    match view.thread.read(kernel, Gva(at), &mut bytes) {
        Ok(()) => {
            let word = |i: usize| u64::from_le_bytes(bytes[i..i + 8].try_into().unwrap_or_default());
            format!("{}.{:09} s", word(0), word(8))
        }
        Err(_) => String::new(),
    }
}

/// `struct pollfd` times `count` at `at`: the descriptors.
fn polled(kernel: &Kernel<'_>, view: &View, at: u64, count: u64) -> String {
    let mut bytes = vec![0; count.min(8) as usize * 8];
    if view.thread.read(kernel, Gva(at), &mut bytes).is_err() {
        return String::new();
    }
    let fds = bytes.chunks_exact(8).map(|entry| {
        let fd = u32::from_le_bytes(entry[..4].try_into().unwrap_or_default());
        descriptor(kernel, view, u64::from(fd))
    });
    fds.collect::<Vec<_>>().join(", ")
}

/// Deepest kernel stack walked.
const MOST_FRAMES: usize = 32;

/// Functions a sleeping task is in, by the frame pointers the guest kernel is built with.
fn kernel_stack(kernel: &Kernel<'_>, task: Gva, symbols: &KernelSymbols) -> Read<Vec<String>> {
    let thread = kernel.address_of(task, Fact::TaskThread)?;
    let sp = kernel.field(thread, Fact::ThreadSp)?;
    let stack = kernel.field(task, Fact::TaskStack)?;
    let inside = stack..stack.wrapping_add(kernel.fact(Fact::ThreadSize)?);
    // struct inactive_task_frame (arch/x86/include/asm/switch_to.h): r15, r14, r13, r12, bx, bp, return address.
    let mut frame = kernel.u64(Gva(sp.wrapping_add(5 * 8)))?;
    let mut at = kernel.u64(Gva(sp.wrapping_add(6 * 8)))?;
    let mut out = Vec::new();
    for _ in 0..MOST_FRAMES {
        match symbols.name(at.wrapping_sub(1)) {
            Some(name) if !is_scheduler(name) => out.push(name.to_owned()),
            Some(_) => {}
            None => break,
        }
        if !inside.contains(&frame) {
            break;
        }
        let next = kernel.u64(Gva(frame))?;
        at = kernel.u64(Gva(frame.wrapping_add(8)))?;
        if next <= frame {
            break;
        }
        frame = next;
    }
    Ok(out)
}

/// Functions every sleeper is in, which say nothing of why.
fn is_scheduler(name: &str) -> bool {
    name.contains("schedule") || name.starts_with("__switch_to") || name.starts_with("context_switch")
}
