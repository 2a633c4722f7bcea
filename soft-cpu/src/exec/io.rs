//! IN, OUT, INS, OUTS: each leaves the CPU, once per instruction (OUTS) or per element (INS).

use crate::{
    cpu::{Cpu, Exit, PendingIn},
    fault::{Abort, gp},
    flags,
    insn::{Insn, Opd, R, Rep},
};

/// Bytes one REP OUTS hands over at most; it goes on afterwards.
const MOST: u64 = 65_536;

impl Cpu {
    /// Checks IOPL and, failing that, the I/O permission bitmap of the TSS (SDM vol. 1 19.5.2).
    fn may_use_port(&mut self, port: u16, size: u8) -> R {
        if u64::from(self.cpl()) <= (self.rflags & flags::IOPL) >> 12 {
            return Ok(());
        }
        let tss = self.sys.tr;
        if tss.unusable || tss.limit < 103 {
            return Err(gp(0));
        }
        let map = self.load_system(tss.base.wrapping_add(102), 2)?;
        let at = map + u64::from(port / 8);
        if at + 1 > u64::from(tss.limit) {
            return Err(gp(0));
        }
        let bits = self.load_system(tss.base.wrapping_add(at), 2)? >> (port % 8);
        if bits & ((1 << size) - 1) != 0 { Err(gp(0)) } else { Ok(()) }
    }

    /// Answers the last [`Exit::PortIn`].
    ///
    /// INS had its memory checked before it asked, so this cannot fault.
    pub fn complete_in(&mut self, value: u32) {
        let Some(pending) = self.pending_in.take() else { return };
        match pending {
            PendingIn::Register(size) => {
                let low = if size == 1 { Opd::R8(0) } else { Opd::R(0) };
                self.set_register(low, size, u64::from(value));
            }
            PendingIn::String { size, span } => span.write(u64::from(value) & super::mask(size)),
        }
    }
}

fn port(cpu: &Cpu, insn: &Insn, opd: Opd) -> u16 {
    match opd {
        Opd::Imm => insn.imm as u16 & 0xff,
        _ => cpu.gpr[2] as u16,
    }
}

pub(crate) fn input(cpu: &mut Cpu, insn: &Insn) -> R {
    let (port, size) = (port(cpu, insn, insn.b), insn.size);
    cpu.may_use_port(port, size)?;
    cpu.pending_in = Some(PendingIn::Register(size));
    leave(cpu, Exit::PortIn { port, size });
    Ok(())
}

pub(crate) fn output(cpu: &mut Cpu, insn: &Insn) -> R {
    let (port, size) = (port(cpu, insn, insn.a), insn.src_size);
    cpu.may_use_port(port, size)?;
    let data = cpu.gpr[0].to_le_bytes()[..usize::from(size)].to_vec();
    leave(cpu, Exit::PortOut { port, size, data });
    Ok(())
}

fn leave(cpu: &mut Cpu, exit: Exit) {
    cpu.pending = Some(exit);
    cpu.attention = true;
}

/// A repeated instruction stops in between, which only the single step can.
fn alone_if_repeated(cpu: &Cpu, insn: &Insn) -> R {
    if insn.rep != Rep::No && !cpu.alone { Err(Abort::Alone) } else { Ok(()) }
}

/// A repeated instruction that stops in between: RIP stays on it and it is not counted yet.
fn again(cpu: &mut Cpu) {
    cpu.next_rip = cpu.rip;
    cpu.partial = true;
}

pub(crate) fn outs(cpu: &mut Cpu, insn: &Insn) -> R {
    alone_if_repeated(cpu, insn)?;
    let (port, size) = (cpu.gpr[2] as u16, insn.size);
    cpu.may_use_port(port, size)?;
    let mut left = cpu.repetitions(insn);
    let mut data = Vec::new();
    while left > 0 && (data.len() as u64) < MOST {
        let from = cpu.pointer(insn, 6).wrapping_add(cpu.gpr[insn.seg as usize]);
        match cpu.load(from, size, false) {
            Ok(value) => data.extend_from_slice(&value.to_le_bytes()[..usize::from(size)]),
            // What was read before the fault goes out first; the instruction then faults again.
            Err(abort) if data.is_empty() => return Err(abort),
            Err(_) => break,
        }
        cpu.advance(insn, 6, u64::from(size));
        left -= 1;
        if insn.rep != Rep::No {
            cpu.set_register(Opd::R(1), if insn.addr32 { 4 } else { 8 }, left);
        }
    }
    if left > 0 && insn.rep != Rep::No {
        again(cpu);
    }
    if !data.is_empty() {
        leave(cpu, Exit::PortOut { port, size, data });
    }
    Ok(())
}

pub(crate) fn ins(cpu: &mut Cpu, insn: &Insn) -> R {
    alone_if_repeated(cpu, insn)?;
    let (port, size) = (cpu.gpr[2] as u16, insn.size);
    cpu.may_use_port(port, size)?;
    let left = cpu.repetitions(insn);
    if left == 0 {
        return Ok(());
    }
    let span = cpu.span(cpu.pointer(insn, 7), usize::from(size), true, cpu.user, false)?;
    cpu.advance(insn, 7, u64::from(size));
    if insn.rep != Rep::No {
        cpu.set_register(Opd::R(1), if insn.addr32 { 4 } else { 8 }, left - 1);
        if left > 1 {
            again(cpu);
        }
    }
    cpu.pending_in = Some(PendingIn::String { size, span });
    leave(cpu, Exit::PortIn { port, size });
    Ok(())
}
