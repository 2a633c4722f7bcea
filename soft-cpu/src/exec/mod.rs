//! What each instruction does, in its general form: one function per group, over [`Insn`].
//!
//! These are the reference: complete and exact. `hot/` has faster forms of the common ones, which fall back to
//! these whenever an access misses the TLB or anything else is out of the ordinary.

pub(crate) mod alu;
pub(crate) mod bits;
pub(crate) mod branch;
pub(crate) mod fpu;
pub(crate) mod io;
pub(crate) mod muldiv;
mod resolve;
pub(crate) mod segment;
pub(crate) mod shift;
pub(crate) mod stack;
pub(crate) mod string;
pub(crate) mod system;
pub(crate) mod transfer;

pub(crate) use resolve::resolve;

use crate::{
    access::Span,
    cpu::Cpu,
    fault::{gp, ud},
    insn::{Insn, Opd, R},
};

/// #UD.
pub(crate) fn raise_ud(_: &mut Cpu, _: &Insn) -> R {
    Err(ud())
}

/// #GP(0): the instruction is longer than fifteen bytes.
pub(crate) fn raise_gp(_: &mut Cpu, _: &Insn) -> R {
    Err(gp(0))
}

/// #UD with a count: an instruction the CPU model has not.
pub(crate) fn outside_model(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.report(format!("{:?}", insn.code.mnemonic()).to_uppercase());
    Err(ud())
}

/// Does nothing.
pub(crate) fn nop(_: &mut Cpu, _: &Insn) -> R {
    Ok(())
}

/// All ones in `size` bytes.
#[inline(always)]
pub(crate) fn mask(size: u8) -> u64 {
    !0 >> (64 - 8 * u32::from(size))
}

/// `value` of `size` bytes, sign-extended.
#[inline(always)]
pub(crate) fn sign_extend(value: u64, size: u8) -> u64 {
    let shift = 64 - 8 * u32::from(size);
    ((value << shift) as i64 >> shift) as u64
}

/// Where a read-modify-write puts its result.
pub(crate) enum Place {
    Register(Opd),
    Memory(Span),
}

impl Cpu {
    /// Effective linear address of the memory operand.
    #[inline]
    pub(crate) fn address(&self, insn: &Insn) -> u64 {
        let mut at = self.gpr[insn.base as usize]
            .wrapping_add(self.gpr[insn.index as usize] << insn.scale)
            .wrapping_add(insn.disp as u64);
        if insn.addr32 {
            at = u64::from(at as u32);
        }
        at.wrapping_add(self.gpr[insn.seg as usize])
    }

    /// Reads a register of `size` bytes.
    #[inline]
    pub(crate) fn register(&self, opd: Opd, size: u8) -> u64 {
        match opd {
            Opd::R(n) => self.gpr[n as usize] & mask(size),
            Opd::R8(at) => self.gpr[at as usize / 8] >> (at % 8 * 8) & 0xff,
            _ => 0,
        }
    }

    /// Writes a register of `size` bytes as the architecture does (32-bit writes clear the upper half).
    #[inline]
    pub(crate) fn set_register(&mut self, opd: Opd, size: u8, value: u64) {
        match opd {
            Opd::R(n) => {
                let r = &mut self.gpr[n as usize];
                match size {
                    8 => *r = value,
                    4 => *r = u64::from(value as u32),
                    2 => *r = *r & !0xffff | value & 0xffff,
                    _ => *r = *r & !0xff | value & 0xff,
                }
            }
            Opd::R8(at) => {
                let shift = at % 8 * 8;
                let r = &mut self.gpr[at as usize / 8];
                *r = *r & !(0xff << shift) | (value & 0xff) << shift;
            }
            _ => {}
        }
    }

    /// Reads any operand of `size` bytes, zero-extended.
    #[inline]
    pub(crate) fn get(&mut self, insn: &Insn, opd: Opd, size: u8) -> R<u64> {
        match opd {
            Opd::Mem => self.load(self.address(insn), size, insn.stack),
            Opd::Imm => Ok(insn.imm & mask(size)),
            _ => Ok(self.register(opd, size)),
        }
    }

    /// Writes any operand.
    #[inline]
    pub(crate) fn put(&mut self, insn: &Insn, opd: Opd, size: u8, value: u64) -> R {
        match opd {
            Opd::Mem => self.store(self.address(insn), size, value, insn.stack),
            _ => {
                self.set_register(opd, size, value);
                Ok(())
            }
        }
    }

    /// First half of a read-modify-write: the old value, with the right to write already checked.
    #[inline]
    pub(crate) fn begin(&mut self, insn: &Insn, opd: Opd, size: u8) -> R<(u64, Place)> {
        if opd == Opd::Mem {
            let span = self.span(self.address(insn), usize::from(size), true, self.user, insn.stack)?;
            return Ok((span.read(), Place::Memory(span)));
        }
        Ok((self.register(opd, size), Place::Register(opd)))
    }

    /// Second half.
    #[inline]
    pub(crate) fn end(&mut self, place: Place, size: u8, value: u64) {
        match place {
            Place::Register(opd) => self.set_register(opd, size, value),
            Place::Memory(span) => span.write(value),
        }
    }

    /// Raises #GP(0) unless at CPL 0.
    pub(crate) fn privileged(&self) -> R {
        if self.user { Err(gp(0)) } else { Ok(()) }
    }
}
