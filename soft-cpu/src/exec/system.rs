//! Privileged instructions, system calls, software interrupts, model-specific registers.

use crate::{
    access::canonical,
    control_registers::{
        CR0_CD, CR0_ET, CR0_NW, CR0_PE, CR0_PG, CR0_TS, CR4_PAE, EFER_LMA, EFER_LME, EFER_NXE, EFER_SCE,
    },
    cpu::{Cpu, Exit},
    event::Source,
    exec::mask,
    fault::{self, Abort, gp, ud},
    flags,
    insn::{FS, GS, Insn, Opd, R},
    state::Segment,
};

/// VME, PVI, TSD, DE, PSE, PAE, MCE, PGE, PCE, OSFXSR, OSXMMEXCPT, FSGSBASE: what `rewind-v2` has.
const CR4_KNOWN: u64 = 0x7ff | 1 << 16;

fn flat(selector: u16, attributes: u16) -> Segment {
    Segment { selector, base: 0, limit: u32::MAX, attributes, unusable: false }
}

const CODE_KERNEL: u16 = 0xa9b;
const CODE_USER: u16 = 0xafb;
const DATA_KERNEL: u16 = 0xc93;
const DATA_USER: u16 = 0xcf3;

pub(crate) fn syscall(cpu: &mut Cpu, _: &Insn) -> R {
    if cpu.sys.efer & EFER_SCE == 0 {
        return Err(ud());
    }
    cpu.gpr[1] = cpu.next_rip;
    let flags = cpu.rflags() & !flags::RF;
    cpu.gpr[11] = flags;
    cpu.next_rip = cpu.sys.lstar;
    let selector = (cpu.sys.star >> 32) as u16 & !3;
    cpu.sys.cs = flat(selector, CODE_KERNEL);
    cpu.sys.ss = flat(selector.wrapping_add(8), DATA_KERNEL);
    cpu.set_rflags(flags & !cpu.sys.sfmask);
    cpu.set_user(false);
    cpu.system_call = true;
    Ok(())
}

pub(crate) fn sysret(cpu: &mut Cpu, insn: &Insn) -> R {
    if cpu.sys.efer & EFER_SCE == 0 {
        return Err(ud());
    }
    cpu.privileged()?;
    if insn.size != 8 {
        return Err(cpu.unsupported("SYSRET to 32-bit (compatibility mode) code"));
    }
    if !canonical(cpu.gpr[1]) {
        return Err(gp(0));
    }
    let new = cpu.gpr[11] & 0x3c_7fd7;
    // With TF the trap comes right behind it: it is run by itself, so that the main loop looks.
    if !cpu.alone && new & flags::TF != 0 {
        return Err(Abort::Alone);
    }
    cpu.next_rip = cpu.gpr[1];
    let selector = (cpu.sys.star >> 48) as u16;
    cpu.sys.cs = flat(selector.wrapping_add(16) | 3, CODE_USER);
    cpu.sys.ss = flat(selector.wrapping_add(8) | 3, DATA_USER);
    cpu.change_rflags(new);
    cpu.set_user(true);
    cpu.system_call = true;
    Ok(())
}

pub(crate) fn sysenter(cpu: &mut Cpu, _: &Insn) -> R {
    let selector = cpu.sys.sysenter_cs as u16 & !3;
    if selector == 0 {
        return Err(gp(0));
    }
    cpu.rflags &= !(flags::IF | flags::VM | flags::RF);
    cpu.sys.cs = flat(selector, CODE_KERNEL);
    cpu.sys.ss = flat(selector.wrapping_add(8), DATA_KERNEL);
    cpu.gpr[4] = cpu.sys.sysenter_esp;
    cpu.next_rip = cpu.sys.sysenter_eip;
    cpu.set_user(false);
    Ok(())
}

pub(crate) fn sysexit(cpu: &mut Cpu, insn: &Insn) -> R {
    let selector = cpu.sys.sysenter_cs as u16 & !3;
    if selector == 0 || cpu.user {
        return Err(gp(0));
    }
    if insn.size != 8 {
        return Err(cpu.unsupported("SYSEXIT to 32-bit (compatibility mode) code"));
    }
    let (rip, rsp) = (cpu.gpr[2], cpu.gpr[1]);
    if !canonical(rip) || !canonical(rsp) {
        return Err(gp(0));
    }
    cpu.sys.cs = flat(selector.wrapping_add(32) | 3, CODE_USER);
    cpu.sys.ss = flat(selector.wrapping_add(40) | 3, DATA_USER);
    cpu.gpr[4] = rsp;
    cpu.next_rip = rip;
    cpu.set_user(true);
    Ok(())
}

pub(crate) fn iret(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, step) = (insn.size, u64::from(insn.size));
    if cpu.rflags & flags::NT != 0 {
        return Err(gp(0));
    }
    let rsp = cpu.gpr[4];
    let mut words = [0; 5];
    for (n, word) in words.iter_mut().enumerate() {
        *word = cpu.load(rsp.wrapping_add(step * n as u64), size, true)?;
    }
    let [rip, cs, image, new_rsp, ss] = words;
    let (cs, ss) = (cs as u16, ss as u16);
    let rpl = (cs & 3) as u8;
    if rpl < cpu.cpl() {
        return Err(gp(u32::from(cs & !3)));
    }
    if rpl == 1 || rpl == 2 {
        return Err(cpu.unsupported("IRET to privilege level 1 or 2"));
    }
    let mut writable = flags::STATUS | flags::TF | flags::DF | flags::NT | flags::RF | flags::AC | flags::ID;
    if !cpu.user {
        writable |= flags::IOPL | flags::IF | flags::VIF_VIP;
    } else if cpu.rflags & flags::IOPL == flags::IOPL {
        writable |= flags::IF;
    }
    if size == 2 {
        writable &= 0xffff;
    }
    let segment = cpu.code_segment(cs, rpl, true)?;
    if !canonical(rip) {
        return Err(gp(0));
    }
    let new_flags = cpu.rflags() & !flags::RF & !writable | image & writable;
    if rpl == 3 && !cpu.user {
        cpu.leave_to_outer(segment, rip, ss, new_rsp)?;
    } else {
        // In 64-bit mode SS:RSP is popped in any case; at CPL 0 SS may be null.
        let shadow = cpu.sys.interrupt_shadow;
        cpu.load_segment(2, ss)?;
        cpu.sys.interrupt_shadow = shadow;
        cpu.stack_loaded = false;
        cpu.sys.cs = segment;
        cpu.gpr[4] = new_rsp;
        cpu.next_rip = rip;
    }
    cpu.attention = true;
    cpu.change_rflags(new_flags);
    cpu.returned = true;
    Ok(())
}

/// INT n, INT3, INT1.
pub(crate) fn int(cpu: &mut Cpu, insn: &Insn) -> R {
    use iced_x86::Mnemonic;
    let (vector, source) = match insn.code.mnemonic() {
        Mnemonic::Int3 => (fault::BP, Source::Software),
        Mnemonic::Int1 => (fault::DB, Source::Trap),
        _ => (insn.imm as u8, Source::Software),
    };
    if cpu.exit_on_exception {
        cpu.pending = Some(Exit::Exception { vector, error_code: None, cr2: None });
        return Err(crate::fault::Abort::Stop);
    }
    // Delivery saves the address of the next instruction. A fault in it is the instruction's own.
    let rip = std::mem::replace(&mut cpu.rip, cpu.next_rip);
    match cpu.enter_gate(vector, None, source) {
        Ok(()) => {
            cpu.next_rip = cpu.rip;
            cpu.rip = rip;
            cpu.attention = true;
            cpu.software_interrupt = true;
            Ok(())
        }
        Err(abort) => {
            cpu.rip = rip;
            Err(abort)
        }
    }
}

pub(crate) fn hlt(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.privileged()?;
    cpu.pending = Some(Exit::Halt);
    cpu.attention = true;
    Ok(())
}

pub(crate) fn swapgs(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.privileged()?;
    std::mem::swap(&mut cpu.gpr[GS as usize], &mut cpu.sys.kernel_gs_base);
    Ok(())
}

pub(crate) fn invlpg(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    let at = cpu.address(insn);
    if canonical(at) {
        cpu.flush_tlb_page(at);
    }
    Ok(())
}

/// INVD, WBINVD: caches are not modelled.
pub(crate) fn cache(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.privileged()
}

/// CLFLUSH and kin: a load without a value.
pub(crate) fn clflush(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.load(cpu.address(insn), 1, insn.stack)?;
    Ok(())
}

pub(crate) fn clts(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.privileged()?;
    cpu.sys.cr0 &= !CR0_TS;
    cpu.update_sse();
    Ok(())
}

pub(crate) fn smsw(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = if insn.a == Opd::Mem { 2 } else { insn.size };
    cpu.put(insn, insn.a, size, cpu.sys.cr0)
}

pub(crate) fn lmsw(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    let value = cpu.get(insn, insn.a, 2)?;
    // PE cannot be cleared; only the low four bits are loaded.
    cpu.set_cr0(cpu.sys.cr0 & !0xe | value & 0xf)
}

impl Cpu {
    fn set_cr0(&mut self, value: u64) -> R {
        if value >> 32 != 0 {
            return Err(gp(0));
        }
        let value = value & 0xe005_003f | CR0_ET;
        let wrong = value & CR0_PG != 0 && value & CR0_PE == 0 || value & CR0_NW != 0 && value & CR0_CD == 0;
        // Leaving paging or protection from 64-bit code is not allowed.
        if wrong || value & CR0_PE == 0 || value & CR0_PG == 0 && self.sys.efer & EFER_LMA != 0 {
            return Err(gp(0));
        }
        self.sys.cr0 = value;
        self.flush_tlb_all();
        self.update_alignment();
        self.update_sse();
        Ok(())
    }

    fn set_cr4(&mut self, value: u64) -> R {
        if value & !CR4_KNOWN != 0 || value & CR4_PAE == 0 && self.sys.efer & EFER_LMA != 0 {
            return Err(gp(0));
        }
        self.sys.cr4 = value;
        self.flush_tlb_all();
        self.update_sse();
        Ok(())
    }
}

pub(crate) fn mov_from_control(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    let value = match insn.b {
        Opd::Cr(0) => cpu.sys.cr0,
        Opd::Cr(2) => cpu.sys.cr2,
        Opd::Cr(3) => cpu.sys.cr3,
        Opd::Cr(4) => cpu.sys.cr4,
        Opd::Cr(8) => cpu.sys.cr8,
        _ => return Err(ud()),
    };
    cpu.set_register(insn.a, 8, value);
    Ok(())
}

pub(crate) fn mov_to_control(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.privileged()?;
    let value = cpu.register(insn.b, 8);
    match insn.a {
        Opd::Cr(0) => cpu.set_cr0(value),
        Opd::Cr(2) => {
            cpu.sys.cr2 = value;
            Ok(())
        }
        Opd::Cr(3) => {
            if value & !cpu.physical_mask != 0 {
                return Err(gp(0));
            }
            cpu.set_cr3(value);
            Ok(())
        }
        Opd::Cr(4) => cpu.set_cr4(value),
        Opd::Cr(8) => {
            if value & !0xf != 0 {
                return Err(gp(0));
            }
            cpu.sys.cr8 = value;
            Ok(())
        }
        _ => Err(ud()),
    }
}

/// Debug register number with DR4 and DR5 resolved; general detect (DR7.GD) comes first.
fn debug_register(cpu: &mut Cpu, opd: Opd) -> R<u8> {
    let Opd::Dr(n) = opd else { return Err(ud()) };
    if (n == 4 || n == 5) && cpu.sys.cr4 & 8 != 0 || n > 7 {
        return Err(ud());
    }
    cpu.privileged()?;
    if cpu.sys.dr7 & 1 << 13 != 0 {
        cpu.sys.dr6 |= 1 << 13;
        cpu.sys.dr7 &= !(1 << 13);
        return Err(fault::plain(fault::DB));
    }
    Ok(if n == 4 || n == 5 { n + 2 } else { n })
}

pub(crate) fn mov_from_debug(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = match debug_register(cpu, insn.b)? {
        6 => cpu.sys.dr6,
        7 => cpu.sys.dr7,
        n => cpu.sys.dr[n as usize & 3],
    };
    cpu.set_register(insn.a, 8, value);
    Ok(())
}

pub(crate) fn mov_to_debug(cpu: &mut Cpu, insn: &Insn) -> R {
    let n = debug_register(cpu, insn.a)?;
    let value = cpu.register(insn.b, 8);
    match n {
        6 | 7 if value >> 32 != 0 => return Err(gp(0)),
        6 => cpu.sys.dr6 = value & 0xe00f | 0xffff_0ff0,
        7 => cpu.sys.dr7 = value & 0xffff_2bff | 0x400,
        _ => cpu.sys.dr[n as usize & 3] = value,
    }
    cpu.update_debug_registers();
    cpu.attention = true;
    Ok(())
}

pub(crate) fn cpuid(cpu: &mut Cpu, _: &Insn) -> R {
    let (leaf, subleaf) = (cpu.gpr[0] as u32, cpu.gpr[1] as u32);
    let find = |leaf: u32| {
        cpu.cpuid
            .iter()
            .find(|l| l.leaf == leaf && l.subleaf.is_none_or(|s| s == subleaf))
            .map(|l| l.registers)
    };
    let known = |leaf: u32| cpu.cpuid.iter().any(|l| l.leaf == leaf);
    let highest = find(leaf & 0x8000_0000).map_or(0, |r| r[0]);
    let beyond = leaf > highest && !known(leaf);
    // A leaf beyond the last basic one answers as the last basic one does (SDM vol. 2, CPUID).
    let registers = if beyond {
        find(find(0).map_or(0, |r| r[0])).unwrap_or([0; 4])
    } else {
        find(leaf).unwrap_or([0; 4])
    };
    for (n, value) in [0, 3, 1, 2].into_iter().zip(registers) {
        cpu.gpr[n] = u64::from(value);
    }
    Ok(())
}

/// RDTSC and RDTSCP: trapped by CR4.TSD at CPL 3; elsewhere the counter stands still, and it is reported.
pub(crate) fn rdtsc(cpu: &mut Cpu, insn: &Insn) -> R {
    if cpu.sys.cr4 & 4 != 0 && cpu.user {
        return Err(gp(0));
    }
    cpu.report(format!("{:?}", insn.code.mnemonic()).to_uppercase() + " (answered with 0)");
    cpu.gpr[0] = 0;
    cpu.gpr[2] = 0;
    if insn.code.mnemonic() == iced_x86::Mnemonic::Rdtscp {
        cpu.gpr[1] = cpu.sys.tsc_aux & 0xffff_ffff;
    }
    Ok(())
}

pub(crate) fn rdpid(cpu: &mut Cpu, insn: &Insn) -> R {
    cpu.report("RDPID (answered)".to_owned());
    cpu.set_register(insn.a, 8, cpu.sys.tsc_aux & 0xffff_ffff);
    Ok(())
}

/// No performance counters: #GP(0) at any level.
pub(crate) fn rdpmc(_: &mut Cpu, _: &Insn) -> R {
    Err(gp(0))
}

pub(crate) fn rdmsr(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.privileged()?;
    let s = &cpu.sys;
    let value = match cpu.gpr[1] as u32 {
        0x10 => 0,
        0x174 => s.sysenter_cs,
        0x175 => s.sysenter_esp,
        0x176 => s.sysenter_eip,
        0x1a0 => s.misc_enable,
        // MTRRcap: no variable ranges, no fixed ones. Platform info: no CPUID faulting.
        0xfe | 0xce => 0,
        0x277 => s.pat,
        0x2ff => s.mtrr_def_type,
        0xc000_0080 => s.efer,
        0xc000_0081 => s.star,
        0xc000_0082 => s.lstar,
        0xc000_0083 => s.cstar,
        0xc000_0084 => s.sfmask,
        0xc000_0100 => cpu.gpr[FS as usize],
        0xc000_0101 => cpu.gpr[GS as usize],
        0xc000_0102 => s.kernel_gs_base,
        0xc000_0103 => s.tsc_aux,
        msr => {
            cpu.report(format!("RDMSR {msr:#x}"));
            return Err(gp(0));
        }
    };
    cpu.gpr[0] = value & mask(4);
    cpu.gpr[2] = value >> 32;
    Ok(())
}

pub(crate) fn wrmsr(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.privileged()?;
    let value = cpu.gpr[0] & mask(4) | cpu.gpr[2] << 32;
    let address = |value: u64| if canonical(value) { Ok(value) } else { Err(gp(0)) };
    match cpu.gpr[1] as u32 {
        0x10 => {}
        0x174 => cpu.sys.sysenter_cs = value & mask(4),
        0x175 => cpu.sys.sysenter_esp = address(value)?,
        0x176 => cpu.sys.sysenter_eip = address(value)?,
        0x1a0 => cpu.sys.misc_enable = value,
        0x277 => {
            if value.to_le_bytes().iter().any(|t| !matches!(t, 0 | 1 | 4..=7)) {
                return Err(gp(0));
            }
            cpu.sys.pat = value;
        }
        0x2ff => {
            if value & !0xcff != 0 {
                return Err(gp(0));
            }
            cpu.sys.mtrr_def_type = value;
        }
        0xc000_0080 => {
            let known = EFER_SCE | EFER_LME | EFER_LMA | EFER_NXE;
            let paging = cpu.sys.cr0 & CR0_PG != 0;
            if value & !known != 0 || paging && (value ^ cpu.sys.efer) & EFER_LME != 0 {
                return Err(gp(0));
            }
            cpu.sys.efer = value & !EFER_LMA | cpu.sys.efer & EFER_LMA;
            cpu.flush_tlb_all();
        }
        0xc000_0081 => cpu.sys.star = value,
        0xc000_0082 => cpu.sys.lstar = address(value)?,
        0xc000_0083 => cpu.sys.cstar = address(value)?,
        0xc000_0084 => cpu.sys.sfmask = value & mask(4),
        0xc000_0100 => cpu.gpr[FS as usize] = address(value)?,
        0xc000_0101 => cpu.gpr[GS as usize] = address(value)?,
        0xc000_0102 => cpu.sys.kernel_gs_base = address(value)?,
        0xc000_0103 => {
            if value >> 32 != 0 {
                return Err(gp(0));
            }
            cpu.sys.tsc_aux = value;
        }
        msr => {
            cpu.report(format!("WRMSR {msr:#x}"));
            return Err(gp(0));
        }
    }
    Ok(())
}
