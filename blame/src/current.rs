//! The thread on the CPU, read cheaply: it is asked for at every access.

use debug::kernel::{Kernel, Read, translate};
use rewind_platform::state::Fact;
use vmm::address::{Gpa, Gva};

use crate::access::{Call, Who};

/// Bytes of struct pt_regs and places in it (arch/x86/include/asm/ptrace.h).
const ORIG_RAX: usize = 15;
const ARGUMENTS: [usize; 6] = [14, 13, 12, 7, 9, 8];

/// The task on the CPU.
pub(crate) fn task(kernel: &Kernel<'_>) -> Read<Gva> {
    Ok(Gva(kernel.u64(Gva(kernel.fact(Fact::CurrentTask)?))?))
}

/// Who that is.
pub(crate) fn who(kernel: &Kernel<'_>, task: Gva) -> Read<Who> {
    let comm = kernel.string(kernel.address_of(task, Fact::TaskComm)?, 16)?;
    Ok(Who {
        tid: kernel.field32(task, Fact::TaskPid)?,
        pid: kernel.field32(task, Fact::TaskTgid)?,
        program: String::from_utf8_lossy(&comm).into_owned(),
        name: kernel.field(task, Fact::TaskRewindName)?,
        task: task.0,
    })
}

/// The system call a thread in the kernel is in: none in a fault or an interrupt from user mode.
pub(crate) fn call(kernel: &Kernel<'_>, task: Gva) -> Read<Option<Call>> {
    let stack = kernel.field(task, Fact::TaskStack)?;
    let end = stack.wrapping_add(kernel.fact(Fact::ThreadSize)?);
    let at = end.wrapping_sub(kernel.fact(Fact::PtRegsSize)?);
    let word = |i: usize| kernel.u64(Gva(at.wrapping_add(8 * i as u64)));
    let number = word(ORIG_RAX)?;
    // It is -1 after anything but a system call (arch/x86/entry/entry_64.S).
    if number >= 1024 {
        return Ok(None);
    }
    let mut arguments = [0; 6];
    for (argument, place) in arguments.iter_mut().zip(ARGUMENTS) {
        *argument = word(place)?;
    }
    Ok(Some(Call { number, arguments }))
}

/// The mm of a task.
pub(crate) fn mm(kernel: &Kernel<'_>, task: Gva) -> Read<Option<Gva>> {
    let mm = kernel.field(task, Fact::TaskMm)?;
    Ok((mm != 0).then_some(Gva(mm)))
}

/// Page frame and offset behind an address of the kernel's.
pub(crate) fn kernel_page(kernel: &Kernel<'_>, at: u64) -> Option<Gpa> {
    translate(kernel.memory(), kernel.root().ok()?, Gva(at))
}
