//! From bytes to [`Insn`]s. Decoding has no effect on the CPU and raises nothing: what cannot be decoded becomes
//! an instruction that raises when it is run.

use iced_x86::{
    Code, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};

use crate::{
    exec, fp,
    insn::{BASE, FS, GS, Insn, Opd, Rep, ZERO},
};

/// Longest instruction in bytes.
pub(crate) const LONGEST: usize = 15;

/// Decodes up to `max` instructions that follow one another, ending after one that ends a block, or before one
/// that does not end within `bytes` or cannot be decoded. Puts them in `insns` instead of what is there, in order, with
/// offsets from the first byte, and answers their bytes. None only if `bytes` is too short for the first.
pub(crate) fn straight(bytes: &[u8], max: usize, insns: &mut Vec<Insn>) -> usize {
    insns.clear();
    let mut at = 0;
    let mut iced = Instruction::default();
    // One for the block: making one costs as much as decoding an instruction.
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::FORCE_RESERVED_NOP);
    while insns.len() < max {
        decoder.decode_out(&mut iced);
        let error = decoder.last_error();
        if error == DecoderError::NoMoreBytes && bytes.len() - at < LONGEST {
            break;
        }
        if error != DecoderError::None {
            if insns.is_empty() {
                // The decoder takes fifteen bytes only where it wanted more: too long is #GP(0), not #UD.
                let run = if decoder.position() - at >= LONGEST { exec::raise_gp } else { exec::raise_ud };
                insns.push(blank(run, at as u16, 1));
                at += 1;
            }
            break;
        }
        let mut insn = convert(&iced);
        insn.off = at as u16;
        at += iced.len();
        let ends = insn.ends;
        insns.push(insn);
        if ends {
            break;
        }
    }
    at
}

fn blank(run: crate::insn::Exec, off: u16, len: u8) -> Insn {
    Insn {
        run,
        imm: 0,
        imm2: 0,
        disp: 0,
        off,
        len,
        size: 8,
        src_size: 0,
        a: Opd::None,
        b: Opd::None,
        c: Opd::None,
        base: ZERO,
        index: ZERO,
        scale: 0,
        seg: ZERO,
        addr32: false,
        stack: false,
        rep: Rep::No,
        ends: true,
        counted_branch: false,
        code: Code::INVALID,
        fp: None,
        fp_registers: (0, 0),
    }
}

fn gpr(register: Register) -> Opd {
    let n = register.number() as u8;
    match register {
        Register::AH | Register::CH | Register::DH | Register::BH => {
            Opd::R8((register as u8 - Register::AH as u8) * 8 + 1)
        }
        // `number()` counts AH to BH between BL and SPL: the 64-bit register's number is the encoding's.
        _ if register.is_gpr8() => Opd::R8(register.full_register().number() as u8 * 8),
        _ if register.is_gpr() => Opd::R(n),
        _ if register.is_xmm() => Opd::X(n),
        _ if register.is_mm() || register.is_st() => Opd::F(n),
        _ if register.is_segment_register() => Opd::Seg(n),
        _ if register.is_cr() => Opd::Cr(n),
        _ if register.is_dr() => Opd::Dr(n),
        // YMM, ZMM, masks, bounds, tiles: only in instructions outside the model.
        _ => Opd::None,
    }
}

fn is_memory(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Memory
            | OpKind::MemorySegSI
            | OpKind::MemorySegESI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESDI
            | OpKind::MemoryESEDI
            | OpKind::MemoryESRDI
    )
}

fn operand(iced: &Instruction, n: u32, insn: &mut Insn, imms: &mut u8) -> Opd {
    match iced.op_kind(n) {
        OpKind::Register => gpr(iced.op_register(n)),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
            insn.imm = iced.near_branch_target();
            Opd::Imm
        }
        OpKind::FarBranch16 | OpKind::FarBranch32 => Opd::Imm,
        kind if is_memory(kind) => Opd::Mem,
        _ => {
            let value = iced.immediate(n);
            if *imms == 0 {
                insn.imm = value;
            } else {
                insn.imm2 = value as u8;
            }
            *imms += 1;
            Opd::Imm
        }
    }
}

fn operand_size(iced: &Instruction, n: u32) -> u8 {
    match iced.op_kind(n) {
        OpKind::Register => iced.op_register(n).size() as u8,
        kind if is_memory(kind) => iced.memory_size().size().min(255) as u8,
        _ => 0,
    }
}

fn convert(iced: &Instruction) -> Insn {
    let mut insn = blank(exec::raise_ud, 0, iced.len() as u8);
    insn.ends = false;
    insn.code = iced.code();
    let mut imms = 0;
    let count = iced.op_count();
    let mut operands = [Opd::None; 5];
    for n in 0..count.min(5) {
        operands[n as usize] = operand(iced, n, &mut insn, &mut imms);
    }
    [insn.a, insn.b, insn.c] = [operands[0], operands[1], operands[2]];
    if count > 0 {
        insn.size = operand_size(iced, 0);
    }
    if count > 1 {
        insn.src_size = operand_size(iced, 1);
    }
    if insn.size == 0 {
        insn.size = insn.src_size;
    }
    memory(iced, &mut insn);
    insn.rep = if iced.has_repne_prefix() {
        Rep::Ne
    } else if iced.has_rep_prefix() {
        Rep::E
    } else {
        Rep::No
    };
    let flow = iced.flow_control();
    insn.ends = !matches!(flow, FlowControl::Next);
    if iced.is_jcc_short_or_near() {
        insn.counted_branch = true;
    }
    insn.imm2 |= match iced.condition_code() {
        iced_x86::ConditionCode::None => 0,
        cc => condition(cc),
    };
    exec::resolve(iced, &mut insn);
    let raises = std::ptr::fn_addr_eq(insn.run, exec::raise_ud as crate::insn::Exec);
    if raises {
        if let Some(fp) = fp::lookup(iced) {
            insn.fp = Some(fp);
            insn.fp_registers = fp::registers(iced);
            exec::fpu::prepare(iced, &mut insn);
        } else {
            insn.ends = true;
            insn.run = if matches!(iced.mnemonic(), Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2) {
                exec::raise_ud
            } else {
                exec::outside_model
            };
        }
    }
    insn
}

fn condition(cc: iced_x86::ConditionCode) -> u8 {
    use iced_x86::ConditionCode as C;
    match cc {
        C::None | C::o => 0,
        C::no => 1,
        C::b => 2,
        C::ae => 3,
        C::e => 4,
        C::ne => 5,
        C::be => 6,
        C::a => 7,
        C::s => 8,
        C::ns => 9,
        C::p => 10,
        C::np => 11,
        C::l => 12,
        C::ge => 13,
        C::le => 14,
        C::g => 15,
    }
}

fn memory(iced: &Instruction, insn: &mut Insn) {
    let Some(n) = (0..iced.op_count()).find(|&n| is_memory(iced.op_kind(n))) else { return };
    insn.seg = match iced.memory_segment() {
        Register::FS => FS,
        Register::GS => GS,
        _ => ZERO,
    };
    // 64-bit mode ignores ES, CS, SS and DS prefixes (SDM vol. 1 3.3.7.1): only the base register makes it a stack
    // access.
    insn.stack = iced.op_kind(n) == OpKind::Memory
        && !matches!(iced.segment_prefix(), Register::FS | Register::GS)
        && matches!(iced.memory_base(), Register::RSP | Register::RBP | Register::ESP | Register::EBP);
    insn.addr32 = match iced.op_kind(n) {
        OpKind::Memory => {
            let is32 = |r: Register| r.is_gpr32() || r == Register::EIP;
            is32(iced.memory_base())
                || is32(iced.memory_index())
                || iced.memory_index() == Register::None
                    && iced.memory_base() == Register::None
                    && iced.memory_displ_size() == 4
        }
        kind => matches!(kind, OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI),
    };
    if iced.op_kind(n) != OpKind::Memory {
        return;
    }
    insn.disp = iced.memory_displacement64() as i64;
    if iced.is_ip_rel_memory_operand() {
        insn.base = BASE;
        return;
    }
    if iced.memory_base() != Register::None {
        insn.base = iced.memory_base().number() as u8;
    }
    if iced.memory_index() != Register::None {
        insn.index = iced.memory_index().number() as u8;
        insn.scale = iced.memory_index_scale().trailing_zeros() as u8;
    }
}
