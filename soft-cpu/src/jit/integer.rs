//! Templates of integer instructions. Each returns false, and has then emitted nothing, if it has no form for the
//! instruction. Order in each: memory accesses (the only ways out), then registers and flags.

use iced_x86::Mnemonic as M;

use super::{
    emit::{Alu, Host, RAX, RCX, RDI, RSI},
    generate::{Generator, HostFlags, LAZY_CC, LAZY_DST, LAZY_SRC},
};
use crate::{
    exec,
    flags::{cc, kind},
    insn::{Insn, Opd},
};

fn alu_of(m: M) -> Option<Alu> {
    Some(match m {
        M::Add => Alu::Add,
        M::Sub => Alu::Sub,
        M::And => Alu::And,
        M::Or => Alu::Or,
        M::Xor => Alu::Xor,
        M::Cmp => Alu::Cmp,
        _ => return None,
    })
}

fn source_of(op: Alu) -> u32 {
    match op {
        Alu::Add => kind::ADD,
        Alu::Sub | Alu::Cmp => kind::SUB,
        _ => kind::LOGIC,
    }
}

/// An immediate that the host's instruction of this size can have.
pub(super) fn immediate(value: u64, size: u8) -> Option<i32> {
    let shift = 64 - 8 * u32::from(size);
    i32::try_from((value << shift) as i64 >> shift).ok()
}

/// Where a second operand is.
#[derive(Clone, Copy)]
pub(super) enum Second {
    Register(Host),
    Immediate(i32),
}

impl Generator<'_> {
    /// Compiles an instruction that does not end the block. `unseen`: its flags are.
    pub(super) fn instruction(&mut self, insn: &Insn, unseen: bool) -> bool {
        if insn.fp.is_some() {
            return self.vector(insn);
        }
        if !matches!(insn.size, 1 | 2 | 4 | 8)
            || [insn.a, insn.b].contains(&Opd::Mem) && !Self::has_address(insn)
        {
            return false;
        }
        let is = |run: crate::insn::Exec| std::ptr::fn_addr_eq(insn.run, run);
        let m = insn.code.mnemonic();
        if let Some(op) = alu_of(m) {
            return self.arithmetic(insn, op, unseen);
        }
        if is(exec::transfer::setcc) {
            return self.set_condition(insn);
        }
        if is(exec::transfer::cmov) {
            return self.conditional_move(insn);
        }
        match m {
            M::Test => self.test(insn, unseen),
            M::Mov if is(exec::transfer::mov) => self.mov(insn),
            M::Movzx => self.extension(insn, false),
            M::Movsx | M::Movsxd => self.extension(insn, true),
            M::Lea => self.lea(insn),
            M::Push => self.push(insn),
            M::Pop => self.pop(insn),
            M::Leave => self.leave(insn),
            M::Inc | M::Dec => self.step(insn, m == M::Inc, unseen),
            M::Shl | M::Sal => self.shift(insn, 4, unseen),
            M::Shr => self.shift(insn, 5, unseen),
            M::Sar => self.shift(insn, 7, unseen),
            M::Rol => unseen && self.rotate(insn, 0),
            M::Ror => unseen && self.rotate(insn, 1),
            M::Imul => self.imul(insn, unseen),
            M::Neg => self.neg(insn, unseen),
            M::Not => self.not(insn),
            M::Bswap => self.bswap(insn),
            M::Adc => self.carried(insn, Alu::Adc, unseen),
            M::Sbb => self.carried(insn, Alu::Sbb, unseen),
            M::Cwde => self.sign(2, 4),
            M::Cdqe => self.sign(4, 8),
            M::Xchg => self.exchange(insn),
            M::Nop | M::Endbr64 | M::Reservednop => true,
            M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchnta | M::Prefetchw => true,
            M::Pause | M::Lfence | M::Sfence | M::Mfence => true,
            _ => false,
        }
    }

    /// The second operand of an instruction on a register or memory, if it is a register or a fitting immediate.
    fn second(&mut self, insn: &Insn) -> Option<Second> {
        Some(match insn.b {
            Opd::Imm => Second::Immediate(immediate(insn.imm, insn.size)?),
            b => {
                let guest = Self::register(b)?;
                Second::Register(self.registers.get(&mut self.code, guest))
            }
        })
    }

    /// Notes the operand a sum or difference was made with.
    fn note_source(&mut self, second: Second) {
        match second {
            Second::Register(host) => self.code.store(8, RDI, LAZY_SRC, host),
            Second::Immediate(imm) => self.code.store_immediate(8, RDI, LAZY_SRC, imm),
        }
    }

    fn apply(&mut self, size: u8, op: Alu, to: Host, second: Second) {
        match second {
            Second::Register(host) => self.code.alu(size, op, to, host),
            Second::Immediate(imm) => self.code.alu_immediate(size, op, to, imm),
        }
    }

    /// `op to, second` with the flags noted unless nobody sees them. A comparison must not change `to`.
    fn operate(&mut self, size: u8, op: Alu, to: Host, second: Second, unseen: bool) {
        let source = source_of(op);
        if unseen {
            self.apply(size, op, to, second);
            self.host_flags = HostFlags::Guest;
            return;
        }
        if source != kind::LOGIC {
            self.note_source(second);
        }
        let mut result = to;
        if op == Alu::Cmp {
            // With a register of RAX or RCX already at hand nothing is lost by overwriting it.
            if to != RAX && to != RCX {
                result = RAX;
                self.code.mov(8, RAX, to);
            }
            self.apply(size, Alu::Sub, result, second);
        } else {
            self.apply(size, op, to, second);
        }
        self.code.store(8, RDI, LAZY_DST, result);
        self.note_kind(source, size);
        self.host_flags = HostFlags::Guest;
    }

    fn arithmetic(&mut self, insn: &Insn, op: Alu, unseen: bool) -> bool {
        let size = insn.size;
        match (insn.a, insn.b) {
            (Opd::Mem, _) => {
                let writes = op != Alu::Cmp;
                match insn.b {
                    Opd::Imm if immediate(insn.imm, size).is_none() => return false,
                    Opd::Imm => {}
                    b if Self::register(b).is_none() => return false,
                    _ => {}
                }
                self.operand(insn, size, writes);
                let Some(second) = self.second(insn) else { return false };
                self.code.load(size, RCX, RAX, 0);
                if writes {
                    // The host address is kept over the operation.
                    self.code.mov(8, RSI, RAX);
                    self.operate(size, op, RCX, second, unseen);
                    self.code.store(size, RSI, 0, RCX);
                } else {
                    self.operate(size, op, RCX, second, unseen);
                }
                true
            }
            (a, Opd::Mem) => {
                let Some(a) = Self::register(a) else { return false };
                self.operand(insn, size, false);
                self.code.load(size, RCX, RAX, 0);
                let to = if op == Alu::Cmp {
                    self.registers.get(&mut self.code, a)
                } else {
                    self.registers.change(&mut self.code, a)
                };
                self.operate(size, op, to, Second::Register(RCX), unseen);
                true
            }
            (a, b) => {
                let Some(a) = Self::register(a) else { return false };
                // xor r, r and sub r, r do not need the old value, but hold it anyway.
                let _ = b;
                let Some(second) = self.second(insn) else { return false };
                let to = if op == Alu::Cmp {
                    self.registers.get(&mut self.code, a)
                } else {
                    self.registers.change(&mut self.code, a)
                };
                self.operate(size, op, to, second, unseen);
                true
            }
        }
    }

    fn test(&mut self, insn: &Insn, unseen: bool) -> bool {
        let size = insn.size;
        match insn.b {
            Opd::Imm if immediate(insn.imm, size).is_none() => return false,
            Opd::Imm => {}
            b if Self::register(b).is_none() => return false,
            _ => {}
        }
        let first = if insn.a == Opd::Mem {
            self.operand(insn, size, false);
            self.code.load(size, RCX, RAX, 0);
            RCX
        } else {
            let Some(a) = Self::register(insn.a) else { return false };
            self.registers.get(&mut self.code, a)
        };
        let Some(second) = self.second(insn) else { return false };
        match second {
            _ if !unseen => {
                // The result is what the flags come from.
                let same = matches!(second, Second::Register(host) if host == first);
                let mut result = first;
                if same {
                    self.code.test(size, first, first);
                } else {
                    result = RAX;
                    self.code.mov(8, RAX, first);
                    self.apply(size, Alu::And, RAX, second);
                }
                self.code.store(8, RDI, LAZY_DST, result);
                self.note_kind(kind::LOGIC, size);
            }
            Second::Register(host) => self.code.test(size, first, host),
            Second::Immediate(imm) => self.code.test_immediate(size, first, imm),
        }
        self.host_flags = HostFlags::Guest;
        true
    }

    /// INC and DEC of a register: the carry stays, so it has to be known.
    fn step(&mut self, insn: &Insn, plus: bool, unseen: bool) -> bool {
        let Some(a) = Self::register(insn.a) else { return false };
        let size = insn.size;
        if !unseen {
            if !self.want_flags() {
                return false;
            }
            self.carry_to_rax();
            self.code.store(8, RDI, LAZY_SRC, RAX);
        }
        let to = self.registers.change(&mut self.code, a);
        self.code.step(size, u8::from(!plus), to);
        if unseen {
            self.host_flags = HostFlags::Unknown;
        } else {
            self.code.store(8, RDI, LAZY_DST, to);
            self.note_kind(if plus { kind::INC } else { kind::DEC }, size);
            self.host_flags = HostFlags::Guest;
        }
        true
    }

    /// The carry of the host's flags in RAX as 0 or 1; the flags stay.
    fn carry_to_rax(&mut self) {
        self.code.setcc(2, RAX);
        self.code.extend(false, 1, 4, RAX, RAX);
    }

    /// SHL (4), SHR (5), SAR (7) of a register by an immediate.
    fn shift(&mut self, insn: &Insn, op: u8, unseen: bool) -> bool {
        let size = insn.size;
        let (Some(a), true) = (Self::register(insn.a), size >= 4) else { return false };
        let count = match insn.b {
            Opd::Imm => insn.imm as u8 & (8 * size - 1),
            Opd::None => 1,
            _ => return false,
        };
        if count == 0 {
            return false;
        }
        let to = self.registers.change(&mut self.code, a);
        self.code.shift(size, op, to, count);
        self.host_flags = HostFlags::Unknown;
        if unseen {
            return true;
        }
        // CF and OF as `RESULT` has them; OF by the rule for one bit.
        self.carry_to_rax();
        if op != 7 {
            self.code.mov(size, RCX, to);
            let bit = 8 * size - if op == 4 { 1 } else { 2 };
            self.code.shift(size, 5, RCX, bit);
            self.code.alu_immediate(4, Alu::And, RCX, 1);
            if op == 4 {
                self.code.alu(4, Alu::Xor, RCX, RAX);
            }
            self.code.shift(4, 4, RCX, 11);
            self.code.alu(4, Alu::Or, RAX, RCX);
        }
        self.code.store(8, RDI, LAZY_SRC, RAX);
        self.code.store(8, RDI, LAZY_DST, to);
        self.note_kind(kind::RESULT, size);
        true
    }

    /// ROL (0) and ROR (1) of a register by an immediate whose flags nobody sees.
    fn rotate(&mut self, insn: &Insn, op: u8) -> bool {
        let (Some(a), true, Opd::Imm) = (Self::register(insn.a), insn.size >= 4, insn.b) else {
            return false;
        };
        let count = insn.imm as u8 & (8 * insn.size - 1);
        if count == 0 {
            return false;
        }
        let to = self.registers.change(&mut self.code, a);
        self.code.shift(insn.size, op, to, count);
        self.host_flags = HostFlags::Unknown;
        true
    }

    fn imul(&mut self, insn: &Insn, unseen: bool) -> bool {
        let size = insn.size;
        let (Some(a), true) = (Self::register(insn.a), size >= 4) else { return false };
        match (insn.b, insn.c) {
            (Opd::R(b), Opd::None) => {
                let from = self.registers.get(&mut self.code, b);
                let to = self.registers.change(&mut self.code, a);
                self.code.imul(size, to, from);
            }
            (Opd::Mem, Opd::None) => {
                self.operand(insn, size, false);
                self.code.load(size, RCX, RAX, 0);
                let to = self.registers.change(&mut self.code, a);
                self.code.imul(size, to, RCX);
            }
            (Opd::R(b), Opd::Imm) => {
                let Some(imm) = immediate(insn.imm, size) else { return false };
                let from = self.registers.get(&mut self.code, b);
                let to = self.registers.set(&mut self.code, a);
                self.code.imul_immediate(size, to, from, imm);
            }
            _ => return false,
        }
        self.host_flags = HostFlags::Unknown;
        if !unseen {
            self.carry_to_rax();
            // CF and OF alike.
            self.code.imul_immediate(4, RAX, RAX, 0x801);
            self.code.store(8, RDI, LAZY_SRC, RAX);
            let result = self.registers.get(&mut self.code, a);
            self.code.store(8, RDI, LAZY_DST, result);
            self.note_kind(kind::RESULT, size);
        }
        true
    }

    fn neg(&mut self, insn: &Insn, unseen: bool) -> bool {
        let Some(a) = Self::register(insn.a) else { return false };
        let to = self.registers.change(&mut self.code, a);
        if !unseen {
            self.code.store(8, RDI, LAZY_SRC, to);
        }
        self.code.unary(insn.size, 3, to);
        if !unseen {
            self.code.store(8, RDI, LAZY_DST, to);
            self.note_kind(kind::SUB, insn.size);
        }
        self.host_flags = HostFlags::Guest;
        true
    }

    fn not(&mut self, insn: &Insn) -> bool {
        let Some(a) = Self::register(insn.a) else { return false };
        let to = self.registers.change(&mut self.code, a);
        self.code.unary(insn.size, 2, to);
        true
    }

    fn bswap(&mut self, insn: &Insn) -> bool {
        let (Some(a), true) = (Self::register(insn.a), insn.size >= 4) else { return false };
        let to = self.registers.change(&mut self.code, a);
        self.code.bswap(insn.size, to);
        true
    }

    fn sign(&mut self, from: u8, to: u8) -> bool {
        let host = self.registers.change(&mut self.code, 0);
        self.code.extend(true, from, to, host, host);
        true
    }

    /// ADC and SBB of a register with a register or immediate.
    fn carried(&mut self, insn: &Insn, op: Alu, unseen: bool) -> bool {
        let size = insn.size;
        let (Some(a), true) = (Self::register(insn.a), size >= 4) else { return false };
        let fits = match insn.b {
            Opd::Imm => immediate(insn.imm, size).is_some(),
            b => Self::register(b).is_some(),
        };
        if !fits || !self.want_flags() {
            return false;
        }
        let Some(second) = self.second(insn) else { return false };
        let to = self.registers.change(&mut self.code, a);
        if !unseen {
            // With a carry the kind is the next one.
            let without = if op == Alu::Adc { kind::ADD } else { kind::SUB };
            self.carry_to_rax();
            self.code.lea(4, RAX, None, Some((RAX, 2)), cc(without, size) as i32);
            self.code.store(4, RDI, LAZY_CC, RAX);
            self.note_source(second);
        }
        self.apply(size, op, to, second);
        if !unseen {
            self.code.store(8, RDI, LAZY_DST, to);
            self.source = None;
        }
        self.host_flags = HostFlags::Guest;
        true
    }

    fn set_condition(&mut self, insn: &Insn) -> bool {
        let Some(a) = Self::register(insn.a) else { return false };
        if !self.want_flags() {
            return false;
        }
        let to = self.registers.change(&mut self.code, a);
        self.code.setcc(insn.imm2 & 15, to);
        true
    }

    fn conditional_move(&mut self, insn: &Insn) -> bool {
        let size = insn.size;
        let (Some(a), true) = (Self::register(insn.a), size >= 4) else { return false };
        if insn.b == Opd::Mem {
            if self.source.is_none_or(|(source, _)| !matches!(source, kind::ADD | kind::SUB | kind::LOGIC)) {
                return false;
            }
            self.operand(insn, size, false);
            self.code.load(size, RSI, RAX, 0);
            self.want_flags();
            let to = self.registers.change(&mut self.code, a);
            self.code.extended(size, 0x40 | insn.imm2 & 15, to, RSI);
            return true;
        }
        let Some(b) = Self::register(insn.b) else { return false };
        if !self.want_flags() {
            return false;
        }
        let from = self.registers.get(&mut self.code, b);
        let to = self.registers.change(&mut self.code, a);
        self.code.extended(size, 0x40 | insn.imm2 & 15, to, from);
        true
    }
}
