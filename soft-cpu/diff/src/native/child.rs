//! The child process: maps the pages, runs batches, catches signals. After `fork` it allocates nothing and
//! calls nothing but system calls. While a case runs, FS is the case's, so the signal handler must not touch
//! thread-local storage.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicU32, Ordering},
};

use super::{
    shared::{Shared, kind},
    trampoline::{
        Control, EXIT_SPACING, rewind_diff_enter, rewind_diff_exits, rewind_diff_faulted, rewind_diff_handler,
    },
};
use crate::{
    case::take_changes,
    layout::{Access, CONTROL, EXITS, IMAGE, PAGE, SLOTS, SOFT_EXIT, SPANS, image_offset},
};

/// CPU time between two looks at whether a case hangs.
const WATCHDOG_US: i64 = 20_000;
/// The trap number the watchdog invents.
const TRAP_TIMEOUT: u64 = 1000;

/// What the child needs, made before the fork.
pub(super) struct Setup {
    pub(super) shared: *mut Shared,
    pub(super) image_fd: c_int,
    /// The image mapped writable, outside the case's addresses.
    pub(super) image: *mut u8,
    pub(super) background: Vec<u8>,
    pub(super) signal_stack: *mut c_void,
    pub(super) signal_stack_len: usize,
    pub(super) go: c_int,
    pub(super) done: c_int,
}

/// Counts cases, for the watchdog to see that one hangs.
static CURRENT: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicU32 = AtomicU32::new(u32::MAX);

fn control() -> *mut Control {
    CONTROL as *mut Control
}

fn give_up(code: c_int) -> ! {
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(code) }
}

/// SAFETY: `address` must be free of mappings the process needs.
unsafe fn map(address: u64, len: u64, prot: c_int, fd: c_int, offset: i64) {
    let flags = libc::MAP_FIXED_NOREPLACE
        | libc::MAP_POPULATE
        | if fd < 0 { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS } else { libc::MAP_SHARED };
    // SAFETY: FIXED_NOREPLACE never replaces a mapping.
    let at = unsafe { libc::mmap(address as *mut c_void, len as usize, prot, flags, fd, offset) };
    if at as u64 != address {
        give_up(90);
    }
}

/// Runs in the child and never returns.
///
/// SAFETY: only in a freshly forked process with one thread; `setup` must be valid.
pub(super) unsafe fn main(setup: &Setup) -> ! {
    const RW: c_int = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the whole function: system calls on our own mappings, in a process of one thread; the fixed
    // addresses are below everything the loader uses, and FIXED_NOREPLACE refuses otherwise.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        let mut offset = 0;
        for span in SPANS {
            let prot = match span.access {
                Access::ReadOnly => libc::PROT_READ,
                Access::ReadWrite => RW,
                Access::All => RW | libc::PROT_EXEC,
            };
            map(span.base, span.size(), prot, setup.image_fd, offset);
            offset += span.size() as i64;
        }
        map(CONTROL, PAGE, RW, -1, 0);
        (*control()).host_mxcsr = 0x1f80;
        map(SLOTS, PAGE, RW, -1, 0);
        let exits = rewind_diff_exits as *const () as u64;
        for k in 0..EXITS {
            *(SLOTS as *mut u64).add(k) = exits + EXIT_SPACING * k as u64;
        }
        libc::mprotect(SLOTS as *mut c_void, PAGE as usize, libc::PROT_READ);

        let stack = libc::stack_t { ss_sp: setup.signal_stack, ss_flags: 0, ss_size: setup.signal_stack_len };
        let mut failed = libc::sigaltstack(&stack, ptr::null_mut());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = rewind_diff_handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
        for signal in [libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGBUS, libc::SIGTRAP, libc::SIGPROF]
        {
            failed |= libc::sigaction(signal, &action, ptr::null_mut());
        }
        let tick = libc::timeval { tv_sec: 0, tv_usec: WATCHDOG_US };
        let timer = libc::itimerval { it_interval: tick, it_value: tick };
        failed |= libc::setitimer(libc::ITIMER_PROF, &timer, ptr::null_mut());
        if failed != 0 {
            give_up(91);
        }

        let shared = setup.shared;
        loop {
            let mut byte = 0u8;
            if libc::read(setup.go, (&raw mut byte).cast(), 1) != 1 {
                give_up(0);
            }
            for index in (*shared).first..(*shared).end {
                CURRENT.fetch_add(1, Ordering::Relaxed);
                (*shared).current.store(index, Ordering::Relaxed);
                run_one(setup, index as usize);
            }
            if libc::write(setup.done, (&raw const byte).cast(), 1) != 1 {
                give_up(92);
            }
        }
    }
}

/// SAFETY: as [`main`], after its set-up.
unsafe fn run_one(setup: &Setup, index: usize) {
    // SAFETY: `image` is a mapping of IMAGE bytes; the shared mapping has BATCH cases and outcomes, of which the
    // parent touches none until told we are done; the control page is ours.
    unsafe {
        let case = &(*setup.shared).cases[index];
        let out = &mut (*setup.shared).outcomes[index];
        for (address, bytes) in case.patches() {
            for (i, &byte) in bytes.iter().enumerate() {
                let Some(at) = image_offset(address + i as u64) else { give_up(93) };
                *setup.image.add(at) = byte;
            }
        }
        let c = control();
        let registers = &case.registers;
        (*c).fx_in = registers.fx;
        (*c).gpr_in = registers.gpr;
        (*c).frame[0] = registers.rip;
        (*c).frame[2] = registers.rflags;
        (*c).frame[3] = registers.gpr[4];
        (*c).fs_in = registers.fs_base;
        (*c).gs_in = registers.gs_base;
        (*c).trap = [0; 4];
        rewind_diff_enter();
        let trap = ptr::read_volatile(&raw const (*c).trap);
        (out.kind, out.number, out.error, out.cr2) = match trap[0] {
            0 => (kind::EXIT, (*c).exit as u32, 0, 0),
            TRAP_TIMEOUT => (kind::TIMEOUT, 0, 0, 0),
            14 | 15 => (kind::FAULT, trap[0] as u32 - 1, trap[1], if trap[0] == 15 { trap[2] } else { 0 }),
            n => (kind::FAULT, n as u32 - 1, trap[1], 0),
        };
        out.registers.fx = (*c).fx_out;
        out.registers.gpr = (*c).gpr_out;
        out.registers.rip = trap[3];
        out.registers.rflags = (*c).rflags_out;
        out.registers.fs_base = (*c).fs_out;
        out.registers.gs_base = (*c).gs_out;
        let image = std::slice::from_raw_parts_mut(setup.image, IMAGE);
        let mut chunks = 0;
        take_changes(image, &setup.background, |chunk| {
            out.chunk[chunks] = chunk;
            chunks += 1;
        });
        out.chunks = chunks as u32;
    }
}

/// Indices in the kernel's `gregs` of the registers in encoding order.
const GREGS: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Takes the case's registers from the signal frame and returns from the case instead of to it.
pub(super) extern "C" fn on_signal(signal: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    let c = control();
    // SAFETY: the kernel gives a valid context for SA_SIGINFO handlers; the control page is mapped before the
    // handlers are set; nothing else runs meanwhile.
    unsafe {
        let in_case = ptr::read_volatile(&raw const (*c).in_case) != 0;
        let mut trap = 0;
        if signal == libc::SIGPROF {
            let current = CURRENT.load(Ordering::Relaxed);
            let hangs = in_case && SEEN.swap(current, Ordering::Relaxed) == current;
            if !hangs {
                return;
            }
            trap = TRAP_TIMEOUT;
        } else if !in_case {
            give_up(94);
        }
        let machine = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        let get = |i: c_int| machine.gregs[i as usize] as u64;
        for (to, from) in (*c).gpr_out.iter_mut().zip(GREGS) {
            *to = get(from);
        }
        (*c).rflags_out = get(libc::REG_EFL);
        if trap == 0 {
            trap = get(libc::REG_TRAPNO) + 1;
        }
        let mut rip = get(libc::REG_RIP);
        let exits = rewind_diff_exits as *const () as u64;
        let exit = rip.wrapping_sub(exits);
        if exit < EXIT_SPACING * EXITS as u64 {
            // A single-step trap right after an exit stub: name the place as the software CPU does.
            rip = SOFT_EXIT + exit / EXIT_SPACING * 16;
        }
        (*c).trap = [trap, get(libc::REG_ERR), get(libc::REG_CR2), rip];
        ptr::copy_nonoverlapping(machine.fpregs.cast::<u8>(), (&raw mut (*c).fx_out).cast::<u8>(), 512);
        machine.gregs[libc::REG_RIP as usize] = rewind_diff_faulted as *const () as i64;
        machine.gregs[libc::REG_RSP as usize] = (*c).host_rsp as i64;
        machine.gregs[libc::REG_EFL as usize] = 0x202;
    }
}
