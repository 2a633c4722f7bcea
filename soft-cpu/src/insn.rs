//! One decoded instruction as the executing functions take it.

use iced_x86::Code;

use crate::{cpu::Cpu, fault::Abort, fp::FpInsn};

/// What an executing function returns.
pub(crate) type R<T = ()> = Result<T, Abort>;

/// Executes one instruction. `cpu.next_rip` is the address after it and may be changed.
pub(crate) type Exec = fn(&mut Cpu, &Insn) -> R;

/// Register-file index that always holds zero.
pub(crate) const ZERO: u8 = 16;
/// Register-file index of the linear address of the current block.
pub(crate) const BASE: u8 = 17;
/// Register-file index of the FS base.
pub(crate) const FS: u8 = 18;
/// Register-file index of the GS base.
pub(crate) const GS: u8 = 19;

/// An operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opd {
    /// Absent.
    None,
    /// 8-bit register: byte offset in the register file (AH is 1).
    R8(u8),
    /// 16-, 32- or 64-bit general register.
    R(u8),
    /// The memory operand.
    Mem,
    /// `Insn::imm`.
    Imm,
    /// XMM register.
    X(u8),
    /// MMX or x87 register.
    F(u8),
    /// Segment register, in encoding order (ES, CS, SS, DS, FS, GS).
    Seg(u8),
    /// Control register.
    Cr(u8),
    /// Debug register.
    Dr(u8),
}

/// REP prefix in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rep {
    /// None.
    No,
    /// F3.
    E,
    /// F2.
    Ne,
}

/// One instruction.
#[derive(Clone, Debug)]
pub(crate) struct Insn {
    /// Does it.
    pub(crate) run: Exec,
    /// Immediate (extended to the operand's size); for near branches the target's offset from the block; for
    /// a far pointer the whole.
    pub(crate) imm: u64,
    /// Second immediate (ENTER), or a condition (Jcc, SETcc, CMOVcc).
    pub(crate) imm2: u8,
    /// Displacement; relative to the block for RIP-relative operands.
    pub(crate) disp: i64,
    /// Offset from the block's first byte.
    pub(crate) off: u16,
    /// Bytes.
    pub(crate) len: u8,
    /// Operand size in bytes.
    pub(crate) size: u8,
    /// Size of the source if it differs (MOVZX, MOVSX, CRC32, memory operands).
    pub(crate) src_size: u8,
    /// First operand.
    pub(crate) a: Opd,
    /// Second operand.
    pub(crate) b: Opd,
    /// Third operand.
    pub(crate) c: Opd,
    /// Base register of the memory operand, or [`ZERO`] or [`BASE`].
    pub(crate) base: u8,
    /// Index register, or [`ZERO`].
    pub(crate) index: u8,
    /// Shift of the index.
    pub(crate) scale: u8,
    /// [`ZERO`], [`FS`] or [`GS`].
    pub(crate) seg: u8,
    /// 32-bit address size.
    pub(crate) addr32: bool,
    /// The address is a stack address (#SS instead of #GP).
    pub(crate) stack: bool,
    /// REP prefix.
    pub(crate) rep: Rep,
    /// Ends a block.
    pub(crate) ends: bool,
    /// A conditional branch that the branch count counts.
    pub(crate) counted_branch: bool,
    /// iced's name for the encoding.
    pub(crate) code: Code,
    /// Floating-point semantics, for [`crate::exec::fpu::run`].
    pub(crate) fp: Option<FpInsn>,
    /// Its register operands, see [`crate::fp::registers`].
    pub(crate) fp_registers: (u8, u8),
}
