//! The boundary between the core and the floating-point and vector semantics (x87, MMX, SSE to SSE4.2).
//!
//! The core decodes, computes addresses, translates, checks CR0/CR4 and alignment, reads and writes memory
//! and general registers. What an instruction does to [`FpState`] is here, one function per instruction.

mod crc32;
mod lanes;
mod mmx;
mod pcmpstr;
mod quiet;
mod save;
mod sse_float;
mod sse_imm;
mod sse_int;
mod sse_move;
#[cfg(test)]
mod tests;
mod unmasked;
mod x87;
mod x87_control;

pub(crate) use sse_float::{FloatOp, quietly};
pub(crate) use sse_int::VectorOp;

use iced_x86::{Code, Instruction, OpKind, Register};

use crate::state::CpuState;

/// Floating-point and vector state, embedded in the CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct FpState {
    /// XMM0..XMM15, low quadword first.
    pub xmm: [[u64; 2]; 16],
    /// x87 registers by physical number R0..R7: 80-bit values in the low ten bytes. MMn is R(n)'s significand.
    pub x87: [[u8; 16]; 8],
    /// Control word.
    pub fcw: u16,
    /// Status word with TOP in bits 11..14.
    pub fsw: u16,
    /// Tags as FXSAVE has them: bit n is set if physical register n is not empty. The hardware keeps no more:
    /// FNSTENV derives valid, zero and special from the contents.
    pub tags: u8,
    /// MXCSR.
    pub mxcsr: u32,
}

impl FpState {
    /// Takes the floating-point part of `state`.
    ///
    /// A state from outside may be one that no processor is ever in, and the host must not be brought into it: the
    /// error summary (FSW bits 7 and 15) follows from flags and masks, as FXRSTOR has it; MXCSR has no reserved bits.
    pub fn from_state(state: &CpuState) -> Self {
        const SUMMARY: u16 = 0x8080;
        let pending = state.fsw & !state.fcw & 0x3f != 0;
        FpState {
            xmm: state.xmm,
            x87: state.x87,
            fcw: state.fcw,
            fsw: if pending { state.fsw | SUMMARY } else { state.fsw & !SUMMARY },
            tags: save::abridged_tags(state.ftw),
            mxcsr: state.mxcsr & 0xffff,
        }
    }

    /// Puts the floating-point part into `state`.
    pub fn store(&self, state: &mut CpuState) {
        state.xmm = self.xmm;
        state.x87 = self.x87;
        state.fcw = self.fcw;
        state.fsw = self.fsw;
        state.ftw = save::full_tags(self);
        state.mxcsr = self.mxcsr;
    }
}

impl Default for FpState {
    fn default() -> Self {
        FpState::from_state(&CpuState::default())
    }
}

/// Operands of one execution, filled by the core.
#[derive(Debug)]
pub struct FpOperands<'a> {
    /// First operand's register number (XMM or MM as encoded), from [`registers`].
    pub dst: u8,
    /// Second operand's register number, from [`registers`].
    pub src: u8,
    /// Immediate byte, or 0.
    pub imm: u8,
    /// General register read, see [`GprUse`].
    pub gpr_in: u64,
    /// General register written, see [`GprUse`].
    pub gpr_out: u64,
    /// Second general register read, see [`GprUse`].
    pub gpr2_in: u64,
    /// The memory operand, `mem_len` bytes: already read, or (Write) zeroes to be filled. Empty if the operand
    /// is a register.
    pub mem: &'a mut [u8],
    /// Status flags of RFLAGS: in (FCMOVcc) and out (`sets_flags`: CF, PF, AF, ZF, SF, OF are taken from it).
    pub flags: u32,
    /// Out, false before: the memory operand is not to be written (an x87 store with an unmasked exception).
    pub skip_store: bool,
}

/// What the instruction does with its memory operand. `None` also when the memory form does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum MemAccess {
    None,
    Read,
    Write,
    ReadWrite,
}

/// What the instruction does with general registers (apart from addressing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GprUse {
    /// Nothing.
    None,
    /// The source operand, if it is a general register: its whole 64-bit value in `gpr_in`.
    In,
    /// The first operand, if it is a general register, becomes all 64 bits of `gpr_out` (zero-extended by `run`).
    Out,
    /// CRC32: the source operand, if it is a register, in the low bits of `gpr_in` (AH to DH shifted down), the
    /// first operand's register in `gpr2_in`; all 64 bits of the latter become `gpr_out`.
    InOut,
    /// AX becomes the low 16 bits of `gpr_out` (FNSTSW AX).
    OutAx,
    /// PCMPESTRM: RAX in `gpr_in`, RDX in `gpr2_in`.
    Lengths,
    /// PCMPESTRI: as `Lengths`, and RCX becomes `gpr_out`.
    LengthsOutCx,
    /// PCMPISTRI: RCX becomes `gpr_out`.
    OutCx,
}

/// Which availability checks the core makes before the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpClass {
    /// CR0.EM or CR0.TS: #NM. Then, if `checks_pending`, a pending x87 exception: #MF.
    X87,
    /// CR0.EM: #UD; CR0.TS: #NM; a pending x87 exception: #MF.
    Mmx,
    /// CR0.EM or not CR4.OSFXSR: #UD; CR0.TS: #NM.
    Sse,
    /// FXSAVE and FXRSTOR: CR0.EM or CR0.TS: #NM.
    Fxsave,
    /// None (CRC32).
    General,
}

/// What an instruction raises. The state must then be as before it (but for exception flags in MXCSR/FSW).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FpFault {
    /// #XM (or #UD without CR4.OSXMMEXCPT): MXCSR flags are already set.
    SimdException,
    /// #MF before the instruction.
    X87Pending,
    /// #UD.
    InvalidOpcode,
    /// #GP(0): a reserved bit (LDMXCSR, FXRSTOR).
    GeneralProtection,
}

/// The semantics of one instruction.
pub type FpRun = fn(&mut FpState, &mut FpOperands<'_>) -> Result<(), FpFault>;

/// One instruction as the core needs it.
#[derive(Clone, Copy, Debug)]
pub struct FpInsn {
    /// Does it.
    pub run: FpRun,
    /// Bytes of the memory operand.
    pub mem_len: u16,
    /// Use of the memory operand.
    pub mem_access: MemAccess,
    /// 16: #GP(0) if the memory operand is not aligned so; else 1.
    pub align: u8,
    /// Use of general registers.
    pub gpr: GprUse,
    /// Takes CF, PF, AF, ZF, SF and OF from [`FpOperands::flags`].
    pub sets_flags: bool,
    /// Reads the status flags (FCMOVcc).
    pub reads_flags: bool,
    /// Availability checks.
    pub class: FpClass,
    /// x87: a pending unmasked exception is #MF before it (all but the FN* control instructions).
    pub checks_pending: bool,
}

impl FpInsn {
    /// An instruction without memory operand, general register or flags.
    const fn new(class: FpClass, run: FpRun) -> Self {
        FpInsn {
            run,
            mem_len: 0,
            mem_access: MemAccess::None,
            align: 1,
            gpr: GprUse::None,
            sets_flags: false,
            reads_flags: false,
            class,
            checks_pending: matches!(class, FpClass::X87 | FpClass::Mmx),
        }
    }

    /// As [`FpInsn::new`], of class SSE.
    const fn sse(run: FpRun) -> Self {
        FpInsn::new(FpClass::Sse, run)
    }

    /// With a memory operand.
    const fn mem(self, access: MemAccess, len: u16) -> Self {
        FpInsn { mem_access: access, mem_len: len, ..self }
    }

    /// With a memory operand that is read.
    const fn reads(self, len: u16) -> Self {
        self.mem(MemAccess::Read, len)
    }

    /// With a memory operand that is written.
    const fn writes(self, len: u16) -> Self {
        self.mem(MemAccess::Write, len)
    }

    /// The memory operand must be aligned on 16 bytes.
    const fn aligned(self) -> Self {
        FpInsn { align: 16, ..self }
    }

    /// With a use of general registers.
    const fn gpr(self, gpr: GprUse) -> Self {
        FpInsn { gpr, ..self }
    }

    /// Sets the status flags.
    const fn flags(self) -> Self {
        FpInsn { sets_flags: true, ..self }
    }

    /// Not stopped by a pending x87 exception.
    const fn no_wait(self) -> Self {
        FpInsn { checks_pending: false, ..self }
    }
}

/// An unmasked x87 exception is pending (FSW.ES).
pub fn x87_pending(state: &FpState) -> bool {
    state.fsw & 0x80 != 0
}

/// The values of [`FpOperands::dst`] and [`FpOperands::src`]: the XMM or MM numbers of the first two explicit
/// operands, 0 where an operand is something else. MASKMOVQ and MASKMOVDQU: data and mask register.
pub fn registers(insn: &Instruction) -> (u8, u8) {
    let number = |operand: u32| -> u8 {
        if operand >= insn.op_count() || insn.op_kind(operand) != OpKind::Register {
            return 0;
        }
        let register: Register = insn.op_register(operand);
        if register.is_xmm() || register.is_mm() { register.number() as u8 } else { 0 }
    };
    match insn.code() {
        Code::Maskmovq_rDI_mm_mm | Code::Maskmovdqu_rDI_xmm_xmm => (number(1), number(2)),
        _ => (number(0), number(1)),
    }
}

/// The fast handler of an SSE operation on registers, or a register and memory, if it has one.
pub(crate) fn hot(code: Code, mem: bool) -> Option<crate::block::Handler> {
    sse_int::hot(code, mem).or_else(|| sse_float::hot(code, mem))
}

/// The fast handler of an SSE shift by an immediate.
pub(crate) fn hot_immediate(code: Code) -> Option<crate::block::Handler> {
    sse_int::hot_immediate(code)
}

/// Is it an SSE operation that depends on nothing but its two operands?
pub(crate) fn is_vector_operation(code: Code) -> bool {
    sse_int::hot(code, false).is_some()
}

/// The top bits of sixteen bytes.
#[inline(always)]
pub(crate) fn byte_mask(value: [u64; 2]) -> u32 {
    // SAFETY: SSE2 is part of every x86-64.
    unsafe { core::arch::x86_64::_mm_movemask_epi8(lanes::to_host(value)) as u32 }
}

/// The semantics of `insn`, or `None` if it is not an x87, MMX or SSE instruction of the model.
pub fn lookup(insn: &Instruction) -> Option<FpInsn> {
    let code = insn.code();
    let mem = (0..insn.op_count()).any(|operand| insn.op_kind(operand) == OpKind::Memory);
    sse_move::lookup(code, mem)
        .or_else(|| sse_int::lookup(code, mem))
        .or_else(|| sse_float::lookup(code, insn.immediate8()))
        .or_else(|| sse_imm::lookup(code, insn.immediate8()))
        .or_else(|| save::lookup(code))
        .or_else(|| crc32::lookup(code))
        .or_else(|| pcmpstr::lookup(code, insn.immediate8()))
        .or_else(|| mmx::lookup(code))
        .or_else(|| x87::lookup(insn))
        .or_else(|| x87_control::lookup(code))
}
