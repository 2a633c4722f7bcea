//! Bit tests, scans, counts, BMI and CRC32.
//!
//! Undefined flags: BT and its kin change CF alone; BSF and BSR set ZF and leave the others as a logic instruction
//! with the result does, and leave the destination alone for a zero source; TZCNT, LZCNT change CF and ZF alone.

use crate::{
    cpu::Cpu,
    exec::{alu::logic_flags, mask, sign_extend},
    flags::{CF, ZF, zsp},
    insn::{Insn, Opd, R},
};

fn test_bit(cpu: &mut Cpu, insn: &Insn, change: Option<fn(u64, u64) -> u64>) -> R {
    let size = insn.size;
    let bits = 8 * u64::from(size);
    let index = match insn.b {
        Opd::Imm => insn.imm,
        b => cpu.register(b, size),
    };
    let bit = index & (bits - 1);
    let (value, place) = if insn.a == Opd::Mem {
        let mut at = cpu.address(insn);
        if insn.b != Opd::Imm {
            // The register is a signed bit offset from the operand's address.
            let units = (sign_extend(index, size) as i64) >> bits.trailing_zeros();
            at = at.wrapping_add((units as u64).wrapping_mul(u64::from(size)));
            if insn.addr32 {
                let base = cpu.gpr[insn.seg as usize];
                at = u64::from(at.wrapping_sub(base) as u32).wrapping_add(base);
            }
        }
        let span = cpu.span(at, usize::from(size), change.is_some(), cpu.user, insn.stack)?;
        (span.read(), super::Place::Memory(span))
    } else {
        (cpu.register(insn.a, size), super::Place::Register(insn.a))
    };
    if let Some(change) = change {
        cpu.end(place, size, change(value, 1 << bit));
    }
    let flags = cpu.lazy.status() & !CF;
    cpu.lazy.set(flags | value >> bit & 1);
    Ok(())
}

pub(crate) fn bt(cpu: &mut Cpu, insn: &Insn) -> R {
    test_bit(cpu, insn, None)
}

pub(crate) fn bts(cpu: &mut Cpu, insn: &Insn) -> R {
    test_bit(cpu, insn, Some(|v, b| v | b))
}

pub(crate) fn btr(cpu: &mut Cpu, insn: &Insn) -> R {
    test_bit(cpu, insn, Some(|v, b| v & !b))
}

pub(crate) fn btc(cpu: &mut Cpu, insn: &Insn) -> R {
    test_bit(cpu, insn, Some(|v, b| v ^ b))
}

fn scan(cpu: &mut Cpu, insn: &Insn, forward: bool) -> R {
    let size = insn.size;
    let value = cpu.get(insn, insn.b, size)?;
    if value == 0 {
        let flags = cpu.lazy.status();
        cpu.lazy.set(flags | ZF);
        return Ok(());
    }
    let at = u64::from(if forward { value.trailing_zeros() } else { 63 - value.leading_zeros() });
    cpu.set_register(insn.a, size, at);
    cpu.lazy.set(zsp(at, size) & !ZF);
    Ok(())
}

pub(crate) fn bsf(cpu: &mut Cpu, insn: &Insn) -> R {
    scan(cpu, insn, true)
}

pub(crate) fn bsr(cpu: &mut Cpu, insn: &Insn) -> R {
    scan(cpu, insn, false)
}

fn count(cpu: &mut Cpu, insn: &Insn, f: fn(u64, u8) -> u32) -> R {
    let size = insn.size;
    let value = cpu.get(insn, insn.b, size)?;
    let n = u64::from(if value == 0 { 8 * u32::from(size) } else { f(value, size) });
    cpu.set_register(insn.a, size, n);
    let flags = cpu.lazy.status() & !(CF | ZF);
    cpu.lazy.set(flags | u64::from(value == 0) | u64::from(n == 0) << 6);
    Ok(())
}

pub(crate) fn tzcnt(cpu: &mut Cpu, insn: &Insn) -> R {
    count(cpu, insn, |v, _| v.trailing_zeros())
}

pub(crate) fn lzcnt(cpu: &mut Cpu, insn: &Insn) -> R {
    count(cpu, insn, |v, size| v.leading_zeros() - (64 - 8 * u32::from(size)))
}

pub(crate) fn popcnt(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = cpu.get(insn, insn.b, insn.size)?;
    cpu.set_register(insn.a, insn.size, u64::from(value.count_ones()));
    cpu.lazy.set(u64::from(value == 0) << 6);
    Ok(())
}

pub(crate) fn andn(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let result = cpu.get(insn, insn.c, size)? & !cpu.register(insn.b, size);
    cpu.set_register(insn.a, size, result);
    logic_flags(cpu, size, result, false);
    Ok(())
}

pub(crate) fn bextr(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let value = cpu.get(insn, insn.b, size)?;
    let control = cpu.register(insn.c, size);
    let (start, len) = ((control & 0xff) as u32, (control >> 8 & 0xff) as u32);
    let shifted = value.checked_shr(start).unwrap_or(0);
    let result = if len < 64 { shifted & !(!0 << len) } else { shifted };
    cpu.set_register(insn.a, size, result);
    cpu.lazy.set(u64::from(result == 0) << 6);
    Ok(())
}

fn lowest(cpu: &mut Cpu, insn: &Insn, f: fn(u64) -> u64, carry_if_zero: bool) -> R {
    let size = insn.size;
    let value = cpu.get(insn, insn.b, size)?;
    let result = f(value) & mask(size);
    cpu.set_register(insn.a, size, result);
    logic_flags(cpu, size, result, (value == 0) == carry_if_zero);
    Ok(())
}

pub(crate) fn blsi(cpu: &mut Cpu, insn: &Insn) -> R {
    lowest(cpu, insn, |v| v & v.wrapping_neg(), false)
}

pub(crate) fn blsmsk(cpu: &mut Cpu, insn: &Insn) -> R {
    lowest(cpu, insn, |v| v ^ v.wrapping_sub(1), true)
}

pub(crate) fn blsr(cpu: &mut Cpu, insn: &Insn) -> R {
    lowest(cpu, insn, |v| v & v.wrapping_sub(1), true)
}

pub(crate) fn bzhi(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let value = cpu.get(insn, insn.b, size)?;
    let n = (cpu.register(insn.c, size) & 0xff) as u32;
    let bits = 8 * u32::from(size);
    let result = if n < bits { value & !(!0 << n) } else { value };
    cpu.set_register(insn.a, size, result);
    logic_flags(cpu, size, result, n >= bits);
    Ok(())
}

pub(crate) fn pdep(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let mut places = cpu.get(insn, insn.c, size)?;
    let mut source = cpu.register(insn.b, size);
    let mut result = 0;
    while places != 0 {
        let lowest = places & places.wrapping_neg();
        if source & 1 != 0 {
            result |= lowest;
        }
        source >>= 1;
        places &= places - 1;
    }
    cpu.set_register(insn.a, size, result);
    Ok(())
}

pub(crate) fn pext(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let mut places = cpu.get(insn, insn.c, size)?;
    let source = cpu.register(insn.b, size);
    let (mut result, mut n) = (0, 0);
    while places != 0 {
        let lowest = places & places.wrapping_neg();
        result |= u64::from(source & lowest != 0) << n;
        n += 1;
        places &= places - 1;
    }
    cpu.set_register(insn.a, size, result);
    Ok(())
}

/// CRC32 (Castagnoli), bit by bit as SDM defines it, by table.
pub(crate) fn crc32(cpu: &mut Cpu, insn: &Insn) -> R {
    let data = cpu.get(insn, insn.b, insn.src_size)?;
    let mut crc = cpu.gpr[match insn.a {
        Opd::R(n) => n as usize,
        _ => 0,
    }] as u32;
    for byte in &data.to_le_bytes()[..usize::from(insn.src_size)] {
        crc = crc >> 8 ^ CRC32C[usize::from(crc as u8 ^ byte)];
    }
    cpu.set_register(insn.a, 8, u64::from(crc));
    Ok(())
}

const CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut crc = i as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 != 0 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
            bit += 1;
        }
        table[i] = crc;
        i += 1;
    }
    table
};

pub(crate) fn bswap(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = cpu.register(insn.a, insn.size);
    let result = match insn.size {
        8 => value.swap_bytes(),
        4 => u64::from((value as u32).swap_bytes()),
        // Undefined; processors store zero.
        _ => 0,
    };
    cpu.set_register(insn.a, insn.size, result);
    Ok(())
}

pub(crate) fn movbe(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let value = cpu.get(insn, insn.b, size)?;
    let swapped = value.swap_bytes() >> (64 - 8 * u32::from(size));
    cpu.put(insn, insn.a, size, swapped)
}
