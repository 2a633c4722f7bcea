//! One instruction of a given encoding with random operands.

use fastrand::Rng;
use iced_x86::{Code, Instruction, OpCodeOperandKind as K, OpKind, Register as R};

use crate::{
    generate::address::{Target, choose_target},
    layout::{CODE, DATA, EXITS},
    values,
};

/// Where branches may go and which registers may be operands.
pub(super) struct Limits<'a> {
    /// Addresses of exit stubs, or of instructions in the same sequence.
    pub(super) branch_targets: &'a [u64],
    /// General registers an operand may name.
    pub(super) gprs: u16,
    /// General registers memory operands may use as base; `None`: any, and any addressing form.
    pub(super) bases: Option<u16>,
    /// Use only register forms where there is a choice.
    pub(super) no_memory: bool,
}

impl Limits<'_> {
    fn gpr(&self, rng: &mut Rng) -> u32 {
        loop {
            let n = rng.u32(..16);
            if self.gprs >> n & 1 == 1 {
                return n;
            }
        }
    }
}

fn reg(first: R, number: u32) -> R {
    first + number
}

/// Builds an instruction; `None` if this encoding has an operand kind that is not known here.
pub(super) fn instruction(code: Code, rng: &mut Rng, limits: &Limits<'_>) -> Option<Instruction> {
    let op = code.op_code();
    let mut insn = Instruction::default();
    insn.set_code(code);
    let prefer_memory = rng.bool();
    for (i, &kind) in op.op_kinds().iter().enumerate() {
        let i = i as u32;
        let register = |rng: &mut Rng, class: K| -> Option<R> {
            let n = rng.u32(..16);
            Some(match class {
                K::r8_reg => {
                    if limits.gprs == 0xffff && rng.u8(..3) == 0 {
                        reg(R::AH, rng.u32(..4))
                    } else {
                        match limits.gpr(rng) {
                            n @ 0..4 => reg(R::AL, n),
                            n => reg(R::SPL, n - 4),
                        }
                    }
                }
                K::r16_reg => reg(R::AX, limits.gpr(rng)),
                K::r32_reg => reg(R::EAX, limits.gpr(rng)),
                K::r64_reg => reg(R::RAX, limits.gpr(rng)),
                K::mm_reg => reg(R::MM0, n % 8),
                K::xmm_reg => reg(R::XMM0, n),
                K::seg_reg => reg(R::ES, n % 6),
                K::cr_reg => [R::CR0, R::CR2, R::CR3, R::CR4, R::CR8][n as usize % 5],
                K::dr_reg => reg(R::DR0, n % 8),
                K::sti_opcode => reg(R::ST0, n % 8),
                _ => return None,
            })
        };
        // Kinds that are a register or memory.
        let or_memory = match kind {
            K::r8_or_mem => Some(K::r8_reg),
            K::r16_or_mem => Some(K::r16_reg),
            K::r32_or_mem => Some(K::r32_reg),
            K::r64_or_mem => Some(K::r64_reg),
            K::mm_or_mem => Some(K::mm_reg),
            K::xmm_or_mem => Some(K::xmm_reg),
            _ => None,
        };
        let plain = match kind {
            K::r8_reg | K::r8_opcode => Some(K::r8_reg),
            K::r16_reg | K::r16_rm | K::r16_opcode | K::r16_reg_mem => Some(K::r16_reg),
            K::r32_reg | K::r32_rm | K::r32_opcode | K::r32_vvvv | K::r32_reg_mem => Some(K::r32_reg),
            K::r64_reg | K::r64_rm | K::r64_opcode | K::r64_vvvv | K::r64_reg_mem => Some(K::r64_reg),
            K::mm_reg | K::mm_rm => Some(K::mm_reg),
            K::xmm_reg | K::xmm_rm => Some(K::xmm_reg),
            K::seg_reg | K::cr_reg | K::dr_reg | K::sti_opcode => Some(kind),
            _ => None,
        };
        let fixed = match kind {
            K::es => Some(R::ES),
            K::cs => Some(R::CS),
            K::ss => Some(R::SS),
            K::ds => Some(R::DS),
            K::fs => Some(R::FS),
            K::gs => Some(R::GS),
            K::al => Some(R::AL),
            K::cl => Some(R::CL),
            K::ax => Some(R::AX),
            K::dx => Some(R::DX),
            K::eax => Some(R::EAX),
            K::rax => Some(R::RAX),
            K::st0 => Some(R::ST0),
            _ => None,
        };
        if let Some(class) = or_memory {
            if prefer_memory && !limits.no_memory {
                memory(&mut insn, i, rng, limits);
            } else {
                insn.set_op_kind(i, OpKind::Register);
                insn.set_op_register(i, register(rng, class)?);
            }
            continue;
        }
        if let Some(class) = plain {
            insn.set_op_kind(i, OpKind::Register);
            insn.set_op_register(i, register(rng, class)?);
            continue;
        }
        if let Some(register) = fixed {
            insn.set_op_kind(i, OpKind::Register);
            insn.set_op_register(i, register);
            continue;
        }
        let small = rng.u8(..20) == 0;
        match kind {
            K::mem | K::mem_mib => memory(&mut insn, i, rng, limits),
            K::mem_offs => {
                insn.set_op_kind(i, OpKind::Memory);
                let target = choose_target(rng, Target::Any, 8);
                let (size, address) = if small { (4, target & 0xffff_ffff) } else { (8, target) };
                insn.set_memory_displ_size(size);
                insn.set_memory_displacement64(address);
            }
            K::imm8 | K::imm4_m2z => {
                insn.set_op_kind(
                    i,
                    if i > 0 && insn.op_kind(i - 1) == OpKind::Immediate16 {
                        OpKind::Immediate8_2nd
                    } else {
                        OpKind::Immediate8
                    },
                );
                let value = if rng.bool() { rng.u8(..) } else { rng.u8(..80) };
                if insn.op_kind(i) == OpKind::Immediate8 {
                    insn.set_immediate8(value)
                } else {
                    insn.set_immediate8_2nd(value % 40)
                }
            }
            K::imm8_const_1 => {
                insn.set_op_kind(i, OpKind::Immediate8);
                insn.set_immediate8(1);
            }
            K::imm8sex16 => {
                insn.set_op_kind(i, OpKind::Immediate8to16);
                insn.set_immediate8to16(i16::from(rng.i8(..)));
            }
            K::imm8sex32 => {
                insn.set_op_kind(i, OpKind::Immediate8to32);
                insn.set_immediate8to32(i32::from(rng.i8(..)));
            }
            K::imm8sex64 => {
                insn.set_op_kind(i, OpKind::Immediate8to64);
                insn.set_immediate8to64(i64::from(rng.i8(..)));
            }
            K::imm16 => {
                insn.set_op_kind(i, OpKind::Immediate16);
                let value = values::int(rng) as u16;
                // ENTER and RET: mostly inside the stack.
                let stack = matches!(
                    code,
                    Code::Enterq_imm16_imm8 | Code::Enterw_imm16_imm8 | Code::Retnq_imm16 | Code::Retnw_imm16
                );
                insn.set_immediate16(if stack && rng.u8(..8) != 0 { value % 0x200 } else { value });
            }
            K::imm32 => {
                insn.set_op_kind(i, OpKind::Immediate32);
                insn.set_immediate32(values::int(rng) as u32);
            }
            K::imm32sex64 => {
                insn.set_op_kind(i, OpKind::Immediate32to64);
                insn.set_immediate32to64(i64::from(values::int(rng) as i32));
            }
            K::imm64 => {
                insn.set_op_kind(i, OpKind::Immediate64);
                insn.set_immediate64(values::int(rng));
            }
            K::seg_rSI => {
                insn.set_op_kind(i, if small { OpKind::MemorySegESI } else { OpKind::MemorySegRSI });
                segment(&mut insn, rng);
            }
            K::es_rDI => insn.set_op_kind(
                i,
                match insn.op_kind(0) {
                    OpKind::MemorySegESI => OpKind::MemoryESEDI,
                    OpKind::MemorySegRSI => OpKind::MemoryESRDI,
                    _ if small => OpKind::MemoryESEDI,
                    _ => OpKind::MemoryESRDI,
                },
            ),
            K::seg_rDI => {
                insn.set_op_kind(i, if small { OpKind::MemorySegEDI } else { OpKind::MemorySegRDI });
                segment(&mut insn, rng);
            }
            K::seg_rBX_al => {
                insn.set_op_kind(i, OpKind::Memory);
                insn.set_memory_base(if small { R::EBX } else { R::RBX });
                insn.set_memory_index(R::AL);
                segment(&mut insn, rng);
            }
            K::br64_1 | K::br64_4 => {
                insn.set_op_kind(i, OpKind::NearBranch64);
                let targets = limits.branch_targets;
                let target = match rng.u8(..20) {
                    0 if kind == K::br64_4 => DATA.base + 0x10,
                    1 if kind == K::br64_4 => CODE.base - 16,
                    _ => targets[rng.usize(..targets.len())],
                };
                insn.set_near_branch64(target);
            }
            _ => return None,
        }
    }
    // MOVS and CMPS name RDI and RSI in either order; both must have one address size.
    let kinds = [insn.op_kind(0), insn.op_kind(1)];
    if insn.op_count() >= 2 && kinds.contains(&OpKind::MemoryESRDI) && kinds.contains(&OpKind::MemorySegESI) {
        insn.set_op_kind(0, if kinds[0] == OpKind::MemorySegESI { OpKind::MemorySegRSI } else { kinds[0] });
        insn.set_op_kind(1, if kinds[1] == OpKind::MemorySegESI { OpKind::MemorySegRSI } else { kinds[1] });
    }
    if insn.op_count() >= 2 && kinds.contains(&OpKind::MemoryESEDI) && kinds.contains(&OpKind::MemorySegRSI) {
        insn.set_op_kind(0, if kinds[0] == OpKind::MemorySegRSI { OpKind::MemorySegESI } else { kinds[0] });
        insn.set_op_kind(1, if kinds[1] == OpKind::MemorySegRSI { OpKind::MemorySegESI } else { kinds[1] });
    }
    let memory_first = insn.op_count() > 0 && insn.op_kind(0) == OpKind::Memory;
    if op.can_use_lock_prefix() && memory_first && rng.u8(..3) == 0 {
        insn.set_has_lock_prefix(true);
    }
    if op.can_use_repne_prefix() && rng.u8(..3) == 0 {
        insn.set_has_repne_prefix(true);
    } else if op.can_use_rep_prefix() && rng.bool() {
        insn.set_has_rep_prefix(true);
    }
    debug_assert!(limits.branch_targets.len() <= EXITS * 4);
    Some(insn)
}

fn segment(insn: &mut Instruction, rng: &mut Rng) {
    match rng.u8(..24) {
        0 | 1 => insn.set_segment_prefix(R::FS),
        2 | 3 => insn.set_segment_prefix(R::GS),
        4 => insn.set_segment_prefix([R::ES, R::CS, R::SS, R::DS][rng.usize(..4)]),
        _ => {}
    }
}

/// A memory operand in one of the addressing forms. Where a base register is used, its value is chosen later.
fn memory(insn: &mut Instruction, operand: u32, rng: &mut Rng, limits: &Limits<'_>) {
    insn.set_op_kind(operand, OpKind::Memory);
    if let Some(bases) = limits.bases {
        let base = loop {
            let n = rng.u32(..16);
            if bases >> n & 1 == 1 {
                break n;
            }
        };
        insn.set_memory_base(reg(R::RAX, base));
        insn.set_memory_displ_size(1);
        insn.set_memory_displacement64(rng.i8(..) as i64 as u64);
        return;
    }
    segment(insn, rng);
    let narrow = rng.u8(..16) == 0;
    let first = if narrow { R::EAX } else { R::RAX };
    let form = rng.u8(..16);
    match form {
        0 => {
            insn.set_memory_base(if narrow { R::EIP } else { R::RIP });
            insn.set_memory_displ_size(if narrow { 4 } else { 8 });
            insn.set_memory_displacement64(choose_target(rng, Target::Low, 8));
            return;
        }
        1 => {
            // Absolute: a SIB byte without base or index; sign-extended from 32 bits.
            insn.set_memory_displ_size(if narrow { 4 } else { 8 });
            let target = choose_target(rng, Target::Low, 8);
            insn.set_memory_displacement64(if narrow { target & 0xffff_ffff } else { target });
            return;
        }
        _ => {}
    }
    if form != 2 {
        insn.set_memory_base(reg(first, rng.u32(..16)));
    }
    if form == 2 || form > 9 {
        let index = loop {
            let n = rng.u32(..16);
            if n != 4 {
                break n;
            }
        };
        insn.set_memory_index(reg(first, index));
        insn.set_memory_index_scale(1 << rng.u32(..4));
    }
    match rng.u8(..4) {
        0 if form != 2 => {}
        1 if form != 2 => {
            insn.set_memory_displ_size(1);
            insn.set_memory_displacement64(rng.i8(..) as i64 as u64);
        }
        _ => {
            insn.set_memory_displ_size(if narrow { 4 } else { 8 });
            let displacement = if rng.bool() { i64::from(rng.i32(..)) } else { i64::from(rng.i16(..)) };
            insn.set_memory_displacement64(if narrow {
                displacement as u64 & 0xffff_ffff
            } else {
                displacement as u64
            });
        }
    }
}
