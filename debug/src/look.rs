//! Looks at a stopped machine: threads with their stacks and source lines.

use rewind_platform::state::Fact;
use vmm::{
    address::{Gpa, Gva},
    engine::CpuState,
    machine::Machine,
};

pub use crate::modules::{Files, ReadFile};
use crate::{
    kernel::{Kernel, Read, ReadError},
    maps,
    module::SourceFrame,
    process::{self, Thread, UserRegisters},
    unwind::{AddressSpace, Frame},
};

/// A system call a thread is in or has just left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// Its number.
    pub number: u64,
    /// Its first argument.
    pub first: u64,
}

/// One thread of a stopped machine.
#[derive(Clone, Debug)]
pub struct View {
    /// The thread.
    pub thread: Thread,
    /// Its user registers.
    pub registers: UserRegisters,
    /// Its stack, innermost first.
    pub stack: Vec<Frame>,
    /// The system call it is in, or returns from.
    pub syscall: Option<Syscall>,
    /// It is the one on the CPU.
    pub on_cpu: bool,
}

impl View {
    /// The innermost line of the user's own code: not of the C library, a language's runtime or an inlined header.
    pub fn own_line(&self) -> Option<&SourceFrame> {
        let lines = || self.stack.iter().flat_map(|frame| frame.source.iter().map(move |line| (frame, line)));
        let own = lines().find(|(frame, line)| line.line.is_some() && is_own(frame, line));
        own.or_else(|| lines().find(|(_, line)| line.line.is_some()))
            .or_else(|| lines().next())
            .map(|(_, line)| line)
    }
}

fn is_own(frame: &Frame, line: &SourceFrame) -> bool {
    is_users(line.file.as_deref().unwrap_or_default(), frame.module.as_deref().unwrap_or_default())
}

/// Is code of this source file in this module the user's own: not of the C library, a language's runtime or an
/// inlined header?
pub fn is_users(file: &str, module: &[u8]) -> bool {
    const FOREIGN_FILES: [&str; 11] = [
        "/rustc/",
        "/.cargo/",
        "/usr/include/",
        "/usr/lib/",
        "/usr/src/",
        "../sysdeps/",
        "/build/",
        "/sysdeps/",
        "/go/src/runtime/",
        "/go/src/internal/",
        "/go/src/sync/",
    ];
    const FOREIGN_MODULES: [&str; 7] =
        ["libc.", "libc-", "ld-linux", "libpthread", "libstdc++", "libgcc_s", "libm."];
    let module = String::from_utf8_lossy(module);
    let base = module.rsplit('/').next().unwrap_or_default();
    !FOREIGN_FILES.iter().any(|part| file.contains(part))
        && !FOREIGN_MODULES.iter().any(|part| base.starts_with(part))
}

/// A stopped machine that has published its state page.
pub fn kernel(machine: &Machine) -> Option<Kernel<'_>> {
    let state = machine.state_page()?;
    Some(Kernel::new(machine.memory(), state))
}

/// The address space of a thread with its modules.
pub fn address_space(kernel: &Kernel<'_>, thread: &Thread, files: &mut Files) -> Read<AddressSpace> {
    let Some(mm) = thread.mm else { return Ok(AddressSpace::default()) };
    let mappings = maps::mappings(kernel, mm)?;
    Ok(AddressSpace::new(&mappings, |mapping| files.mapped(kernel, mapping)))
}

/// Looks at one thread.
pub fn view(kernel: &Kernel<'_>, cpu: &CpuState, thread: Thread, files: &mut Files) -> Read<View> {
    let registers = thread.registers(kernel, cpu)?;
    let space = address_space(kernel, &thread, files)?;
    let stack = space.stack(&registers, |address| {
        let mut bytes = [0; 8];
        thread.read(kernel, Gva(address), &mut bytes).ok()?;
        Some(u64::from_le_bytes(bytes))
    });
    let on_cpu = process::current(kernel, cpu)? == thread.task;
    // orig_ax is -1 after anything but a system call (arch/x86/entry/entry_64.S, calling.h).
    let syscall = (registers.orig_rax < 1024)
        .then_some(Syscall { number: registers.orig_rax, first: registers.gpr[soft_rdi()] });
    Ok(View { thread, registers, stack, syscall, on_cpu })
}

/// RDI in [`UserRegisters::gpr`]: the first argument of a system call.
const fn soft_rdi() -> usize {
    7
}

/// Looks at every user thread outside init.
pub fn threads(machine: &mut Machine, files: &mut Files) -> Read<Vec<View>> {
    let cpu = machine.cpu().map_err(|_| ReadError::NoFact(Fact::CurrentTask))?;
    let Some(kernel) = kernel(machine) else { return Ok(Vec::new()) };
    let mut views = Vec::new();
    for thread in process::threads(&kernel)? {
        if thread.pid != 1 {
            views.push(view(&kernel, &cpu, thread, files)?);
        }
    }
    Ok(views)
}

/// Looks at the thread that committed the current step.
pub fn committed(machine: &mut Machine, files: &mut Files) -> Read<Option<View>> {
    let cpu = machine.cpu().map_err(|_| ReadError::NoFact(Fact::CurrentTask))?;
    let Some(kernel) = kernel(machine) else { return Ok(None) };
    let on_cpu = process::current(&kernel, &cpu)?;
    match process::threads(&kernel)?.into_iter().find(|thread| thread.task == on_cpu) {
        Some(thread) => view(&kernel, &cpu, thread, files).map(Some),
        None => Ok(None),
    }
}

/// Physical address of a thread's memory, for watches.
pub fn physical(kernel: &Kernel<'_>, thread: &Thread, at: Gva) -> Option<Gpa> {
    crate::kernel::translate(kernel.memory(), thread.root?, at)
}
