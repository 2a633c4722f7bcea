//! The boundary between the core and the floating-point and vector semantics (x87, MMX, SSE to SSE4.2).
//!
//! The core decodes, computes addresses, translates, checks CR0/CR4 and alignment, reads and writes memory
//! and general registers. What an instruction does to [`FpState`] is here, one function per instruction.

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
    /// Full tag word, two bits per physical register.
    pub ftw: u16,
    /// MXCSR.
    pub mxcsr: u32,
}

impl FpState {
    /// Takes the floating-point part of `state`.
    pub fn from_state(state: &CpuState) -> Self {
        FpState {
            xmm: state.xmm,
            x87: state.x87,
            fcw: state.fcw,
            fsw: state.fsw,
            ftw: state.ftw,
            mxcsr: state.mxcsr,
        }
    }

    /// Puts the floating-point part into `state`.
    pub fn store(&self, state: &mut CpuState) {
        state.xmm = self.xmm;
        state.x87 = self.x87;
        state.fcw = self.fcw;
        state.fsw = self.fsw;
        state.ftw = self.ftw;
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
    /// First operand's register number (XMM, MM, ST or GPR as encoded); 0 if it is not a register.
    pub dst: u8,
    /// Second operand's register number; 0 if it is not a register.
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
    /// AX becomes the low 16 bits of `gpr_out` (FNSTSW AX).
    OutAx,
    /// PCMPESTRM: RAX in `gpr_in`, RDX in `gpr2_in`
    ///  (`lookup` picks a 32- or 64-bit `run`).
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

/// An unmasked x87 exception is pending (FSW.ES).
pub fn x87_pending(state: &FpState) -> bool {
    state.fsw & 0x80 != 0
}

/// The semantics of `insn`, or `None` if it is not an x87, MMX or SSE instruction of the model.
pub fn lookup(_insn: &iced_x86::Instruction) -> Option<FpInsn> {
    None
}
