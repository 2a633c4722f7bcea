//! Cases of one instruction.

use fastrand::Rng;
use iced_x86::{
    Code, Decoder, DecoderOptions, Encoder, Instruction, InstructionInfoFactory, MemorySize, Mnemonic as M,
    OpKind, Register as R, UsedMemory,
};

use super::{
    Generated,
    address::{Target, choose_target},
    build::{Limits, instruction},
    encodings,
    registers::{self, consistent},
    undefined::{flag, host_is_intel, undefined_flags},
    vendor::{differs, misread},
};
use crate::{
    case::{Case, Patch, Registers},
    compare::Ignore,
    layout::{CODE, DATA, HIGH, PAGE, STACK, exit_stub, harness, image_offset},
    values,
};

/// Makes cases of one instruction, all encodings in turn.
pub struct Singles {
    rng: Rng,
    info: InstructionInfoFactory,
    encoder: Encoder,
    codes: Vec<Code>,
    next: usize,
    intel: bool,
}

impl Singles {
    /// All tested encodings, or those whose name contains `filter`.
    pub fn new(seed: u64, filter: Option<&str>) -> Self {
        let mut codes = encodings::tested();
        if let Some(filter) = filter {
            codes.retain(|code| format!("{code:?}").contains(filter));
        }
        Singles {
            rng: Rng::with_seed(seed),
            info: InstructionInfoFactory::new(),
            encoder: Encoder::new(64),
            codes,
            next: 0,
            intel: host_is_intel(),
        }
    }

    /// The encodings this makes.
    pub fn codes(&self) -> &[Code] {
        &self.codes
    }

    /// The next case.
    pub fn make(&mut self) -> Generated {
        loop {
            let code = self.codes[self.next % self.codes.len()];
            self.next += 1;
            // Some combinations of operands cannot be encoded; some encodings are not for this host.
            for _ in 0..500 {
                if let Some(generated) = self.attempt(code) {
                    return generated;
                }
            }
        }
    }

    fn attempt(&mut self, code: Code) -> Option<Generated> {
        let rng = &mut self.rng;
        let mut ip = CODE.base + 0x200 + rng.u64(..0x80);
        let exits = [ip + 0x48, ip - 0x60, CODE.base + 0x1800];
        let limits = Limits { branch_targets: &exits, gprs: 0xffff, bases: None, no_memory: false };
        let insn = instruction(code, rng, &limits)?;
        self.encoder.encode(&insn, ip).ok()?;
        let mut bytes = self.encoder.take_buffer();
        if rng.u8(..8) == 0 {
            mutate(&mut bytes, rng);
        }
        // Some across the two code pages, some running off the end.
        let near_edge = insn.is_ip_rel_memory_operand() || !exits.contains(&insn.near_branch64());
        match rng.u8(..64) {
            0 | 1 if near_edge => ip = CODE.base + 0x1000 - rng.u64(..=bytes.len() as u64),
            2 if near_edge => ip = CODE.end() - rng.u64(1..=bytes.len() as u64),
            _ => {}
        }
        let mut decoder = Decoder::with_ip(64, &bytes, ip, DecoderOptions::NONE);
        let insn = decoder.decode();
        if insn.is_invalid() || insn.len() != bytes.len() || !self.codes_has(insn.code()) {
            return None;
        }
        let mut case = Case { registers: registers::all(&mut self.rng), patches: Vec::new() };
        case.registers.rip = ip;
        self.operands(&insn, &mut case, &exits);
        if misread(&insn, &bytes)
            || self.meets_harness(&insn, &case.registers)
            || (insn.mnemonic() == M::Int3 && bytes.len() > 1)
            || (!self.intel && differs(&insn, &bytes, &case))
        {
            return None;
        }
        let in_code = bytes.len().min((CODE.end() - ip) as usize);
        let runs_off = in_code < bytes.len();
        case.patches.push(Patch { address: ip, bytes: bytes[..in_code].to_vec() });
        let next = ip + bytes.len() as u64;
        if !runs_off && next + 7 <= CODE.end() {
            case.patches.push(Patch { address: next, bytes: exit_stub(0).to_vec() });
        }
        if !runs_off {
            for (k, &exit) in exits.iter().enumerate() {
                case.patches.push(Patch { address: exit, bytes: exit_stub(k + 1).to_vec() });
            }
        }
        let mut ignore = Ignore::default();
        if !self.intel {
            ignore.flags = undefined_flags(&insn, Some(case.registers.gpr[1] as u8));
        }
        pointers(&insn, &case.registers, &mut ignore);
        Some(Generated { case, instructions: vec![insn], ignore })
    }

    fn codes_has(&self, code: Code) -> bool {
        encodings::is_in_model(code) && encodings::excluded(code).is_none()
    }

    /// A mutated displacement or a random register may lead to the native executor's own pages, which the
    /// software CPU does not have (1 case in a million).
    fn meets_harness(&mut self, insn: &Instruction, registers: &Registers) -> bool {
        let to = match insn.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                Some(insn.near_branch_target())
            }
            OpKind::Register if matches!(insn.mnemonic(), M::Call | M::Jmp) => {
                value(insn.op0_register(), registers)
            }
            _ => None,
        };
        if to.is_some_and(|to| harness(to, PAGE)) {
            return true;
        }
        let offset = bit_string_offset(insn, registers);
        let info = self.info.info(insn);
        info.used_memory()
            .iter()
            .filter_map(|memory| linear(memory, registers))
            // An image of the x87 and SSE state is 512 bytes; REP goes on for some.
            .any(|at| harness(at.wrapping_add(offset), PAGE))
    }

    /// Chooses registers and memory so that the instruction does something.
    fn operands(&mut self, insn: &Instruction, case: &mut Case, exits: &[u64]) {
        let rng = &mut self.rng;
        let mut fixed = 0u16;
        let memories: Vec<UsedMemory> = self.info.info(insn).used_memory().to_vec();
        let registers = &mut case.registers;
        bit_offset(insn, registers, rng);
        if insn.has_rep_prefix() || insn.has_repne_prefix() {
            registers.gpr[1] = if rng.u8(..12) == 0 { values::int(rng) } else { rng.u64(..12) };
            fixed |= 1 << 1;
        }
        for memory in &memories {
            place(memory, registers, &mut fixed, rng);
        }
        special(insn, registers, fixed, rng);
        let addresses: Vec<(u64, MemorySize)> =
            memories.iter().take(6).filter_map(|m| Some((linear(m, registers)?, m.memory_size()))).collect();
        for &(address, size) in &addresses {
            if rng.u8(..4) != 0 {
                let bytes = content(size, rng);
                patch(case, address, &bytes);
            }
        }
        let first = addresses.first().map(|a| a.0);
        targets(insn, case, first, fixed, exits, rng);
    }
}

/// Adds prefixes or changes a byte. What comes out is decoded again, and thrown away if it is not ours.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    match rng.u8(..4) {
        0 => bytes.insert(0, [0x66, 0xf2, 0xf3, 0x2e, 0x3e, 0x26, 0x36, 0x64, 0x65][rng.usize(..9)]),
        1 => {
            let legacy = [0x66, 0xf2, 0xf3, 0x2e, 0x3e, 0x26, 0x36, 0x64, 0x65, 0x67, 0xf0];
            let at = bytes.iter().position(|b| !legacy.contains(b)).unwrap_or(0);
            if bytes[at] & 0xf0 == 0x40 {
                bytes[at] ^= 1 << rng.u32(..4)
            } else {
                bytes.insert(at, rng.u8(0x40..0x50))
            }
        }
        2 => {
            let at = rng.usize(..bytes.len());
            bytes[at] ^= 1 << rng.u32(..8);
        }
        _ => {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
    }
}

fn gpr(register: R) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

/// Value of a register used in an address.
pub(super) fn value(register: R, registers: &Registers) -> Option<u64> {
    Some(match register {
        R::None => 0,
        R::FS => registers.fs_base,
        R::GS => registers.gs_base,
        R::ES | R::CS | R::SS | R::DS => 0,
        _ => {
            let full = registers.gpr[gpr(register)?];
            match register.size() {
                8 => full,
                4 => full & 0xffff_ffff,
                2 => full & 0xffff,
                _ => full & 0xff,
            }
        }
    })
}

/// What the bit offset in a register adds to the address of BT, BTS, BTR and BTC (SDM vol. 2, BT: figure 3-2).
pub(super) fn bit_string_offset(insn: &Instruction, registers: &Registers) -> u64 {
    let is_bit = matches!(insn.mnemonic(), M::Bt | M::Bts | M::Btr | M::Btc);
    if !is_bit || insn.op0_kind() != OpKind::Memory || insn.op1_kind() != OpKind::Register {
        return 0;
    }
    let raw = value(insn.op1_register(), registers).unwrap_or(0);
    match insn.op1_register().size() {
        2 => (i64::from(raw as i16 >> 4) as u64).wrapping_mul(2),
        4 => (i64::from(raw as i32 >> 5) as u64).wrapping_mul(4),
        _ => ((raw as i64 >> 6) as u64).wrapping_mul(8),
    }
}

/// Linear address of a used memory operand (its first element).
fn linear(memory: &UsedMemory, registers: &Registers) -> Option<u64> {
    memory.virtual_address(0, |register, _, _| value(register, registers))
}

/// Gives the base register the value that puts the operand where [`choose_target`] wants it.
fn place(memory: &UsedMemory, registers: &mut Registers, fixed: &mut u16, rng: &mut Rng) {
    let Some(base) = gpr(memory.base()).or_else(|| gpr(memory.index())) else { return };
    if *fixed >> base & 1 == 1 {
        return;
    }
    let size = memory.memory_size().size() as u64;
    let preference = if matches!(base, 4 | 5) { Target::Stack } else { Target::Any };
    let mut target = choose_target(rng, preference, size);
    // Images of the x87 and SSE state are big, and need more often be possible.
    if size >= 28 && rng.bool() {
        target = choose_target(rng, Target::Safe, size) & !15;
    }
    let factor = match (gpr(memory.base()), gpr(memory.index())) {
        (Some(_), Some(index)) if index == base => 1 + memory.scale() as u64,
        (Some(_), _) => 1,
        _ => memory.scale() as u64,
    };
    let narrow = memory.address_size() == iced_x86::CodeSize::Code32;
    let segment = value(memory.segment(), registers).unwrap_or(0);
    let index = match gpr(memory.index()) {
        Some(index) if index != base => {
            // Small more often than not: big ones wrap around.
            if *fixed >> index & 1 == 0 && memory.index().size() >= 4 && rng.bool() {
                registers.gpr[index] = rng.u64(..16);
            }
            *fixed |= 1 << index;
            value(memory.index(), registers).unwrap_or(0).wrapping_mul(memory.scale() as u64)
        }
        _ => 0,
    };
    let wanted = target.wrapping_sub(segment).wrapping_sub(index).wrapping_sub(memory.displacement());
    let mut base_value = if factor == 1 { wanted } else { wanted / factor };
    if narrow {
        base_value = base_value & 0xffff_ffff | rng.u64(..) << 32;
    }
    registers.gpr[base] = base_value;
    *fixed |= 1 << base;
}

/// Bit offsets in a register reach memory far from the operand: mostly keep them near.
fn bit_offset(insn: &Instruction, registers: &mut Registers, rng: &mut Rng) {
    if matches!(insn.mnemonic(), M::Bt | M::Bts | M::Btr | M::Btc)
        && insn.op0_kind() == OpKind::Memory
        && insn.op1_kind() == OpKind::Register
        && rng.u8(..8) != 0
    {
        let register = insn.op1_register().full_register().number();
        registers.gpr[register] = (rng.i64(-0x4000..0x4000)) as u64;
    }
}

/// Values that make a difference to one kind of instruction.
fn special(insn: &Instruction, registers: &mut Registers, fixed: u16, rng: &mut Rng) {
    let free = |register: usize| fixed >> register & 1 == 0;
    match insn.mnemonic() {
        M::Div | M::Idiv if rng.u8(..4) != 0 && free(0) && free(2) => {
            let size = match insn.op0_kind() {
                OpKind::Register => insn.op0_register().size(),
                _ => insn.memory_size().size(),
            };
            let (rax, rdx) = (registers.gpr[0], registers.gpr[2]);
            let extended = insn.mnemonic() == M::Idiv;
            registers.gpr[2] = match size {
                8 if extended => (rax as i64 >> 63) as u64,
                4 if extended => (rax as i32 >> 31) as u32 as u64,
                2 if extended => rdx & !0xffff | (rax as i16 >> 15) as u16 as u64,
                8 | 4 => rng.u64(..4),
                2 => rdx & !0xffff | rng.u64(..4),
                _ => rdx,
            };
            if size == 1 {
                let ax = if extended { rax as i8 as i16 as u16 } else { rng.u16(..0x400) };
                registers.gpr[0] = rax & !0xffff | u64::from(ax);
            }
        }
        M::Cmpxchg if rng.bool() && free(0) && insn.op0_kind() == OpKind::Register => {
            registers.gpr[0] = registers.gpr[insn.op0_register().full_register().number()];
        }
        M::Loop | M::Loope | M::Loopne | M::Jcxz | M::Jecxz | M::Jrcxz if free(1) && rng.u8(..4) != 0 => {
            registers.gpr[1] = [0, 1, 2, 1 << 32, (1 << 32) + 1, 0xffff_ffff_0000_0000][rng.usize(..6)];
        }
        M::Wrfsbase | M::Wrgsbase if rng.u8(..4) != 0 => {
            let register = insn.op0_register().full_register().number();
            registers.gpr[register] =
                if rng.bool() { rng.u64(..1 << 47) } else { 0u64.wrapping_sub(rng.u64(..1 << 47)) };
        }
        M::Pcmpestri | M::Pcmpestrm | M::Pcmpestri64 | M::Pcmpestrm64 if rng.u8(..4) != 0 => {
            for register in [0, 2] {
                if free(register) {
                    registers.gpr[register] = rng.i64(-20..20) as u64;
                }
            }
        }
        M::Maskmovq | M::Maskmovdqu if rng.u8(..3) == 0 => {
            let register = insn.op2_register();
            if register.is_xmm() {
                registers.fx.set_xmm(register.number(), [0; 2]);
            } else {
                registers.fx.set_st(register.number(), [0; 10]);
            }
        }
        M::Enter | M::Leave if free(5) => registers.gpr[5] = choose_target(rng, Target::Stack, 8),
        _ => {}
    }
    // Two equal vector operands now and then.
    if rng.u8(..16) == 0
        && insn.op_count() >= 2
        && insn.op0_register().is_xmm()
        && insn.op1_register().is_xmm()
    {
        let value = registers.fx.xmm(insn.op0_register().number());
        registers.fx.set_xmm(insn.op1_register().number(), value);
    }
}

/// Bytes for a memory operand of this type.
pub(super) fn content(size: MemorySize, rng: &mut Rng) -> Vec<u8> {
    let len = size.size().max(8);
    match size {
        MemorySize::FpuEnv28 | MemorySize::FpuEnv14 | MemorySize::FpuState94 | MemorySize::FpuState108 => {
            let wide = matches!(size, MemorySize::FpuEnv28 | MemorySize::FpuState108);
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(len).collect();
            let step = if wide { 4 } else { 2 };
            let fcw = values::fcw(rng);
            let mut fsw = rng.u16(..);
            if rng.bool() {
                fsw = consistent(fsw & 0x7f00, fcw);
            }
            bytes[..2].copy_from_slice(&fcw.to_le_bytes());
            bytes[step..step + 2].copy_from_slice(&fsw.to_le_bytes());
            if rng.bool() {
                bytes[2 * step..2 * step + 2].fill(0);
            }
            if len > 28 {
                let start = if wide { 28 } else { 14 };
                for st in bytes[start..].chunks_exact_mut(10) {
                    st.copy_from_slice(&values::f80(rng));
                }
            }
            return bytes;
        }
        MemorySize::Fxsave_512Byte | MemorySize::Fxsave64_512Byte => {
            let mut fx = registers::fx(rng);
            if rng.u8(..12) == 0 {
                fx.set_mxcsr(rng.u32(..));
            }
            if rng.u8(..4) == 0 {
                fx.set_fsw(rng.u16(..));
            }
            return fx.0.to_vec();
        }
        MemorySize::Bcd => return values::bcd(rng).to_vec(),
        MemorySize::Float80 => return values::f80(rng).to_vec(),
        _ => {}
    }
    let mut bytes = Vec::with_capacity(len + 16);
    while bytes.len() < len {
        match size.element_type() {
            MemorySize::Float32 => bytes.extend(values::f32_bits(rng).to_le_bytes()),
            MemorySize::Float64 => bytes.extend(values::f64_bits(rng).to_le_bytes()),
            _ if len > 8 => {
                let [a, b] = values::vector(rng);
                bytes.extend(a.to_le_bytes());
                bytes.extend(b.to_le_bytes());
            }
            _ => bytes.extend(values::int(rng).to_le_bytes()),
        }
    }
    bytes.truncate(len);
    bytes
}

/// Puts bytes into memory, as many as there is memory for.
pub(super) fn patch(case: &mut Case, address: u64, bytes: &[u8]) {
    let mut run: Option<Patch> = None;
    for (i, &byte) in bytes.iter().enumerate() {
        let at = address.wrapping_add(i as u64);
        if image_offset(at).is_some() {
            run.get_or_insert_with(|| Patch { address: at, bytes: Vec::new() }).bytes.push(byte);
        } else if let Some(patch) = run.take() {
            case.patches.push(patch);
        }
    }
    case.patches.extend(run);
}

/// The x87 instruction and data pointers in memory images: the software CPU writes zeros. And MXCSR_MASK, which
/// is the model's.
fn pointers(insn: &Instruction, registers: &Registers, ignore: &mut Ignore) {
    let Some(address) = insn.virtual_address(0, 0, |r, _, _| value(r, registers)) else { return };
    let at = |offset: u64, len: u64| (address.wrapping_add(offset), len);
    match insn.memory_size() {
        MemorySize::FpuEnv28 | MemorySize::FpuState108 => ignore.memory.push(at(12, 16)),
        MemorySize::FpuEnv14 | MemorySize::FpuState94 => ignore.memory.push(at(6, 8)),
        MemorySize::Fxsave_512Byte | MemorySize::Fxsave64_512Byte => {
            ignore.memory.extend([at(6, 18), at(28, 4)]);
        }
        _ => {}
    }
}

/// Contents and registers that depend on others: where to go, what to compare with.
fn targets(
    insn: &Instruction,
    case: &mut Case,
    address: Option<u64>,
    fixed: u16,
    exits: &[u64],
    rng: &mut Rng,
) {
    let wild = match rng.u8(..40) {
        0 => DATA.base + 8,
        1 => HIGH.base + 16,
        2 => CODE.end(),
        3 => CODE.base - 1,
        4 => 1 << 47,
        // The native executor's own pages are not there for the software CPU.
        5 => Some(values::int(rng)).filter(|&at| !harness(at, PAGE)).unwrap_or(STACK.base),
        6 => STACK.base,
        _ => exits[rng.usize(..exits.len())],
    };
    match insn.mnemonic() {
        M::Ret => {
            if let Some(address) = address {
                patch(case, address, &wild.to_le_bytes());
            }
        }
        M::Call | M::Jmp => match insn.op0_kind() {
            OpKind::Memory => {
                // CALL also stores; its operand is the one that is not the stack.
                let operand = insn.virtual_address(0, 0, |r, _, _| value(r, &case.registers));
                if let Some(address) = operand {
                    patch(case, address, &wild.to_le_bytes());
                }
            }
            OpKind::Register => {
                let register = insn.op0_register().full_register().number();
                if fixed >> register & 1 == 0 {
                    case.registers.gpr[register] = wild;
                }
            }
            _ => {}
        },
        M::Popf | M::Popfq => {
            if let Some(address) = address {
                let mut flags = rng.u64(..);
                if rng.u8(..32) != 0 {
                    flags &= !flag::TF;
                }
                if rng.u8(..8) != 0 {
                    flags &= !flag::AC;
                }
                patch(case, address, &flags.to_le_bytes());
            }
        }
        M::Cmpxchg if insn.op0_kind() == OpKind::Memory && rng.bool() => {
            if let Some(address) = address {
                let rax = case.registers.gpr[0].to_le_bytes();
                patch(case, address, &rax[..insn.memory_size().size().min(8)]);
            }
        }
        M::Cmpxchg8b | M::Cmpxchg16b if rng.bool() => {
            if let Some(address) = address {
                let (low, high) = (case.registers.gpr[0], case.registers.gpr[2]);
                let mut bytes = Vec::new();
                if insn.mnemonic() == M::Cmpxchg8b {
                    bytes.extend((low as u32).to_le_bytes());
                    bytes.extend((high as u32).to_le_bytes());
                } else {
                    bytes.extend(low.to_le_bytes());
                    bytes.extend(high.to_le_bytes());
                }
                patch(case, address, &bytes);
            }
        }
        M::Ldmxcsr => {
            if let Some(address) = address {
                let value = if rng.u8(..8) == 0 { rng.u32(..) } else { values::mxcsr(rng) };
                patch(case, address, &value.to_le_bytes());
            }
        }
        M::Fldcw => {
            if let Some(address) = address {
                let value = if rng.u8(..4) == 0 { rng.u16(..) } else { values::fcw(rng) };
                patch(case, address, &value.to_le_bytes());
            }
        }
        _ => {}
    }
}
