//! All encodings of the table, and execution by the table as the core does it.

use std::collections::BTreeSet;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

use crate::fp::{FpFault, FpInsn, FpOperands, FpState, GprUse, MemAccess, lookup, registers};

/// The FXSAVE image of a state, made by the table's own FXSAVE.
pub(super) fn image(s: &FpState) -> [u8; 512] {
    let mut copy = s.clone();
    let mut mem = [0; 512];
    let insn = decoded(&[0x0f, 0xae, 0x07]).expect("FXSAVE decodes");
    let fxsave = lookup(&insn).expect("FXSAVE is in the table");
    let mut operands = operands(&mut mem);
    (fxsave.run)(&mut copy, &mut operands).expect("FXSAVE does not fault");
    mem
}

pub(super) fn operands(mem: &mut [u8]) -> FpOperands<'_> {
    FpOperands { dst: 0, src: 0, imm: 0, gpr_in: 0, gpr_out: 0, gpr2_in: 0, mem, flags: 0, skip_store: false }
}

pub(super) fn decoded(code: &[u8]) -> Option<Instruction> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let insn = decoder.decode();
    (!insn.is_invalid() && insn.len() == code.len()).then_some(insn)
}

/// Every encoding that the table has, with register operands 0, 1, 2 and memory at [RDI].
pub(super) fn encodings() -> Vec<(Vec<u8>, Instruction, FpInsn)> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut maps: Vec<(Vec<u8>, u8, u8)> = (0..=255).map(|op| (vec![0x0f], op, 0)).collect();
    maps.extend((0..=255).map(|op| (vec![0x0f, 0x38], op, 0)));
    maps.extend((0..=255).map(|op| (vec![0x0f, 0x3a], op, 1)));
    maps.extend((0xd8..=0xdf).map(|op| (vec![], op, 0)));
    for prefix in [None, Some(0x66), Some(0xf3), Some(0xf2)] {
        for rex in [None, Some(0x48)] {
            for (escape, opcode, imm_len) in &maps {
                for modrm in 0..=255u8 {
                    let (mode, middle, low) = (modrm >> 6, modrm >> 3 & 7, modrm & 7);
                    let x87 = escape.is_empty();
                    // 4 is AH as the source of CRC32.
                    let wanted = if mode == 3 {
                        x87 || low < 3 || low == 4 && *opcode == 0xf0
                    } else {
                        mode == 0 && low == 7
                    };
                    if !wanted {
                        continue;
                    }
                    for len in [*imm_len, 1] {
                        let mut code: Vec<u8> = prefix.into_iter().chain(rex).collect();
                        code.extend(escape);
                        code.extend([*opcode, modrm]);
                        code.resize(code.len() + usize::from(len), 0x5a);
                        let Some(insn) = decoded(&code) else { continue };
                        let Some(entry) = lookup(&insn) else { continue };
                        let bad_gpr = (0..insn.op_count()).any(|i| {
                            let register = insn.op_register(i);
                            register.is_gpr() && register.full_register().number() > 2
                        });
                        // High XMM and MM numbers once per opcode are enough.
                        let common = mode != 3 || x87 || middle < 3 || middle == 6;
                        if !bad_gpr && common && seen.insert(code.clone()) {
                            found.push((code, insn, entry));
                        }
                    }
                }
            }
        }
    }
    found
}

/// Takes out of memory what the model does not have: FOP, FIP, FDP, FCS, FDS and the host's MXCSR_MASK.
pub(super) fn hide(code: Code, mem: &mut [u8; 512]) {
    match code {
        Code::Fnstenv_m28byte | Code::Fnsave_m108byte => mem[12..26].fill(0),
        Code::Fnstenv_m14byte | Code::Fnsave_m94byte => mem[6..14].fill(0),
        Code::Fxsave_m512byte | Code::Fxsave64_m512byte => {
            mem[6..24].fill(0);
            mem[28..32].fill(0);
        }
        _ => {}
    }
}

/// Makes memory valid for instructions that load MXCSR: no reserved bit, all exceptions masked.
pub(super) fn make_valid(code: Code, mem: &mut [u8; 512]) {
    let at = match code {
        Code::Fxrstor_m512byte | Code::Fxrstor64_m512byte => 24,
        Code::Ldmxcsr_m32 => 0,
        _ => return,
    };
    mem[at] |= 0x80;
    mem[at + 1] |= 0x1f;
    mem[at + 2..at + 4].fill(0);
}

pub(super) fn value(gpr: &[u64; 3], register: Register) -> u64 {
    gpr.get(register.full_register().number()).copied().unwrap_or(0)
}

/// Executes by the table as the core does.
pub(super) fn by_table(
    insn: &Instruction,
    entry: &FpInsn,
    s: &mut FpState,
    gpr: &mut [u64; 3],
    mem: &mut [u8; 512],
    flags: &mut u32,
) -> Result<(), FpFault> {
    let (dst, src) = registers(insn);
    let has_mem =
        (0..insn.op_count()).any(|i| matches!(insn.op_kind(i), OpKind::Memory | OpKind::MemorySegRDI));
    let mut buffer = [0; 512];
    let len = if has_mem { usize::from(entry.mem_len) } else { 0 };
    if matches!(entry.mem_access, MemAccess::Read | MemAccess::ReadWrite) {
        buffer[..len].copy_from_slice(&mem[..len]);
    }
    let source = (1..insn.op_count()).find(|&i| insn.op_register(i).is_gpr()).map(|i| insn.op_register(i));
    let mut o = operands(&mut buffer[..len]);
    (o.dst, o.src, o.imm) = (dst, src, insn.immediate8());
    o.flags = *flags;
    match entry.gpr {
        GprUse::In => o.gpr_in = source.map_or(0, |register| value(gpr, register)),
        GprUse::InOut => {
            let high = |r| matches!(r, Register::AH | Register::BH | Register::CH | Register::DH);
            o.gpr_in = source.map_or(0, |r| value(gpr, r) >> if high(r) { 8 } else { 0 });
            o.gpr2_in = value(gpr, insn.op0_register());
        }
        GprUse::Lengths | GprUse::LengthsOutCx => (o.gpr_in, o.gpr2_in) = (gpr[0], gpr[2]),
        _ => {}
    }
    (entry.run)(s, &mut o)?;
    let (out, flags_out, skip) = (o.gpr_out, o.flags, o.skip_store);
    match entry.gpr {
        GprUse::Out | GprUse::InOut if insn.op0_register().is_gpr() => {
            gpr[insn.op0_register().full_register().number()] = out;
        }
        GprUse::OutAx => gpr[0] = gpr[0] & !0xffff | out & 0xffff,
        GprUse::LengthsOutCx | GprUse::OutCx => gpr[1] = out,
        _ => {}
    }
    if entry.sets_flags {
        *flags = flags_out;
    }
    if !skip && matches!(entry.mem_access, MemAccess::Write | MemAccess::ReadWrite) {
        mem[..len].copy_from_slice(&buffer[..len]);
    }
    Ok(())
}
