//! What Intel's manual leaves undefined. The software CPU does there what Intel's processors do, so on an Intel
//! host everything is compared, and on another host these are not.

use iced_x86::{Instruction, Mnemonic as M, OpKind, Register, RflagsBits};

/// RFLAGS bits.
pub mod flag {
    #![allow(missing_docs, reason = "architectural names")]
    pub const CF: u64 = 1;
    pub const PF: u64 = 4;
    pub const AF: u64 = 0x10;
    pub const ZF: u64 = 0x40;
    pub const SF: u64 = 0x80;
    pub const TF: u64 = 0x100;
    pub const DF: u64 = 0x400;
    pub const OF: u64 = 0x800;
    pub const RF: u64 = 0x1_0000;
    pub const AC: u64 = 0x4_0000;
    pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
}

/// RFLAGS bits for iced's set of flags.
pub fn rflags(bits: u32) -> u64 {
    let pairs = [
        (RflagsBits::OF, flag::OF),
        (RflagsBits::SF, flag::SF),
        (RflagsBits::ZF, flag::ZF),
        (RflagsBits::AF, flag::AF),
        (RflagsBits::CF, flag::CF),
        (RflagsBits::PF, flag::PF),
        (RflagsBits::DF, flag::DF),
        (RflagsBits::AC, flag::AC),
    ];
    pairs.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, flag)| flag).sum()
}

/// Bits the shift or rotate count is masked to, and the operand's width in bits.
fn width(insn: &Instruction) -> u32 {
    let size = match insn.op0_kind() {
        OpKind::Register => insn.op0_register().size(),
        _ => insn.memory_size().size(),
    };
    size as u32 * 8
}

/// Count of a shift or rotate; `cl` is CL where it is known, else every count is possible (`None`).
fn count(insn: &Instruction, cl: Option<u8>) -> Option<u32> {
    let last = insn.op_count() - 1;
    let raw = if insn.op_kind(last) == OpKind::Register && insn.op_register(last) == Register::CL {
        u32::from(cl?)
    } else {
        u32::from(insn.immediate8())
    };
    Some(raw & if width(insn) == 64 { 63 } else { 31 })
}

/// Is it a shift or rotate that writes flags?
pub(super) fn is_shift(insn: &Instruction) -> bool {
    use M::{Rcl, Rcr, Rol, Ror, Sal, Sar, Shl, Shld, Shr, Shrd};
    matches!(insn.mnemonic(), Shl | Sal | Shr | Sar | Rol | Ror | Rcl | Rcr | Shld | Shrd)
}

/// Flags left undefined. `cl` as for shifts by CL, if known.
pub fn undefined_flags(insn: &Instruction, cl: Option<u8>) -> u64 {
    use flag::{AF, CF, OF, STATUS};
    if !is_shift(insn) {
        return rflags(insn.rflags_undefined()) & STATUS;
    }
    let Some(count) = count(insn, cl) else { return rflags(insn.rflags_undefined()) | STATUS };
    let width = width(insn);
    if count == 0 {
        return 0;
    }
    let of = if count == 1 { 0 } else { OF };
    match insn.mnemonic() {
        M::Shl | M::Sal | M::Shr => AF | of | if count >= width { CF } else { 0 },
        M::Sar => AF | of,
        M::Shld | M::Shrd if count > width => STATUS,
        M::Shld | M::Shrd => AF | of,
        _ => of,
    }
}

/// Is the destination itself undefined?
pub fn undefined_destination(insn: &Instruction, cl: u8, source_is_zero: bool) -> bool {
    match insn.mnemonic() {
        M::Shld | M::Shrd => count(insn, Some(cl)).is_some_and(|count| count > width(insn)),
        M::Bsf | M::Bsr => source_is_zero,
        M::Bswap => insn.op0_register().size() == 2,
        _ => false,
    }
}

/// Is this an Intel processor, on which nothing is masked?
pub fn host_is_intel() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0);
    (leaf.ebx, leaf.edx, leaf.ecx) == (0x756e_6547, 0x4965_6e69, 0x6c65_746e)
}
