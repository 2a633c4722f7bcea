//! The user registers of the thread that is about to run user code, where the kernel has saved them.

use debug::{
    kernel::{Kernel, translate},
    process,
};
use rewind_platform::state::Fact;
use vmm::{
    Machine,
    address::{Gpa, Gva},
};

use crate::InsideError;

/// Words of `struct pt_regs` (arch/x86/include/asm/ptrace.h).
const WORDS: usize = 21;
/// Their order.
pub(crate) mod word {
    pub(crate) const R10: usize = 7;
    pub(crate) const R9: usize = 8;
    pub(crate) const R8: usize = 9;
    pub(crate) const RAX: usize = 10;
    pub(crate) const RDX: usize = 12;
    pub(crate) const RSI: usize = 13;
    pub(crate) const RDI: usize = 14;
    pub(crate) const RIP: usize = 16;
    pub(crate) const FLAGS: usize = 18;
}

/// Trap flag and resume flag: nothing of the job's own debugging may stop a call of ours.
const TRAPS: u64 = 1 << 8 | 1 << 16;

/// `struct pt_regs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Saved(pub(crate) [u64; WORDS]);

impl Saved {
    /// Those of the current task, whose kernel stack they end.
    pub(crate) fn read(machine: &mut Machine) -> Result<Saved, InsideError> {
        let at = place(machine)?;
        let mut words = [0; WORDS];
        for (n, word) in words.iter_mut().enumerate() {
            *word = machine.memory().read_u64(Gpa(at.0 + 8 * n as u64))?;
        }
        Ok(Saved(words))
    }

    /// Puts them back, for the return to user mode that is about to happen.
    pub(crate) fn write(&self, machine: &mut Machine) -> Result<(), InsideError> {
        let at = place(machine)?;
        for (n, word) in self.0.iter().enumerate() {
            machine.memory().write_u64(Gpa(at.0 + 8 * n as u64), *word)?;
        }
        Ok(())
    }

    /// With a system call to be made by the instruction at `instruction`.
    pub(crate) fn calling(mut self, instruction: u64, number: u64, arguments: [u64; 6]) -> Saved {
        use word::*;
        self.0[RIP] = instruction;
        self.0[RAX] = number;
        self.0[FLAGS] &= !TRAPS;
        for (register, argument) in [RDI, RSI, RDX, R10, R8, R9].into_iter().zip(arguments) {
            self.0[register] = argument;
        }
        self
    }

    pub(crate) fn get(&self, word: usize) -> u64 {
        self.0[word]
    }
}

/// Guest-physical address of the current task's `pt_regs`. A kernel stack is whole pages, and these lie in its last.
fn place(machine: &mut Machine) -> Result<Gpa, InsideError> {
    let cpu = machine.cpu()?;
    let Some(kernel) = debug::look::kernel(machine) else { return Err(InsideError::Nobody(0)) };
    let task = process::current(&kernel, &cpu)?;
    let stack = kernel.field(task, Fact::TaskStack)?;
    let end = stack.wrapping_add(kernel.fact(Fact::ThreadSize)?);
    let at = Gva(end.wrapping_sub(kernel.fact(Fact::PtRegsSize)?));
    physical(&kernel, at)
}

/// Guest-physical address of kernel memory.
pub(crate) fn physical(kernel: &Kernel<'_>, at: Gva) -> Result<Gpa, InsideError> {
    let root = kernel.root()?;
    Ok(translate(kernel.memory(), root, at).ok_or(debug::kernel::ReadError::Unmapped(at))?)
}
