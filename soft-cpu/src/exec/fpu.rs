//! The generic way to run a floating-point or vector instruction: checks, operands, `fp`'s function, results.

use iced_x86::{Instruction, Mnemonic};

use crate::{
    control_registers::{CR0_EM, CR0_MP, CR0_TS, CR4_OSFXSR, CR4_OSXMMEXCPT},
    cpu::Cpu,
    fault::{self, gp, plain, ud},
    flags::STATUS,
    fp::{self, FpClass, FpFault, FpOperands, GprUse, MemAccess},
    insn::{Insn, Opd, R},
};

/// Bytes of the memory operand of nearly all instructions at most.
const SHORT: usize = 16;
/// Bytes of the memory operand of those that save or restore the state at most.
const LONG: usize = 512;

/// Fills in what running needs; `insn.fp` is set.
pub(crate) fn prepare(iced: &Instruction, insn: &mut Insn) {
    let long = insn.fp.is_some_and(|fp| usize::from(fp.mem_len) > SHORT);
    insn.run = match iced.mnemonic() {
        Mnemonic::Maskmovq | Mnemonic::Maskmovdqu => masked,
        _ if long => run::<LONG>,
        _ => run::<SHORT>,
    };
}

fn check(cpu: &Cpu, class: FpClass, pending: bool) -> R {
    let (cr0, cr4) = (cpu.sys.cr0, cpu.sys.cr4);
    match class {
        FpClass::X87 | FpClass::Fxsave => {
            if cr0 & (CR0_EM | CR0_TS) != 0 {
                return Err(plain(fault::NM));
            }
        }
        FpClass::General => {}
        FpClass::Mmx => {
            if cr0 & CR0_EM != 0 {
                return Err(ud());
            }
            if cr0 & CR0_TS != 0 {
                return Err(plain(fault::NM));
            }
        }
        FpClass::Sse => {
            if cr0 & CR0_EM != 0 || cr4 & CR4_OSFXSR == 0 {
                return Err(ud());
            }
            if cr0 & CR0_TS != 0 {
                return Err(plain(fault::NM));
            }
        }
    }
    let checks = class == FpClass::Mmx || class == FpClass::X87 && pending;
    if checks && fp::x87_pending(&cpu.fp) { Err(plain(fault::MF)) } else { Ok(()) }
}

fn failed(cpu: &Cpu, fault: FpFault) -> crate::fault::Abort {
    match fault {
        FpFault::SimdException if cpu.sys.cr4 & CR4_OSXMMEXCPT != 0 => plain(fault::XM),
        FpFault::SimdException | FpFault::InvalidOpcode => ud(),
        FpFault::X87Pending => plain(fault::MF),
        FpFault::GeneralProtection => gp(0),
    }
}

/// Runs an instruction whose memory operand has at most `N` bytes.
fn run<const N: usize>(cpu: &mut Cpu, insn: &Insn) -> R {
    let Some(fp) = &insn.fp else { return Err(ud()) };
    check(cpu, fp.class, fp.checks_pending)?;
    let memory = insn.a == Opd::Mem || insn.b == Opd::Mem || insn.c == Opd::Mem;
    let mut buffer = [0u8; N];
    let len = if memory { usize::from(fp.mem_len).min(N) } else { 0 };
    let mut span = None;
    if len > 0 {
        let at = cpu.address(insn);
        if fp.align > 1 && at & u64::from(fp.align - 1) != 0 {
            return Err(gp(0));
        }
        let write = matches!(fp.mem_access, MemAccess::Write | MemAccess::ReadWrite);
        let found = cpu.span(at, len, write, cpu.user, insn.stack)?;
        if fp.mem_access != MemAccess::Write {
            found.read_bytes(&mut buffer[..len]);
        }
        span = write.then_some(found);
    }
    let mut operands = FpOperands {
        dst: insn.fp_registers.0,
        src: insn.fp_registers.1,
        imm: insn.imm as u8,
        gpr_in: 0,
        gpr_out: 0,
        gpr2_in: 0,
        mem: &mut buffer[..len],
        flags: 0,
        skip_store: false,
    };
    match fp.gpr {
        GprUse::In => {
            let source = [insn.b, insn.a, insn.c].into_iter().find(|o| matches!(o, Opd::R(_)));
            if let Some(Opd::R(n)) = source {
                operands.gpr_in = cpu.gpr[n as usize];
            }
        }
        GprUse::InOut => {
            if let Opd::R(n) = insn.a {
                operands.gpr2_in = cpu.gpr[n as usize];
            }
            operands.gpr_in = match insn.b {
                Opd::R(n) => cpu.gpr[n as usize],
                b => cpu.register(b, 1),
            };
        }
        GprUse::Lengths | GprUse::LengthsOutCx => {
            operands.gpr_in = cpu.gpr[0];
            operands.gpr2_in = cpu.gpr[2];
        }
        _ => {}
    }
    if fp.sets_flags || fp.reads_flags {
        operands.flags = cpu.lazy.status() as u32;
    }
    if let Err(fault) = (fp.run)(&mut cpu.fp, &mut operands) {
        return Err(failed(cpu, fault));
    }
    let (out, flags, skip) = (operands.gpr_out, u64::from(operands.flags), operands.skip_store);
    match fp.gpr {
        GprUse::Out | GprUse::InOut => {
            if let Opd::R(n) = insn.a {
                cpu.gpr[n as usize] = out;
            }
        }
        GprUse::OutAx => cpu.set_register(Opd::R(0), 2, out),
        GprUse::LengthsOutCx | GprUse::OutCx => cpu.gpr[1] = out,
        GprUse::None | GprUse::In | GprUse::Lengths => {}
    }
    if fp.sets_flags {
        cpu.lazy.set(flags & STATUS);
    }
    if let Some(span) = span.filter(|_| !skip) {
        span.write_bytes(&buffer[..len]);
    }
    Ok(())
}

/// MASKMOVQ, MASKMOVDQU: bytes of the first register whose mask byte has its top bit set go to [RDI]. Only the bytes
/// written are accessed; with an all-zero mask nothing is.
fn masked(cpu: &mut Cpu, insn: &Insn) -> R {
    let Some(fp) = &insn.fp else { return Err(ud()) };
    check(cpu, fp.class, fp.checks_pending)?;
    let mut at = cpu.gpr[7];
    if insn.addr32 {
        at = u64::from(at as u32);
    }
    at = at.wrapping_add(cpu.gpr[insn.seg as usize]);
    let len = usize::from(fp.mem_len).min(16);
    // The mask and the data by running the semantics on two different backgrounds: what is the same is written.
    let (mut zeros, mut ones) = ([0u8; 16], [0xffu8; 16]);
    for background in [&mut zeros, &mut ones] {
        let mut operands = FpOperands {
            dst: insn.fp_registers.0,
            src: insn.fp_registers.1,
            imm: 0,
            gpr_in: 0,
            gpr_out: 0,
            gpr2_in: 0,
            mem: &mut background[..len],
            flags: 0,
            skip_store: false,
        };
        if let Err(fault) = (fp.run)(&mut cpu.fp, &mut operands) {
            return Err(failed(cpu, fault));
        }
    }
    let written: Vec<usize> = (0..len).filter(|&i| zeros[i] == ones[i]).collect();
    let (Some(&first), Some(&last)) = (written.first(), written.last()) else { return Ok(()) };
    let span = cpu.span(at.wrapping_add(first as u64), last - first + 1, true, cpu.user, false)?;
    let mut bytes = [0u8; 16];
    span.read_bytes(&mut bytes[..=last - first]);
    for &i in &written {
        bytes[i - first] = zeros[i];
    }
    span.write_bytes(&bytes[..=last - first]);
    Ok(())
}

/// FWAIT.
pub(crate) fn wait(cpu: &mut Cpu, _: &Insn) -> R {
    if cpu.sys.cr0 & (CR0_MP | CR0_TS) == CR0_MP | CR0_TS {
        return Err(plain(fault::NM));
    }
    if fp::x87_pending(&cpu.fp) { Err(plain(fault::MF)) } else { Ok(()) }
}
