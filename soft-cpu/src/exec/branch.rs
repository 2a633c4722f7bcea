//! Near branches, calls and returns. A target that is not canonical is #GP(0) at the branch.

use crate::{
    access::canonical,
    cpu::Cpu,
    fault::gp,
    insn::{BASE, Insn, Opd, R},
};

fn target(cpu: &mut Cpu, insn: &Insn) -> R<u64> {
    let to = match insn.a {
        Opd::Imm => cpu.gpr[BASE as usize].wrapping_add(insn.imm),
        a => cpu.get(insn, a, 8)?,
    };
    if canonical(to) { Ok(to) } else { Err(gp(0)) }
}

pub(crate) fn jmp(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.next_rip = target(cpu, insn)?;
    Ok(())
}

pub(crate) fn jcc(cpu: &mut Cpu, insn: &Insn) -> R {
    if cpu.lazy.condition(insn.imm2) {
        cpu.next_rip = target(cpu, insn)?;
    }
    Ok(())
}

pub(crate) fn call(cpu: &mut Cpu, insn: &Insn) -> R {
    let to = target(cpu, insn)?;
    cpu.push(8, cpu.next_rip)?;
    cpu.next_rip = to;
    Ok(())
}

pub(crate) fn ret(cpu: &mut Cpu, insn: &Insn) -> R {
    let rsp = cpu.gpr[4];
    let to = cpu.load(rsp, 8, true)?;
    if !canonical(to) {
        return Err(gp(0));
    }
    let extra = if insn.a == Opd::Imm { insn.imm & 0xffff } else { 0 };
    cpu.gpr[4] = rsp.wrapping_add(8).wrapping_add(extra);
    cpu.next_rip = to;
    Ok(())
}

/// LOOP, LOOPE, LOOPNE: `imm2` is 0, 1 or 2 in that order; `addr32`: ECX counts.
pub(crate) fn count_loop(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = if insn.addr32 { 4 } else { 8 };
    let left = cpu.register(Opd::R(1), size).wrapping_sub(1);
    let zero = cpu.lazy.status() & crate::flags::ZF != 0;
    let goes = left & super::mask(size) != 0
        && match insn.imm2 {
            1 => zero,
            2 => !zero,
            _ => true,
        };
    let to = if goes { target(cpu, insn)? } else { cpu.next_rip };
    cpu.set_register(Opd::R(1), size, left);
    cpu.next_rip = to;
    Ok(())
}

/// JRCXZ, JECXZ.
pub(crate) fn jrcxz(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = if insn.addr32 { 4 } else { 8 };
    if cpu.register(Opd::R(1), size) == 0 {
        cpu.next_rip = target(cpu, insn)?;
    }
    Ok(())
}
