//! Templates of moves, address computation and the stack.

use super::{
    emit::{Host, RAX},
    generate::Generator,
    integer::{Second, immediate},
};
use crate::insn::{Insn, Opd};

impl Generator<'_> {
    pub(super) fn mov(&mut self, insn: &Insn) -> bool {
        let size = insn.size;
        match (insn.a, insn.b) {
            (Opd::Mem, Opd::Imm) => {
                let Some(imm) = immediate(insn.imm, size) else { return false };
                self.operand(insn, size, true);
                self.code.store_immediate(size, RAX, 0, imm);
            }
            (Opd::Mem, b) => {
                let Some(b) = Self::register(b) else { return false };
                self.operand(insn, size, true);
                let from = self.registers.get(&mut self.code, b);
                self.code.store(size, RAX, 0, from);
            }
            (a, Opd::Mem) => {
                let Some(a) = Self::register(a) else { return false };
                self.operand(insn, size, false);
                let to = self.destination(a, size);
                self.code.load(size, to, RAX, 0);
            }
            (a, Opd::Imm) => {
                let Some(a) = Self::register(a) else { return false };
                let to = self.destination(a, size);
                match size {
                    8 => self.code.constant(to, insn.imm),
                    4 => self.code.constant(to, insn.imm & 0xffff_ffff),
                    _ => self.code.partial_constant(size, to, insn.imm as i32),
                }
            }
            (a, b) => {
                let (Some(a), Some(b)) = (Self::register(a), Self::register(b)) else { return false };
                let from = self.registers.get(&mut self.code, b);
                let to = self.destination(a, size);
                self.code.mov(size, to, from);
            }
        }
        true
    }

    /// The host register for a result of `size` bytes: smaller ones leave the rest of the register.
    fn destination(&mut self, guest: u8, size: u8) -> Host {
        if size >= 4 {
            self.registers.set(&mut self.code, guest)
        } else {
            self.registers.change(&mut self.code, guest)
        }
    }

    pub(super) fn extension(&mut self, insn: &Insn, signed: bool) -> bool {
        let (size, from) = (insn.size, insn.src_size);
        if size < 4 || !matches!(from, 1 | 2 | 4) {
            return false;
        }
        let Some(a) = Self::register(insn.a) else { return false };
        if insn.b == Opd::Mem {
            self.operand(insn, from, false);
            let to = self.registers.set(&mut self.code, a);
            self.code.extend_load(signed, from, size, to, RAX);
        } else {
            let Some(b) = Self::register(insn.b) else { return false };
            let from_host = self.registers.get(&mut self.code, b);
            let to = self.registers.set(&mut self.code, a);
            self.code.extend(signed, from, size, to, from_host);
        }
        true
    }

    pub(super) fn lea(&mut self, insn: &Insn) -> bool {
        let (Some(a), true) = (Self::register(insn.a), insn.size >= 4 && Self::has_address(insn)) else {
            return false;
        };
        self.address(insn.size, RAX, insn, false);
        let to = self.registers.set(&mut self.code, a);
        self.code.mov(8, to, RAX);
        true
    }

    pub(super) fn push(&mut self, insn: &Insn) -> bool {
        if insn.size != 8 {
            return false;
        }
        let second = match insn.a {
            Opd::Imm => match i32::try_from(insn.imm as i64) {
                Ok(imm) => Second::Immediate(imm),
                Err(_) => return false,
            },
            Opd::R(n) => Second::Register(self.registers.get(&mut self.code, n)),
            _ => return false,
        };
        let stack = self.registers.get(&mut self.code, 4);
        self.code.lea(8, RAX, Some(stack), None, -8);
        self.access(8, true);
        match second {
            Second::Register(host) => self.code.store(8, RAX, 0, host),
            Second::Immediate(imm) => self.code.store_immediate(8, RAX, 0, imm),
        }
        let stack = self.registers.change(&mut self.code, 4);
        self.code.lea(8, stack, Some(stack), None, -8);
        true
    }

    pub(super) fn pop(&mut self, insn: &Insn) -> bool {
        let (Opd::R(n), 8) = (insn.a, insn.size) else { return false };
        let stack = self.registers.get(&mut self.code, 4);
        self.code.mov(8, RAX, stack);
        self.access(8, false);
        let stack = self.registers.change(&mut self.code, 4);
        self.code.lea(8, stack, Some(stack), None, 8);
        let to = self.registers.set(&mut self.code, n);
        self.code.load(8, to, RAX, 0);
        true
    }

    pub(super) fn leave(&mut self, insn: &Insn) -> bool {
        if insn.size != 8 {
            return false;
        }
        let frame = self.registers.get(&mut self.code, 5);
        self.code.mov(8, RAX, frame);
        self.access(8, false);
        let stack = self.registers.set(&mut self.code, 4);
        self.code.lea(8, stack, Some(frame), None, 8);
        let frame = self.registers.set(&mut self.code, 5);
        self.code.load(8, frame, RAX, 0);
        true
    }

    pub(super) fn exchange(&mut self, insn: &Insn) -> bool {
        let (Opd::R(a), Opd::R(b), 8) = (insn.a, insn.b, insn.size) else { return false };
        if a != b {
            self.registers.exchange(&mut self.code, a, b);
        }
        true
    }
}
