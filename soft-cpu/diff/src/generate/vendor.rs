//! Cases in which processors of another vendor than Intel differ by design. They are not made on such a host; on an
//! Intel host all of them are. Seen on AMD family 19h; Intel's side is its manual's.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic as M, OpKind, Register as R};

use super::single::{bit_string_offset, value};
use crate::{
    case::Case,
    generate::undefined::{flag, undefined_destination},
    layout::{CODE, DATA, HIGH, STACK, WRITABLE_SECOND},
};

/// Are all bytes in one writable span?
fn writable(address: u64, len: u64) -> bool {
    [DATA, WRITABLE_SECOND, STACK, HIGH]
        .iter()
        .any(|span| address >= span.base && address.checked_add(len).is_some_and(|end| end <= span.end()))
}

fn canonical(address: u64) -> bool {
    (address as i64) << 16 >> 16 == address as i64
}

/// Would this case come out differently on a processor that is not Intel's, both being right?
pub(super) fn differs(insn: &Instruction, bytes: &[u8], case: &Case) -> bool {
    let registers = &case.registers;
    let operand = |i: u32| {
        let at = insn.virtual_address(i, 0, |r, _, _| value(r, registers))?;
        Some(at.wrapping_add(bit_string_offset(insn, registers)))
    };
    let has_memory = (0..insn.op_count()).any(|i| insn.op_kind(i) == OpKind::Memory);
    let memory = if has_memory {
        (0..insn.op_count()).find(|&i| insn.op_kind(i) == OpKind::Memory).and_then(operand)
    } else {
        None
    };
    // AMD wants the offset of every byte canonical before the FS or GS base is added, Intel only the sum.
    if matches!(insn.segment_prefix(), R::FS | R::GS) {
        let base = value(insn.segment_prefix(), registers).unwrap_or(0);
        let offset = |i| operand(i).map(|at| at.wrapping_sub(base));
        let last = insn.memory_size().size().max(1) as u64 - 1;
        let outside = |offset: u64| !canonical(offset) || !canonical(offset.wrapping_add(last));
        if (0..insn.op_count()).filter_map(offset).any(outside) {
            return true;
        }
    }
    // Ten bytes as eight and then two, of which only the two are not canonical: AMD looks at the eight first and says
    // #PF for what is not mapped there. Intel's manual names no order.
    if has_memory
        && insn.memory_size().size() == 10
        && memory.is_some_and(|at| canonical(at.wrapping_add(7)) && !canonical(at.wrapping_add(9)))
    {
        return true;
    }
    let checked = registers.rflags & flag::AC != 0;
    let opcode_map = bytes.iter().position(|&b| b == 0x0f).unwrap_or(bytes.len());
    match insn.mnemonic() {
        // The register form of 0F 0D is a NOP on Intel, #UD on AMD.
        _ if matches!(
            insn.code(),
            Code::Reservednop_rm16_r16_0F0D
                | Code::Reservednop_rm32_r32_0F0D
                | Code::Reservednop_rm64_r64_0F0D
        ) =>
        {
            true
        }
        // Whether ModRM is fetched before #UD.
        M::Ud0 | M::Ud1 => registers.rip + 16 > CODE.end(),
        // AMD's near branches take the operand-size prefix and cut RIP to 16 bits.
        _ if insn.flow_control() != FlowControl::Next
            && bytes[..opcode_map.min(bytes.len() - 1)].contains(&0x66) =>
        {
            true
        }
        // AMD lets a REP prefix say which of LOOPE and LOOPNE it is.
        M::Loope | M::Loopne if bytes.contains(&0xf3) || bytes.contains(&0xf2) => true,
        // Operand size 16: AMD reads 32 bits.
        _ if insn.code() == Code::Movsxd_r16_rm16 => has_memory,
        M::Shld | M::Shrd => undefined_destination(insn, registers.gpr[1] as u8, false),
        // Which byte of a wide operand faults first, and whether misalignment is #AC or #GP.
        M::Fxsave
        | M::Fxsave64
        | M::Fxrstor
        | M::Fxrstor64
        | M::Fnsave
        | M::Frstor
        | M::Fldenv
        | M::Fnstenv => checked || memory.is_none_or(|at| !writable(at, insn.memory_size().size() as u64)),
        // An all-zero mask may or may not fault (SDM: implementation-specific).
        M::Maskmovq | M::Maskmovdqu if checked => true,
        M::Maskmovq | M::Maskmovdqu => operand(0).is_none_or(|at| !writable(at, 16)),
        // Whether the memory form counts as an MMX instruction for a pending x87 exception.
        M::Cvtpi2ps | M::Cvtpi2pd => has_memory && registers.fx.fsw() & 0x80 != 0,
        // Whether the target is looked at before or after the return address is pushed.
        M::Call if insn.op0_kind() != OpKind::NearBranch64 => {
            !writable(registers.gpr[4].wrapping_sub(8), 8) || checked && registers.gpr[4] & 7 != 0
        }
        // Which of the two operands is read first, on the way too: one must be far from every edge, and none misaligned
        // where that is checked.
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => {
            let size = insn.memory_size().size() as u64;
            checked && (0..2).any(|i| operand(i).is_none_or(|at| at & (size - 1) != 0))
                || (0..2).all(|i| operand(i).is_none_or(|at| !writable(at.saturating_sub(0x80), 0x100)))
        }
        _ => false,
    }
}

/// A form the decoder takes for another instruction than processors do: F3 90 with REX.B is XCHG R8, RAX, not PAUSE.
pub(super) fn misread(insn: &Instruction, bytes: &[u8]) -> bool {
    insn.mnemonic() == M::Pause && bytes.len() > 2 && bytes[bytes.len() - 2] & 0xf1 == 0x41
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov rax, gs:[offset]`: on AMD it is the offset of the last of the eight bytes that counts, wherever the sum is.
    #[test]
    fn an_offset_whose_last_byte_is_not_canonical_is_another_matter_on_amd() {
        for (offset, expected) in [
            (0x7fff_ffff_fff8_u64, false),
            (0x7fff_ffff_fff9, true),
            (0x7fff_ffff_fffd, true),
            (1 << 47, true),
        ] {
            let mut bytes = vec![0x65, 0x48, 0xa1];
            bytes.extend(offset.to_le_bytes());
            let insn = iced_x86::Decoder::with_ip(64, &bytes, CODE.base, 0).decode();
            let mut case = Case::default();
            case.registers.gs_base = 0xffff_e1d8_83d1_82c5;
            assert_eq!(differs(&insn, &bytes, &case), expected, "{offset:#x}");
        }
    }
}
