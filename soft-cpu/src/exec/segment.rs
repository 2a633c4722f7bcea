//! Segment registers, descriptor tables and far transfers inside 64-bit mode (SDM vol. 3A chapters 3 and 5).

use crate::{
    access::canonical,
    cpu::{Cpu, Exit},
    exec::mask,
    fault::{self, Abort, coded, gp},
    flags::ZF,
    insn::{FS, GS, Insn, Opd, R},
    state::{DescriptorTable, Segment},
};

/// A descriptor as it is in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptor {
    pub(crate) low: u64,
}

impl Descriptor {
    pub(crate) fn kind(self) -> u8 {
        (self.low >> 40 & 0xf) as u8
    }
    /// Code or data, not a system descriptor.
    pub(crate) fn is_segment(self) -> bool {
        self.low >> 44 & 1 != 0
    }
    pub(crate) fn dpl(self) -> u8 {
        (self.low >> 45 & 3) as u8
    }
    pub(crate) fn present(self) -> bool {
        self.low >> 47 & 1 != 0
    }
    pub(crate) fn is_code(self) -> bool {
        self.is_segment() && self.kind() & 8 != 0
    }
    pub(crate) fn long(self) -> bool {
        self.low >> 53 & 1 != 0
    }
    fn base(self) -> u64 {
        self.low >> 16 & 0xff_ffff | self.low >> 32 & 0xff00_0000
    }
    fn limit(self) -> u32 {
        let raw = (self.low & 0xffff | self.low >> 32 & 0xf_0000) as u32;
        if self.low >> 55 & 1 != 0 { raw << 12 | 0xfff } else { raw }
    }
    /// Type, S, DPL, P in bits 0..8; AVL, L, D, G in bits 8..12.
    fn attributes(self) -> u16 {
        (self.low >> 40 & 0xff | self.low >> 44 & 0xf00) as u16
    }
    pub(crate) fn segment(self, selector: u16) -> Segment {
        Segment {
            selector,
            base: self.base(),
            limit: self.limit(),
            attributes: self.attributes(),
            unusable: false,
        }
    }
}

impl Cpu {
    pub(crate) fn segment(&self, n: u8) -> &Segment {
        match n {
            0 => &self.sys.es,
            1 => &self.sys.cs,
            2 => &self.sys.ss,
            3 => &self.sys.ds,
            4 => &self.sys.fs,
            _ => &self.sys.gs,
        }
    }

    /// Linear address of a descriptor, or the fault for a selector beyond its table.
    fn descriptor_address(&self, selector: u16, outside: Abort) -> R<u64> {
        let at = u64::from(selector & !7);
        let (base, limit) = if selector & 4 == 0 {
            (self.sys.gdtr.base, u64::from(self.sys.gdtr.limit))
        } else if self.sys.ldtr.unusable || self.sys.ldtr.selector & !3 == 0 {
            return Err(outside);
        } else {
            (self.sys.ldtr.base, u64::from(self.sys.ldtr.limit))
        };
        if at + 7 > limit { Err(outside) } else { Ok(base.wrapping_add(at)) }
    }

    pub(crate) fn descriptor(&mut self, selector: u16, outside: Abort) -> R<Descriptor> {
        let at = self.descriptor_address(selector, outside)?;
        Ok(Descriptor { low: self.load_system(at, 8)? })
    }

    /// Sets the accessed bit of a code or data descriptor in memory.
    pub(crate) fn mark_accessed(&mut self, selector: u16, descriptor: &mut Descriptor) -> R {
        if descriptor.kind() & 1 == 0 {
            descriptor.low |= 1 << 40;
            let at = self.descriptor_address(selector, gp(u32::from(selector & !3)))?;
            let span = self.span(at.wrapping_add(5), 1, true, false, false)?;
            span.write(descriptor.low >> 40 & 0xff);
        }
        Ok(())
    }

    /// Loads ES, SS, DS, FS or GS from a selector.
    pub(crate) fn load_segment(&mut self, n: u8, selector: u16) -> R {
        let code = u32::from(selector & !3);
        let cpl = self.cpl();
        let rpl = (selector & 3) as u8;
        let segment = if selector & !3 == 0 {
            if n == 2 && (self.user || rpl != cpl) {
                return Err(gp(0));
            }
            // A null selector keeps nothing but, for SS, the privilege.
            let attributes = if n == 2 { u16::from(cpl) << 5 } else { 0 };
            Segment { selector, base: 0, limit: 0, attributes, unusable: true }
        } else {
            let mut d = self.descriptor(selector, gp(code))?;
            let (kind, dpl) = (d.kind(), d.dpl());
            if n == 2 {
                let writable = d.is_segment() && kind & 8 == 0 && kind & 2 != 0;
                if rpl != cpl || dpl != cpl || !writable {
                    return Err(gp(code));
                }
                if !d.present() {
                    return Err(coded(fault::SS, code));
                }
            } else {
                let readable = d.is_segment() && (kind & 8 == 0 || kind & 2 != 0);
                let conforming = kind & 12 == 12;
                if !readable || !conforming && (rpl > dpl || cpl > dpl) {
                    return Err(gp(code));
                }
                if !d.present() {
                    return Err(coded(fault::NP, code));
                }
            }
            self.mark_accessed(selector, &mut d)?;
            d.segment(selector)
        };
        match n {
            0 => self.sys.es = segment,
            2 => {
                self.sys.ss = segment;
                self.sys.interrupt_shadow = true;
                self.stack_loaded = true;
                self.attention = true;
            }
            3 => self.sys.ds = segment,
            4 => {
                self.sys.fs = segment;
                self.gpr[FS as usize] = segment.base;
            }
            _ => {
                self.sys.gs = segment;
                self.gpr[GS as usize] = segment.base;
            }
        }
        Ok(())
    }

    /// #GP for what would enter 32-bit code: the machine runs 64-bit code only.
    pub(crate) fn unsupported(&mut self, what: &str) -> Abort {
        let rip = self.rip;
        let bytes = self.code_bytes(rip);
        self.pending = Some(Exit::Unsupported { rip, bytes, what: what.to_owned() });
        Abort::Stop
    }

    /// Checks and loads CS for a far transfer. `privilege`: the CPL after it.
    pub(crate) fn code_segment(&mut self, selector: u16, privilege: u8, is_return: bool) -> R<Segment> {
        let code = u32::from(selector & !3);
        if code == 0 {
            return Err(gp(0));
        }
        let mut d = self.descriptor(selector, gp(code))?;
        if !d.is_code() {
            return Err(gp(code));
        }
        let conforming = d.kind() & 4 != 0;
        let allowed = match (conforming, is_return) {
            (true, _) => d.dpl() <= privilege,
            (false, true) => d.dpl() == privilege,
            (false, false) => d.dpl() == privilege && (selector & 3) as u8 <= privilege,
        };
        if !allowed {
            return Err(gp(code));
        }
        if !d.present() {
            return Err(coded(fault::NP, code));
        }
        if !d.long() {
            return Err(self.unsupported("transfer to 32-bit (compatibility mode) code"));
        }
        if d.low >> 54 & 1 != 0 {
            return Err(gp(code));
        }
        self.mark_accessed(selector, &mut d)?;
        Ok(d.segment(selector & !3 | u16::from(privilege)))
    }
}

pub(crate) fn mov_from(cpu: &mut Cpu, insn: &Insn) -> R {
    let Opd::Seg(n) = insn.b else { return Err(fault::ud()) };
    let value = u64::from(cpu.segment(n).selector);
    let size = if insn.a == Opd::Mem { 2 } else { insn.size };
    cpu.put(insn, insn.a, size, value)
}

pub(crate) fn mov_to(cpu: &mut Cpu, insn: &Insn) -> R {
    let Opd::Seg(n) = insn.a else { return Err(fault::ud()) };
    if n == 1 {
        return Err(fault::ud());
    }
    let selector = cpu.get(insn, insn.b, 2)? as u16;
    cpu.load_segment(n, selector)
}

/// LSS, LFS, LGS: `imm2` is the segment register.
pub(crate) fn load_far(cpu: &mut Cpu, insn: &Insn) -> R {
    let at = cpu.address(insn);
    let size = insn.size;
    let offset = cpu.load(at, size, insn.stack)?;
    let selector = cpu.load(at.wrapping_add(u64::from(size)), 2, insn.stack)? as u16;
    cpu.load_segment(insn.imm2, selector)?;
    cpu.set_register(insn.a, size, offset);
    Ok(())
}

/// JMP FAR and CALL FAR through memory. `imm2` is 1 for a call; `size` the offset's bytes.
pub(crate) fn far_jump(cpu: &mut Cpu, insn: &Insn) -> R {
    let at = cpu.address(insn);
    let size = insn.size;
    let offset = cpu.load(at, size, insn.stack)?;
    let selector = cpu.load(at.wrapping_add(u64::from(size)), 2, insn.stack)? as u16;
    let code = u32::from(selector & !3);
    if code != 0 {
        let d = cpu.descriptor(selector, gp(code))?;
        if !d.is_segment() && d.kind() == 12 {
            return Err(cpu.unsupported("far transfer through a call gate"));
        }
    }
    let cpl = cpu.cpl();
    let segment = cpu.code_segment(selector, cpl, false)?;
    if !canonical(offset) {
        return Err(gp(0));
    }
    if insn.imm2 == 1 {
        let rsp = cpu.gpr[4];
        let (cs, rip, step) = (u64::from(cpu.sys.cs.selector), cpu.next_rip, u64::from(size));
        cpu.span(rsp.wrapping_sub(2 * step), 2 * usize::from(size), true, cpu.user, true)?;
        cpu.store(rsp.wrapping_sub(step), size, cs, true)?;
        cpu.store(rsp.wrapping_sub(2 * step), size, rip & mask(size), true)?;
        cpu.gpr[4] = rsp.wrapping_sub(2 * step);
    }
    cpu.sys.cs = segment;
    cpu.next_rip = offset;
    cpu.attention = true;
    Ok(())
}

/// RETF: to the same or an outer privilege.
pub(crate) fn far_return(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, step) = (insn.size, u64::from(insn.size));
    let rsp = cpu.gpr[4];
    let rip = cpu.load(rsp, size, true)?;
    let selector = cpu.load(rsp.wrapping_add(step), size, true)? as u16;
    let extra = if insn.a == Opd::Imm { insn.imm & 0xffff } else { 0 };
    let rpl = (selector & 3) as u8;
    if rpl < cpu.cpl() {
        return Err(gp(u32::from(selector & !3)));
    }
    let segment = cpu.code_segment(selector, rpl, true)?;
    let after = rsp.wrapping_add(2 * step).wrapping_add(extra);
    if rpl == cpu.cpl() {
        if !canonical(rip) {
            return Err(gp(0));
        }
        cpu.sys.cs = segment;
        cpu.gpr[4] = after;
        cpu.next_rip = rip;
        cpu.attention = true;
        return Ok(());
    }
    let new_rsp = cpu.load(after, size, true)?;
    let ss = cpu.load(after.wrapping_add(step), size, true)? as u16;
    if !canonical(rip) {
        return Err(gp(0));
    }
    cpu.leave_to_outer(segment, rip, ss, new_rsp.wrapping_add(extra))
}

impl Cpu {
    /// Last part of RETF and IRET to CPL 3: SS, privilege, data segments that would leak.
    pub(crate) fn leave_to_outer(&mut self, cs: Segment, rip: u64, ss: u16, rsp: u64) -> R {
        let code = u32::from(ss & !3);
        if code == 0 {
            return Err(gp(0));
        }
        let mut d = self.descriptor(ss, gp(code))?;
        let writable = d.is_segment() && d.kind() & 8 == 0 && d.kind() & 2 != 0;
        if ss & 3 != 3 || d.dpl() != 3 || !writable {
            return Err(gp(code));
        }
        if !d.present() {
            return Err(coded(fault::SS, code));
        }
        self.mark_accessed(ss, &mut d)?;
        self.sys.ss = d.segment(ss);
        self.sys.cs = cs;
        self.gpr[4] = rsp;
        self.next_rip = rip;
        self.set_user(true);
        // Data segments more privileged than the new CPL become null (SDM: RET, IRET).
        let leaks = |s: &Segment| {
            !s.unusable
                && (s.attributes & 0xc) != 0xc
                && (s.attributes >> 5 & 3) < 3
                && s.attributes & 0x10 != 0
        };
        let null = Segment { unusable: true, ..Segment::default() };
        if leaks(&self.sys.es) {
            self.sys.es = null;
        }
        if leaks(&self.sys.ds) {
            self.sys.ds = null;
        }
        if leaks(&self.sys.fs) {
            self.sys.fs = null;
            self.gpr[FS as usize] = 0;
        }
        if leaks(&self.sys.gs) {
            self.sys.gs = null;
            self.gpr[GS as usize] = 0;
        }
        Ok(())
    }
}

fn table_operand(cpu: &mut Cpu, insn: &Insn) -> R<DescriptorTable> {
    let at = cpu.address(insn);
    let span = cpu.span(at, 10, false, cpu.user, insn.stack)?;
    let mut bytes = [0; 10];
    span.read_bytes(&mut bytes);
    let limit = u16::from_le_bytes([bytes[0], bytes[1]]);
    let mut base = [0; 8];
    base.copy_from_slice(&bytes[2..]);
    let base = u64::from_le_bytes(base);
    if canonical(base) { Ok(DescriptorTable { base, limit }) } else { Err(gp(0)) }
}

pub(crate) fn lgdt(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    cpu.sys.gdtr = table_operand(cpu, insn)?;
    Ok(())
}

pub(crate) fn lidt(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    cpu.sys.idtr = table_operand(cpu, insn)?;
    Ok(())
}

fn store_table(cpu: &mut Cpu, insn: &Insn, table: DescriptorTable) -> R {
    let span = cpu.span(cpu.address(insn), 10, true, cpu.user, insn.stack)?;
    let mut bytes = [0; 10];
    bytes[..2].copy_from_slice(&table.limit.to_le_bytes());
    bytes[2..].copy_from_slice(&table.base.to_le_bytes());
    span.write_bytes(&bytes);
    Ok(())
}

pub(crate) fn sgdt(cpu: &mut Cpu, insn: &Insn) -> R {
    store_table(cpu, insn, cpu.sys.gdtr)
}

pub(crate) fn sidt(cpu: &mut Cpu, insn: &Insn) -> R {
    store_table(cpu, insn, cpu.sys.idtr)
}

/// Loads LDTR or TR from a 16-byte system descriptor.
fn system_segment(cpu: &mut Cpu, selector: u16, kinds: [u8; 2]) -> R<(Segment, u64)> {
    let code = u32::from(selector & !3);
    if selector & 4 != 0 {
        return Err(gp(code));
    }
    let d = cpu.descriptor(selector, gp(code))?;
    if u64::from(selector & !7) + 15 > u64::from(cpu.sys.gdtr.limit) {
        return Err(gp(code));
    }
    if d.is_segment() || !kinds.contains(&d.kind()) {
        return Err(gp(code));
    }
    if !d.present() {
        return Err(coded(fault::NP, code));
    }
    let at = cpu.sys.gdtr.base.wrapping_add(u64::from(selector & !7));
    let high = cpu.load_system(at.wrapping_add(8), 8)?;
    let mut segment = d.segment(selector);
    segment.base |= high << 32;
    if !canonical(segment.base) || high >> 40 & 0x1f != 0 {
        return Err(gp(code));
    }
    Ok((segment, at))
}

pub(crate) fn lldt(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    let selector = cpu.get(insn, insn.a, 2)? as u16;
    cpu.sys.ldtr = if selector & !3 == 0 {
        Segment { selector, unusable: true, ..Segment::default() }
    } else {
        system_segment(cpu, selector, [2, 2])?.0
    };
    Ok(())
}

pub(crate) fn ltr(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    let selector = cpu.get(insn, insn.a, 2)? as u16;
    if selector & !3 == 0 {
        return Err(gp(0));
    }
    let (mut segment, at) = system_segment(cpu, selector, [9, 9])?;
    // The descriptor and the register become busy.
    segment.attributes |= 2;
    let span = cpu.span(at.wrapping_add(5), 1, true, false, false)?;
    span.write(span.read() | 2);
    cpu.sys.tr = segment;
    Ok(())
}

pub(crate) fn sldt(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = if insn.a == Opd::Mem { 2 } else { insn.size };
    cpu.put(insn, insn.a, size, u64::from(cpu.sys.ldtr.selector))
}

pub(crate) fn str_(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = if insn.a == Opd::Mem { 2 } else { insn.size };
    cpu.put(insn, insn.a, size, u64::from(cpu.sys.tr.selector))
}

/// What LAR, LSL, VERR and VERW may look at; `None` clears ZF.
fn inspect(cpu: &mut Cpu, selector: u16, system: &[u8]) -> R<Option<Descriptor>> {
    if selector & !3 == 0 {
        return Ok(None);
    }
    let nowhere = gp(u32::MAX);
    let d = match cpu.descriptor(selector, nowhere) {
        Err(abort) if abort == nowhere => return Ok(None),
        other => other?,
    };
    if !d.is_segment() && !system.contains(&d.kind()) {
        return Ok(None);
    }
    let conforming = d.is_code() && d.kind() & 4 != 0;
    let visible = conforming || d.dpl() >= cpu.cpl() && d.dpl() >= (selector & 3) as u8;
    Ok(visible.then_some(d))
}

fn set_zero(cpu: &mut Cpu, zero: bool) {
    let flags = cpu.lazy.status() & !ZF;
    cpu.lazy.set(flags | if zero { ZF } else { 0 });
}

pub(crate) fn lar(cpu: &mut Cpu, insn: &Insn) -> R {
    let selector = cpu.get(insn, insn.b, 2)? as u16;
    let found = inspect(cpu, selector, &[2, 9, 11, 12])?;
    if let Some(d) = found {
        cpu.set_register(insn.a, insn.size, d.low >> 32 & 0x00ff_ff00);
    }
    set_zero(cpu, found.is_some());
    Ok(())
}

pub(crate) fn lsl(cpu: &mut Cpu, insn: &Insn) -> R {
    let selector = cpu.get(insn, insn.b, 2)? as u16;
    let found = inspect(cpu, selector, &[2, 9, 11])?;
    if let Some(d) = found {
        cpu.set_register(insn.a, insn.size, u64::from(d.limit()));
    }
    set_zero(cpu, found.is_some());
    Ok(())
}

pub(crate) fn verr(cpu: &mut Cpu, insn: &Insn) -> R {
    let selector = cpu.get(insn, insn.a, 2)? as u16;
    let ok = inspect(cpu, selector, &[])?.is_some_and(|d| !d.is_code() || d.kind() & 2 != 0);
    set_zero(cpu, ok);
    Ok(())
}

pub(crate) fn verw(cpu: &mut Cpu, insn: &Insn) -> R {
    let selector = cpu.get(insn, insn.a, 2)? as u16;
    let ok = inspect(cpu, selector, &[])?.is_some_and(|d| !d.is_code() && d.kind() & 2 != 0);
    set_zero(cpu, ok);
    Ok(())
}
