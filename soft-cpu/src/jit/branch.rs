//! Templates of what ends a block: jumps, calls and conditional branches to constant distances, and returns.

use std::mem::offset_of;

use super::{
    emit::{Alu, RAX, RCX, RDI, RSI},
    generate::Generator,
    registers::place,
};
use crate::{
    block::{JUMPS, Jump},
    cpu::Cpu,
    exec,
    insn::{BASE, Insn, Opd},
};

/// Conditions of the host.
const NOT_EQUAL: u8 = 5;
const SIGN: u8 = 8;

impl Generator<'_> {
    /// The instruction at the end of a block: jumps, calls and conditional branches to constant distances.
    pub(super) fn end(&mut self, insn: &Insn, at: usize) -> bool {
        let is = |run: crate::insn::Exec| std::ptr::fn_addr_eq(insn.run, run);
        if is(exec::branch::ret) && insn.a == Opd::None {
            self.return_();
            return true;
        }
        let Ok(taken) = i32::try_from(insn.imm as i64) else { return false };
        let after = i64::from(insn.off) + i64::from(insn.len);
        let hot = self.block.covers[at].slots > 1;
        if insn.counted_branch && hot {
            if !self.want_flags() {
                return false;
            }
            self.registers.store_all(&mut self.code);
            let odd = insn.imm2 & 1;
            let hole = self.code.jump_if(insn.imm2 & 15);
            // The links: the one for the even condition first.
            self.leave_by(after, at + 3 - usize::from(odd), true);
            self.code.here(hole);
            self.leave_by(i64::from(taken), at + 2 + usize::from(odd), true);
            return true;
        }
        if insn.a != Opd::Imm || !hot {
            return false;
        }
        if is(exec::branch::jmp) {
            self.leave_by(i64::from(taken), at + 1, false);
            return true;
        }
        if is(exec::branch::call) {
            let stack = self.registers.get(&mut self.code, 4);
            self.code.lea(8, RAX, Some(stack), None, -8);
            self.access(8, true);
            self.code.load(8, RCX, RDI, place(BASE));
            self.code.alu_immediate(8, Alu::Add, RCX, after as i32);
            self.code.store(8, RAX, 0, RCX);
            let stack = self.registers.change(&mut self.code, 4);
            self.code.lea(8, stack, Some(stack), None, -8);
            self.leave_by(i64::from(taken), at + 1, false);
            return true;
        }
        false
    }

    /// RET, where the jump cache knows the target.
    fn return_(&mut self) {
        let tags = offset_of!(Cpu, jump_tags) as i32;
        let stack = self.registers.get(&mut self.code, 4);
        self.code.mov(8, RAX, stack);
        self.access(8, false);
        self.code.load(8, RCX, RAX, 0);
        // The slot, as `jump_slot` has it.
        self.code.mov(8, RAX, RCX);
        self.code.shift(8, 5, RAX, 14);
        self.code.alu(4, Alu::Xor, RAX, RCX);
        self.code.alu_immediate(4, Alu::And, RAX, JUMPS as i32 - 1);
        self.code.shift(4, 4, RAX, size_of::<Jump>().trailing_zeros() as u8);
        self.code.alu_load(8, Alu::Add, RAX, RDI, offset_of!(Cpu, jump_cache) as i32);
        // The key, as `jump_key` has it.
        self.code.mov(8, RSI, RCX);
        self.code.shift(8, 0, RSI, 16);
        self.code.test(8, RCX, RCX);
        let high = self.code.jump_if(SIGN);
        self.code.alu_load(8, Alu::Xor, RSI, RDI, tags);
        let low = self.code.jump();
        self.code.here(high);
        self.code.alu_load(8, Alu::Xor, RSI, RDI, tags + 8);
        self.code.here(low);
        self.code.alu_load(8, Alu::Cmp, RSI, RAX, offset_of!(Jump, key) as i32);
        self.exit_if(NOT_EQUAL);
        let stack = self.registers.change(&mut self.code, 4);
        self.code.lea(8, stack, Some(stack), None, 8);
        self.registers.store_all(&mut self.code);
        self.code.store(8, RDI, place(BASE), RCX);
        self.code.load(8, RSI, RAX, offset_of!(Jump, target) as i32);
        self.code.jump_memory(RSI);
    }
}
