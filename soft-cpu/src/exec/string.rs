//! String instructions. A REP instruction makes progress in RCX, RSI and RDI; a fault in the middle leaves them at
//! the element that faulted.

use crate::{
    cpu::{Cpu, Exit},
    exec::mask,
    fault::Abort,
    flags::{self, kind},
    insn::{Insn, Opd, R, Rep},
    tlb,
    watch::Kind,
};

const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;

/// Bytes a chunk may move inside one page from `at`, upwards.
fn room(at: u64) -> u64 {
    4096 - (at & 0xfff)
}

impl Cpu {
    pub(crate) fn pointer(&self, insn: &Insn, register: usize) -> u64 {
        if insn.addr32 { u64::from(self.gpr[register] as u32) } else { self.gpr[register] }
    }

    pub(crate) fn advance(&mut self, insn: &Insn, register: usize, bytes: u64) {
        let value = if self.rflags & flags::DF == 0 {
            self.gpr[register].wrapping_add(bytes)
        } else {
            self.gpr[register].wrapping_sub(bytes)
        };
        self.gpr[register] = if insn.addr32 { u64::from(value as u32) } else { value };
    }

    fn count_down(&mut self, insn: &Insn, by: u64) {
        let value = self.gpr[RCX].wrapping_sub(by);
        self.gpr[RCX] = if insn.addr32 { u64::from(value as u32) } else { value };
    }

    /// Elements still to do.
    pub(crate) fn repetitions(&self, insn: &Insn) -> u64 {
        if insn.rep == Rep::No { 1 } else { self.pointer(insn, RCX) }
    }

    /// After some elements of a repeated instruction: does it stop here, with RIP still on it? With TF set or a data
    /// breakpoint hit it traps (SDM vol. 3B 17.3.1.1); many hits or recorded accesses are handed over first; and
    /// the outside may ask for the CPU at any time.
    fn stops_between(&mut self, insn: &Insn) -> R<bool> {
        // What is done stays done, whatever happens to the elements to come.
        self.hooks.commit();
        if self.pointer(insn, RCX) == 0 {
            return Ok(false);
        }
        if self.alone && (self.rflags & flags::TF != 0 || self.debug_cause != 0 || self.hooks.full()) {
            self.next_rip = self.rip;
            self.partial = true;
            return Ok(true);
        }
        if self.take_interrupt() {
            self.pending = Some(Exit::Interrupted);
            return Err(Abort::Stop);
        }
        Ok(false)
    }

    /// May somebody look at accesses to this page?
    fn may_be_watched(&self, linear: u64) -> bool {
        let Some(gpa) = self.translate(linear) else { return true };
        !self.fast_allowed(linear, gpa, Kind::Read) || !self.fast_allowed(linear, gpa, Kind::Write)
    }

    /// How many elements may be done at once: none unless going up, unwatched, and inside the pages given. Where `to`
    /// has no write tag, one is done first: it gets the tag, unless each store to the page must be looked at.
    fn chunk(&self, insn: &Insn, size: u64, left: u64, to: u64, pointers: &[u64]) -> u64 {
        if self.rflags & (flags::DF | flags::TF) != 0
            || self.alignment_checked
            || insn.addr32
            || self.tlb.tables[usize::from(self.user)][tlb::slot(to)].write != to & !0xfff
            || self.hooks.any_data() && pointers.iter().any(|&at| self.may_be_watched(at))
        {
            return 0;
        }
        pointers.iter().fold(left, |n, &at| n.min(room(at) / size))
    }
}

/// Runs `element` once, or under REP until RCX is zero.
fn repeat(cpu: &mut Cpu, insn: &Insn, mut some: impl FnMut(&mut Cpu, &Insn, u64) -> R<u64>) -> R {
    if insn.rep == Rep::No {
        some(cpu, insn, 1)?;
        return Ok(());
    }
    loop {
        let left = cpu.repetitions(insn);
        if left == 0 {
            return Ok(());
        }
        let done = some(cpu, insn, left)?;
        cpu.count_down(insn, done);
        if cpu.stops_between(insn)? {
            return Ok(());
        }
    }
}

pub(crate) fn movs(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = u64::from(insn.size);
    repeat(cpu, insn, |cpu, insn, left| {
        let from = cpu.pointer(insn, RSI).wrapping_add(cpu.gpr[insn.seg as usize]);
        let to = cpu.pointer(insn, RDI);
        let n = cpu.chunk(insn, size, left, to, &[from, to]);
        let apart = to.wrapping_sub(from) >= n * size;
        if n > 1 && apart {
            let bytes = (n * size) as usize;
            let source = cpu.span(from, bytes, false, cpu.user, false)?;
            let target = cpu.span(to, bytes, true, cpu.user, false)?;
            let mut buffer = [0; 4096];
            // Two linear pages may be one physical page: then element by element.
            if source.apart(&target, bytes) {
                source.read_bytes(&mut buffer[..bytes]);
                target.write_bytes(&buffer[..bytes]);
                cpu.advance(insn, RSI, n * size);
                cpu.advance(insn, RDI, n * size);
                return Ok(n);
            }
        }
        let value = cpu.load(from, insn.size, false)?;
        cpu.store(to, insn.size, value, false)?;
        cpu.advance(insn, RSI, size);
        cpu.advance(insn, RDI, size);
        Ok(1)
    })
}

pub(crate) fn stos(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = u64::from(insn.size);
    repeat(cpu, insn, |cpu, insn, left| {
        let to = cpu.pointer(insn, RDI);
        let n = cpu.chunk(insn, size, left, to, &[to]).max(1);
        if n > 1 {
            let bytes = (n * size) as usize;
            let target = cpu.span(to, bytes, true, cpu.user, false)?;
            let mut buffer = [0; 4096];
            let value = cpu.gpr[0].to_le_bytes();
            for element in buffer[..bytes].chunks_exact_mut(size as usize) {
                element.copy_from_slice(&value[..size as usize]);
            }
            target.write_bytes(&buffer[..bytes]);
        } else {
            cpu.store(to, insn.size, cpu.gpr[0] & mask(insn.size), false)?;
        }
        cpu.advance(insn, RDI, n * size);
        Ok(n)
    })
}

pub(crate) fn lods(cpu: &mut Cpu, insn: &Insn) -> R {
    repeat(cpu, insn, |cpu, insn, _| {
        let from = cpu.pointer(insn, RSI).wrapping_add(cpu.gpr[insn.seg as usize]);
        let value = cpu.load(from, insn.size, false)?;
        let low = if insn.size == 1 { Opd::R8(0) } else { Opd::R(0) };
        cpu.set_register(low, insn.size, value);
        cpu.advance(insn, RSI, u64::from(insn.size));
        Ok(1)
    })
}

/// CMPS and SCAS: under REPE or REPNE until RCX is zero or ZF says stop.
fn compare(cpu: &mut Cpu, insn: &Insn, mut operands: impl FnMut(&mut Cpu, &Insn) -> R<(u64, u64)>) -> R {
    let mut step = |cpu: &mut Cpu| -> R<bool> {
        let (a, b) = operands(cpu, insn)?;
        cpu.flags_from(kind::SUB, insn.size, a.wrapping_sub(b), b);
        Ok(a == b)
    };
    if insn.rep == Rep::No {
        step(cpu)?;
        return Ok(());
    }
    while cpu.repetitions(insn) != 0 {
        // A fault leaves RCX, the pointers and the flags of the elements before.
        let equal = step(cpu)?;
        cpu.count_down(insn, 1);
        if equal != (insn.rep == Rep::E) || cpu.stops_between(insn)? {
            break;
        }
    }
    Ok(())
}

pub(crate) fn cmps(cpu: &mut Cpu, insn: &Insn) -> R {
    compare(cpu, insn, |cpu, insn| {
        let from = cpu.pointer(insn, RSI).wrapping_add(cpu.gpr[insn.seg as usize]);
        let a = cpu.load(from, insn.size, false)?;
        let b = cpu.load(cpu.pointer(insn, RDI), insn.size, false)?;
        cpu.advance(insn, RSI, u64::from(insn.size));
        cpu.advance(insn, RDI, u64::from(insn.size));
        Ok((a, b))
    })
}

pub(crate) fn scas(cpu: &mut Cpu, insn: &Insn) -> R {
    compare(cpu, insn, |cpu, insn| {
        let b = cpu.load(cpu.pointer(insn, RDI), insn.size, false)?;
        cpu.advance(insn, RDI, u64::from(insn.size));
        Ok((cpu.gpr[0] & mask(insn.size), b))
    })
}
