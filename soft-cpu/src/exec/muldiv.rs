//! Multiplication, division and sign extension of the accumulator.
//!
//! After MUL and IMUL SF, ZF and PF are undefined; here they are the low result's and AF is clear. DIV and IDIV
//! leave the flags alone.

use crate::{
    cpu::Cpu,
    exec::{mask, sign_extend},
    fault::{DE, plain},
    flags::{CF, OF, cc, kind},
    insn::{Insn, Opd, R},
};

fn product_flags(cpu: &mut Cpu, size: u8, low: u64, overflow: bool) {
    cpu.lazy.dst = low & mask(size);
    cpu.lazy.src = if overflow { CF | OF } else { 0 };
    cpu.lazy.cc = cc(kind::RESULT, size);
}

/// Stores a double-width result in AX or DX:AX.
fn put_wide(cpu: &mut Cpu, size: u8, value: u128) {
    if size == 1 {
        cpu.set_register(Opd::R(0), 2, value as u64);
    } else {
        cpu.set_register(Opd::R(0), size, value as u64);
        cpu.set_register(Opd::R(2), size, (value >> (8 * u32::from(size))) as u64);
    }
}

pub(crate) fn mul(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let b = cpu.get(insn, insn.a, size)?;
    let product = u128::from(cpu.gpr[0] & mask(size)) * u128::from(b);
    put_wide(cpu, size, product);
    product_flags(cpu, size, product as u64, product >> (8 * u32::from(size)) != 0);
    Ok(())
}

pub(crate) fn imul(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let signed = |v: u64| i128::from(sign_extend(v, size) as i64);
    let (x, y) = match (insn.b, insn.c) {
        (Opd::None, _) => (cpu.gpr[0] & mask(size), cpu.get(insn, insn.a, size)?),
        (b, Opd::None) => (cpu.register(insn.a, size), cpu.get(insn, b, size)?),
        (b, _) => (cpu.get(insn, b, size)?, insn.imm & mask(size)),
    };
    let product = signed(x) * signed(y);
    let low = product as u64 & mask(size);
    if insn.b == Opd::None {
        put_wide(cpu, size, product as u128);
    } else {
        cpu.set_register(insn.a, size, low);
    }
    product_flags(cpu, size, low, signed(low) != product);
    Ok(())
}

pub(crate) fn mulx(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let b = cpu.get(insn, insn.c, size)?;
    let product = u128::from(cpu.gpr[2] & mask(size)) * u128::from(b);
    cpu.set_register(insn.b, size, product as u64);
    cpu.set_register(insn.a, size, (product >> (8 * u32::from(size))) as u64);
    Ok(())
}

pub(crate) fn div(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let divisor = cpu.get(insn, insn.a, size)?;
    if divisor == 0 {
        return Err(plain(DE));
    }
    let bits = 8 * u32::from(size);
    if size == 1 {
        let dividend = cpu.gpr[0] & 0xffff;
        let (q, r) = (dividend / divisor, dividend % divisor);
        if q > 0xff {
            return Err(plain(DE));
        }
        cpu.set_register(Opd::R(0), 2, r << 8 | q);
        return Ok(());
    }
    let (low, high) = (cpu.gpr[0] & mask(size), cpu.gpr[2] & mask(size));
    if high >= divisor {
        return Err(plain(DE));
    }
    let (q, r) = if high == 0 {
        (low / divisor, low % divisor)
    } else {
        let dividend = u128::from(high) << bits | u128::from(low);
        ((dividend / u128::from(divisor)) as u64, (dividend % u128::from(divisor)) as u64)
    };
    cpu.set_register(Opd::R(0), size, q);
    cpu.set_register(Opd::R(2), size, r);
    Ok(())
}

pub(crate) fn idiv(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let divisor = i128::from(sign_extend(cpu.get(insn, insn.a, size)?, size) as i64);
    if divisor == 0 {
        return Err(plain(DE));
    }
    let bits = 8 * u32::from(size);
    let dividend = if size == 1 {
        i128::from(cpu.gpr[0] as i16)
    } else {
        let wide = u128::from(cpu.gpr[2] & mask(size)) << bits | u128::from(cpu.gpr[0] & mask(size));
        let shift = 128 - 2 * bits;
        (wide << shift) as i128 >> shift
    };
    let (q, r) = (dividend.wrapping_div(divisor), dividend.wrapping_rem(divisor));
    let limit = 1i128 << (bits - 1);
    if q >= limit || q < -limit {
        return Err(plain(DE));
    }
    if size == 1 {
        cpu.set_register(Opd::R(0), 2, (r as u64 & 0xff) << 8 | q as u64 & 0xff);
    } else {
        cpu.set_register(Opd::R(0), size, q as u64);
        cpu.set_register(Opd::R(2), size, r as u64);
    }
    Ok(())
}

/// CBW, CWDE, CDQE: the accumulator's lower half sign-extended into it.
pub(crate) fn extend_accumulator(cpu: &mut Cpu, insn: &Insn) -> R {
    let value = sign_extend(cpu.gpr[0], insn.size / 2);
    cpu.set_register(Opd::R(0), insn.size, value);
    Ok(())
}

/// CWD, CDQ, CQO: the accumulator's sign into the data register.
pub(crate) fn sign_to_data(cpu: &mut Cpu, insn: &Insn) -> R {
    let sign = (sign_extend(cpu.gpr[0], insn.size) as i64 >> 63) as u64;
    cpu.set_register(Opd::R(2), insn.size, sign);
    Ok(())
}
