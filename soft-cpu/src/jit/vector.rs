//! Templates of SSE moves and of SSE operations that depend on nothing but their operands: the same operation on the host,
//! between two scratch registers. What reads or writes MXCSR has none.

use std::mem::offset_of;

use iced_x86::Code as C;

use super::{
    emit::{RAX, RDI},
    generate::{Generator, HostFlags},
};
use crate::{
    cpu::Cpu,
    fp::{self, FpState},
    insn::{Insn, Opd},
};

const EQUAL: u8 = 4;
const NOT_EQUAL: u8 = 5;

/// Distance of an XMM register from the CPU.
fn xmm(register: u8) -> i32 {
    (offset_of!(Cpu, fp) + offset_of!(FpState, xmm) + 16 * usize::from(register & 15)) as i32
}

/// Mandatory prefix (0: none) and opcode bytes of an instruction in the 0F maps.
fn opcode(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let mut mandatory = 0;
    let mut at = 0;
    loop {
        match *bytes.get(at)? {
            prefix @ (0xf2 | 0xf3) => mandatory = prefix,
            0x66 if mandatory == 0 => mandatory = 0x66,
            0x66 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 => {}
            _ => break,
        }
        at += 1;
    }
    if bytes.get(at)? & 0xf0 == 0x40 {
        at += 1;
    }
    if *bytes.get(at)? != 0x0f {
        return None;
    }
    let len = if matches!(bytes.get(at + 1)?, 0x38 | 0x3a) { 3 } else { 2 };
    Some((mandatory, bytes.get(at..at + len)?))
}

/// Operations with an immediate that depend on nothing but their operands.
fn with_immediate(code: C) -> bool {
    matches!(
        code,
        C::Pshufd_xmm_xmmm128_imm8
            | C::Pshuflw_xmm_xmmm128_imm8
            | C::Pshufhw_xmm_xmmm128_imm8
            | C::Shufps_xmm_xmmm128_imm8
            | C::Shufpd_xmm_xmmm128_imm8
            | C::Palignr_xmm_xmmm128_imm8
    )
}

fn shift_by_immediate(code: C) -> bool {
    fp::hot_immediate(code).is_some() || matches!(code, C::Psrldq_xmm_imm8 | C::Pslldq_xmm_imm8)
}

/// A plain move.
enum Move {
    /// All of a register, or memory of this many bytes zero-extended; must it be aligned?
    In(u8, bool),
    /// To memory; between registers as `In`.
    Out(u8, bool),
}

fn plain_move(insn: &Insn) -> Option<Move> {
    let memory = insn.a == Opd::Mem || insn.b == Opd::Mem;
    Some(match insn.code {
        C::Movups_xmm_xmmm128 | C::Movupd_xmm_xmmm128 | C::Movdqu_xmm_xmmm128 => Move::In(16, false),
        C::Movaps_xmm_xmmm128 | C::Movapd_xmm_xmmm128 | C::Movdqa_xmm_xmmm128 => Move::In(16, true),
        C::Movups_xmmm128_xmm | C::Movupd_xmmm128_xmm | C::Movdqu_xmmm128_xmm => Move::Out(16, false),
        C::Movaps_xmmm128_xmm | C::Movapd_xmmm128_xmm | C::Movdqa_xmmm128_xmm => Move::Out(16, true),
        C::Movntps_m128_xmm | C::Movntpd_m128_xmm | C::Movntdq_m128_xmm => Move::Out(16, true),
        C::Movss_xmm_xmmm32 | C::Movd_xmm_rm32 if memory => Move::In(4, false),
        C::Movsd_xmm_xmmm64 | C::Movq_xmm_xmmm64 | C::Movq_xmm_rm64 if memory => Move::In(8, false),
        C::Movss_xmmm32_xmm | C::Movd_rm32_xmm if memory => Move::Out(4, false),
        C::Movsd_xmmm64_xmm | C::Movq_xmmm64_xmm | C::Movq_rm64_xmm if memory => Move::Out(8, false),
        C::Movlps_m64_xmm | C::Movlpd_m64_xmm => Move::Out(8, false),
        _ => return None,
    })
}

/// Prefix of the move of that many bytes; the opcode is 0x10 (load) or 0x11 (store).
fn move_prefix(len: u8) -> u8 {
    match len {
        4 => 0xf3,
        8 => 0xf2,
        _ => 0,
    }
}

impl Generator<'_> {
    fn register_of(opd: Opd) -> Option<u8> {
        if let Opd::X(n) = opd { Some(n) } else { None }
    }

    /// Compiles an SSE instruction.
    pub(super) fn vector(&mut self, insn: &Insn) -> bool {
        let memory = insn.a == Opd::Mem || insn.b == Opd::Mem;
        if memory && !Self::has_address(insn) {
            return false;
        }
        if let Some(kind) = plain_move(insn) {
            return self.plain_vector_move(insn, &kind, memory);
        }
        match insn.code {
            C::Movd_xmm_rm32 | C::Movq_xmm_rm64 => {
                let (Some(x), Some(n)) = (Self::register_of(insn.a), Self::register(insn.b)) else {
                    return false;
                };
                self.check_vectors();
                let from = self.registers.get(&mut self.code, n);
                let size = if insn.code == C::Movd_xmm_rm32 { 4 } else { 8 };
                self.code.mov(size, RAX, from);
                self.code.store(8, RDI, xmm(x), RAX);
                self.code.store_immediate(8, RDI, xmm(x) + 8, 0);
                true
            }
            C::Movd_rm32_xmm | C::Movq_rm64_xmm => {
                let (Some(n), Some(x)) = (Self::register(insn.a), Self::register_of(insn.b)) else {
                    return false;
                };
                self.check_vectors();
                let to = self.registers.set(&mut self.code, n);
                self.code.load(if insn.code == C::Movd_rm32_xmm { 4 } else { 8 }, to, RDI, xmm(x));
                true
            }
            C::Pmovmskb_r32_xmm | C::Pmovmskb_r64_xmm => {
                let (Some(n), Some(x)) = (Self::register(insn.a), Self::register_of(insn.b)) else {
                    return false;
                };
                self.check_vectors();
                self.code.vector_memory(0, 0x10, 0, RDI, xmm(x));
                self.code.raw(&[0x66, 0x0f, 0xd7, 0xc0]);
                let to = self.registers.set(&mut self.code, n);
                self.code.mov(4, to, RAX);
                true
            }
            code if shift_by_immediate(code) => self.vector_shift(insn),
            code if with_immediate(code) || fp::is_vector_operation(code) => {
                self.vector_operation(insn, memory)
            }
            _ => false,
        }
    }

    /// Out, unless SSE is on.
    fn check_vectors(&mut self) {
        if !std::mem::replace(&mut self.vectors_checked, true) {
            self.host_flags = HostFlags::Unknown;
            self.code.compare_byte(RDI, offset_of!(Cpu, sse_on) as i32, 0);
            self.exit_if(EQUAL);
        }
    }

    /// The memory operand's host address in RAX; out if it should be aligned and is not.
    fn vector_operand(&mut self, insn: &Insn, len: u8, aligned: bool, write: bool) {
        self.operand(insn, len, write);
        if aligned {
            self.code.test_immediate(1, RAX, 15);
            self.exit_if(NOT_EQUAL);
        }
    }

    fn plain_vector_move(&mut self, insn: &Insn, kind: &Move, memory: bool) -> bool {
        match (Self::register_of(insn.a), Self::register_of(insn.b), kind) {
            (Some(a), Some(b), _) if !memory => {
                self.check_vectors();
                self.code.vector_memory(0, 0x10, 0, RDI, xmm(b));
                self.code.vector_memory(0, 0x11, 0, RDI, xmm(a));
            }
            (Some(a), _, &Move::In(len, aligned)) if insn.b == Opd::Mem => {
                self.check_vectors();
                self.vector_operand(insn, len, aligned, false);
                self.code.vector_memory(move_prefix(len), 0x10, 0, RAX, 0);
                self.code.vector_memory(0, 0x11, 0, RDI, xmm(a));
            }
            (_, Some(b), &Move::Out(len, aligned)) if insn.a == Opd::Mem => {
                self.check_vectors();
                self.vector_operand(insn, len, aligned, true);
                self.code.vector_memory(0, 0x10, 0, RDI, xmm(b));
                self.code.vector_memory(move_prefix(len), 0x11, 0, RAX, 0);
            }
            _ => return false,
        }
        true
    }

    fn vector_shift(&mut self, insn: &Insn) -> bool {
        let Some(a) = Self::register_of(insn.a) else { return false };
        let block = self.block;
        let bytes = &block.bytes[usize::from(insn.off)..usize::from(insn.off) + usize::from(insn.len)];
        let Some((0x66, &[0x0f, opcode @ 0x71..=0x73])) = opcode(bytes) else { return false };
        // The last two bytes are ModRM with the operation in its middle, and the count.
        let [.., modrm, count] = *bytes else { return false };
        self.check_vectors();
        self.code.vector_memory(0, 0x10, 0, RDI, xmm(a));
        self.code.raw(&[0x66, 0x0f, opcode, 0xc0 | modrm & 0x38, count]);
        self.code.vector_memory(0, 0x11, 0, RDI, xmm(a));
        true
    }

    /// `op xmm, xmm/m` with or without an immediate: on the host's XMM0 and XMM1.
    fn vector_operation(&mut self, insn: &Insn, memory: bool) -> bool {
        let (Some(a), Some(fp)) = (Self::register_of(insn.a), insn.fp) else { return false };
        let block = self.block;
        let bytes = &block.bytes[usize::from(insn.off)..usize::from(insn.off) + usize::from(insn.len)];
        let Some((mandatory, opcode)) = opcode(bytes) else { return false };
        if memory {
            let len = match fp.mem_len {
                len @ (4 | 8 | 16) => len as u8,
                _ => return false,
            };
            self.check_vectors();
            self.vector_operand(insn, len, fp.align == 16, false);
            self.code.vector_memory(move_prefix(len), 0x10, 1, RAX, 0);
        } else {
            let Some(b) = Self::register_of(insn.b) else { return false };
            self.check_vectors();
            self.code.vector_memory(0, 0x10, 1, RDI, xmm(b));
        }
        self.code.vector_memory(0, 0x10, 0, RDI, xmm(a));
        if mandatory != 0 {
            self.code.raw(&[mandatory]);
        }
        self.code.raw(opcode);
        self.code.raw(&[0xc1]);
        if with_immediate(insn.code) {
            self.code.raw(&[insn.imm as u8]);
        }
        self.code.vector_memory(0, 0x11, 0, RDI, xmm(a));
        true
    }
}
