//! PUSH, POP, PUSHF, POPF, ENTER and LEAVE.

use crate::{
    cpu::Cpu,
    exec::{mask, sign_extend},
    fault::{Abort, gp},
    flags,
    insn::{Insn, Opd, R},
};

const RSP: usize = 4;

impl Cpu {
    /// Pushes `size` bytes: RSP changes only if the store succeeds.
    #[inline]
    pub(crate) fn push(&mut self, size: u8, value: u64) -> R {
        let at = self.gpr[RSP].wrapping_sub(u64::from(size));
        self.store(at, size, value, true)?;
        self.gpr[RSP] = at;
        Ok(())
    }
}

pub(crate) fn push(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let value = match insn.a {
        // PUSH of an immediate: sign-extended; of a segment register: zero-extended.
        Opd::Imm => sign_extend(insn.imm, 8) & mask(size),
        Opd::Seg(n) => u64::from(cpu.segment(n).selector),
        a => cpu.get(insn, a, size)?,
    };
    cpu.push(size, value)
}

pub(crate) fn pop(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let rsp = cpu.gpr[RSP];
    let value = cpu.load(rsp, size, true)?;
    cpu.gpr[RSP] = rsp.wrapping_add(u64::from(size));
    let done = match insn.a {
        Opd::Seg(n) => cpu.load_segment(n, value as u16),
        // The address of POP [RSP + x] is computed with RSP already incremented.
        a => cpu.put(insn, a, size, value),
    };
    if done.is_err() {
        cpu.gpr[RSP] = rsp;
    }
    done
}

pub(crate) fn pushf(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = cpu.rflags() & !(flags::RF | flags::VM);
    cpu.push(insn.size, value)
}

pub(crate) fn popf(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let rsp = cpu.gpr[RSP];
    let value = cpu.load(rsp, size, true)?;
    cpu.gpr[RSP] = rsp.wrapping_add(u64::from(size));
    let mut writable = flags::STATUS | flags::TF | flags::DF | flags::NT | flags::AC | flags::ID;
    if !cpu.user {
        writable |= flags::IOPL | flags::IF;
    } else if cpu.rflags & flags::IOPL == flags::IOPL {
        writable |= flags::IF;
    }
    writable &= mask(size);
    // RF is cleared by every instruction; POPF never sets it.
    let old = cpu.rflags() & !flags::RF;
    cpu.change_rflags(old & !writable | value & writable);
    Ok(())
}

impl Cpu {
    /// Sets RFLAGS and whatever depends on it.
    pub(crate) fn change_rflags(&mut self, value: u64) {
        let old = self.rflags;
        self.set_rflags(value);
        let changed = old ^ self.rflags;
        if changed & flags::AC != 0 {
            self.update_alignment();
        }
        if self.rflags & (flags::TF | flags::RF) != 0 {
            self.attention = true;
        }
    }
}

pub(crate) fn enter(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let bytes = insn.imm & 0xffff;
    let level = u64::from(insn.imm2 & 31);
    let step = u64::from(size);
    // Its stores may change what it loads: it must not be begun again after one.
    if level > 1 && !cpu.alone {
        return Err(Abort::Alone);
    }
    let rbp = cpu.gpr[5];
    let mut rsp = cpu.gpr[RSP].wrapping_sub(step);
    let frame = rsp;
    cpu.store(rsp, size, rbp & mask(size), true)?;
    for n in 1..=level {
        let value =
            if n < level { cpu.load(rbp.wrapping_sub(step * n), size, true)? } else { frame & mask(size) };
        rsp = rsp.wrapping_sub(step);
        cpu.store(rsp, size, value, true)?;
    }
    let end = rsp.wrapping_sub(bytes);
    // The new top of stack must be writable.
    cpu.span(end, usize::from(size), true, cpu.user, true)?;
    cpu.set_register(Opd::R(5), size, frame);
    cpu.gpr[RSP] = end;
    Ok(())
}

pub(crate) fn leave(cpu: &mut Cpu, insn: &Insn) -> R {
    let rbp = cpu.gpr[5];
    let value = cpu.load(rbp, insn.size, true)?;
    cpu.gpr[RSP] = rbp.wrapping_add(u64::from(insn.size));
    cpu.set_register(Opd::R(5), insn.size, value);
    Ok(())
}

pub(crate) fn cli(cpu: &mut Cpu, _: &Insn) -> R {
    if cpu.user && cpu.rflags & flags::IOPL != flags::IOPL {
        return Err(gp(0));
    }
    cpu.rflags &= !flags::IF;
    Ok(())
}

pub(crate) fn sti(cpu: &mut Cpu, _: &Insn) -> R {
    if cpu.user && cpu.rflags & flags::IOPL != flags::IOPL {
        return Err(gp(0));
    }
    if cpu.rflags & flags::IF == 0 {
        cpu.rflags |= flags::IF;
        cpu.sys.interrupt_shadow = true;
        cpu.attention = true;
    }
    Ok(())
}
