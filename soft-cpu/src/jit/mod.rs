//! The second tier: hot blocks compiled to host code by templates.
//!
//! A compiled piece of a block is one more handler (see `handler.rs`): it is entered through an op, finds the guest's
//! state in memory and leaves it there, and ends in a jump to another op's handler. So budgets, links, look-ups,
//! changed code, faults and hooks work as they do without it, and whether and when a block is compiled cannot be seen
//! in what the guest does.

mod branch;
mod buffer;
mod emit;
mod generate;
mod integer;
mod moves;
mod registers;
mod vector;

use crate::{
    block::{Block, Handler, Op},
    cpu::Cpu,
    tlb::Entry,
};

pub(crate) use buffer::Buffer;

/// When blocks are compiled to host code. What the guest does is the same in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compile {
    /// Never.
    Never,
    /// When they have run often enough to be worth it.
    #[default]
    Hot,
    /// As soon as they are decoded (for tests).
    Always,
}

/// Runs of a block after which it is compiled.
pub(crate) const HOT: u32 = 30;

impl Cpu {
    /// Chooses when blocks are compiled. Blocks compiled before stay.
    pub fn set_compile(&mut self, when: Compile) {
        self.compile = when;
    }

    /// Compiles a block. Only between blocks.
    pub(crate) fn compile_block(&mut self, block: *mut Block) {
        if self.code_buffer.is_none() {
            self.code_buffer = Buffer::new();
        }
        let Some(buffer) = &mut self.code_buffer else {
            self.compile = Compile::Never;
            return;
        };
        // SAFETY: a live block, and no block runs.
        let block = unsafe { &mut *block };
        // One instruction alone is no faster than its handler.
        let least = if self.compile == Compile::Always { 1 } else { 2 };
        for piece in generate::pieces(block, least) {
            let Some(at) = buffer.add(&piece.code) else {
                // All blocks are dropped when the next one is decoded.
                self.code_full = true;
                return;
            };
            // SAFETY: the piece is code with the signature and the contract of a handler; the buffer is only emptied
            // together with all blocks.
            let run = unsafe { std::mem::transmute::<*const u8, Handler>(at) };
            if piece.op == 1 {
                block.enter = run;
            }
            if piece.op != 1 || !block.doubtful {
                block.ops[piece.op].run = run;
            }
        }
    }
}

/// Calls the handler of `op`, and those of the ops handlers return, until one returns null. Compiled code uses all
/// registers, so this keeps the caller's.
///
/// # Safety
/// As for a handler.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn run_ops(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) {
    std::arch::naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi",
        "push rdx",
        "sub rsp, 8",
        "2:",
        "call [rsi]",
        "mov rsi, rax",
        "mov rdx, [rsp + 8]",
        "mov rdi, [rsp + 16]",
        "test rax, rax",
        "jnz 2b",
        "add rsp, 24",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}
