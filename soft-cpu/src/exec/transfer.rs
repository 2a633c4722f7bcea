//! Moves of general registers, and what only computes addresses or conditions.

use crate::{
    access::canonical,
    cpu::Cpu,
    exec::sign_extend,
    fault::gp,
    insn::{FS, GS, Insn, R},
};

pub(crate) fn mov(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = cpu.get(insn, insn.b, insn.size)?;
    cpu.put(insn, insn.a, insn.size, value)
}

pub(crate) fn movzx(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = cpu.get(insn, insn.b, insn.src_size)?;
    cpu.set_register(insn.a, insn.size, value);
    Ok(())
}

pub(crate) fn movsx(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = cpu.get(insn, insn.b, insn.src_size)?;
    cpu.set_register(insn.a, insn.size, sign_extend(value, insn.src_size));
    Ok(())
}

pub(crate) fn lea(cpu: &mut Cpu, insn: &Insn) -> R {
    let address = cpu.address(insn).wrapping_sub(cpu.gpr[insn.seg as usize]);
    cpu.set_register(insn.a, insn.size, address);
    Ok(())
}

pub(crate) fn cmov(cpu: &mut Cpu, insn: &Insn) -> R {
    // The load happens in any case, and a 32-bit destination is zero-extended in any case.
    let value = cpu.get(insn, insn.b, insn.size)?;
    let value = if cpu.lazy.condition(insn.imm2) { value } else { cpu.register(insn.a, insn.size) };
    cpu.set_register(insn.a, insn.size, value);
    Ok(())
}

pub(crate) fn setcc(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = u64::from(cpu.lazy.condition(insn.imm2));
    cpu.put(insn, insn.a, 1, value)
}

pub(crate) fn xlat(cpu: &mut Cpu, insn: &Insn) -> R {
    let mut at = cpu.gpr[3].wrapping_add(cpu.gpr[0] & 0xff);
    if insn.addr32 {
        at = u64::from(at as u32);
    }
    let value = cpu.load(at.wrapping_add(cpu.gpr[insn.seg as usize]), 1, false)?;
    cpu.set_register(crate::insn::Opd::R8(0), 1, value);
    Ok(())
}

fn fsgsbase(cpu: &Cpu) -> R {
    if cpu.sys.cr4 & 1 << 16 == 0 { Err(crate::fault::ud()) } else { Ok(()) }
}

pub(crate) fn rdfsbase(cpu: &mut Cpu, insn: &Insn) -> R {
    fsgsbase(cpu)?;
    cpu.set_register(insn.a, insn.size, cpu.gpr[FS as usize]);
    Ok(())
}

pub(crate) fn rdgsbase(cpu: &mut Cpu, insn: &Insn) -> R {
    fsgsbase(cpu)?;
    cpu.set_register(insn.a, insn.size, cpu.gpr[GS as usize]);
    Ok(())
}

fn write_base(cpu: &mut Cpu, insn: &Insn, register: u8) -> R {
    fsgsbase(cpu)?;
    let value = cpu.register(insn.a, insn.size);
    if !canonical(value) {
        return Err(gp(0));
    }
    cpu.gpr[register as usize] = value;
    Ok(())
}

pub(crate) fn wrfsbase(cpu: &mut Cpu, insn: &Insn) -> R {
    write_base(cpu, insn, FS)
}

pub(crate) fn wrgsbase(cpu: &mut Cpu, insn: &Insn) -> R {
    write_base(cpu, insn, GS)
}
