//! Shifts and rotates. For counts above one OF is undefined; Intel processors leave what the one-bit rule gives for
//! the last step, and so does this. AF is left clear by shifts and alone by rotates.

use crate::{
    cpu::Cpu,
    exec::{mask, sign_extend},
    flags::{CF, OF, cc, kind},
    insn::{Insn, Opd, R},
};

fn count(cpu: &mut Cpu, insn: &Insn, opd: Opd) -> u32 {
    let raw = match opd {
        Opd::Imm => insn.imm,
        Opd::R8(_) => cpu.register(opd, 1),
        _ => 1,
    };
    (raw & if insn.size == 8 { 63 } else { 31 }) as u32
}

fn shift_flags(cpu: &mut Cpu, size: u8, result: u64, carry: bool, overflow: bool) {
    cpu.lazy.dst = result & mask(size);
    cpu.lazy.src = u64::from(carry) | u64::from(overflow) << 11;
    cpu.lazy.cc = cc(kind::RESULT, size);
}

fn rotate_flags(cpu: &mut Cpu, carry: bool, overflow: bool) {
    let flags = cpu.lazy.status() & !(CF | OF);
    cpu.lazy.set(flags | u64::from(carry) | u64::from(overflow) << 11);
}

/// The top bit of a value of `size` bytes.
fn top(value: u64, size: u8) -> bool {
    value >> (8 * u32::from(size) - 1) & 1 != 0
}

/// The bit below the top one.
fn next(value: u64, size: u8) -> bool {
    value >> (8 * u32::from(size) - 2) & 1 != 0
}

pub(crate) fn shl(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let bits = 8 * u32::from(size);
    let wide = u128::from(a) << n;
    let result = wide as u64 & mask(size);
    cpu.end(place, size, if n == 0 { a } else { result });
    if n != 0 {
        let carry = wide >> bits & 1 != 0;
        shift_flags(cpu, size, result, carry, carry != top(result, size));
    }
    Ok(())
}

pub(crate) fn shr(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let result = a >> n;
    cpu.end(place, size, result);
    if n != 0 {
        let carry = a >> (n - 1) & 1 != 0;
        shift_flags(cpu, size, result, carry, next(result, size));
    }
    Ok(())
}

pub(crate) fn sar(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let signed = sign_extend(a, size) as i64;
    let result = (signed >> n) as u64 & mask(size);
    cpu.end(place, size, result);
    if n != 0 {
        shift_flags(cpu, size, result, signed >> (n - 1) & 1 != 0, false);
    }
    Ok(())
}

pub(crate) fn rol(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let bits = 8 * u32::from(size);
    let m = n % bits;
    let result = if m == 0 { a } else { (a << m | a >> (bits - m)) & mask(size) };
    cpu.end(place, size, result);
    if n != 0 {
        let carry = result & 1 != 0;
        rotate_flags(cpu, carry, carry != top(result, size));
    }
    Ok(())
}

pub(crate) fn ror(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let bits = 8 * u32::from(size);
    let m = n % bits;
    let result = if m == 0 { a } else { (a >> m | a << (bits - m)) & mask(size) };
    cpu.end(place, size, result);
    if n != 0 {
        rotate_flags(cpu, top(result, size), top(result, size) != next(result, size));
    }
    Ok(())
}

pub(crate) fn rcl(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let bits = 8 * u32::from(size);
    let m = n % (bits + 1);
    let value = u128::from(a) | u128::from(cpu.lazy.carry()) << bits;
    let turned = if m == 0 { value } else { value << m | value >> (bits + 1 - m) };
    let result = turned as u64 & mask(size);
    cpu.end(place, size, result);
    if n != 0 {
        let carry = turned >> bits & 1 != 0;
        rotate_flags(cpu, carry, carry != top(result, size));
    }
    Ok(())
}

pub(crate) fn rcr(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.b));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let bits = 8 * u32::from(size);
    let m = n % (bits + 1);
    let value = u128::from(a) | u128::from(cpu.lazy.carry()) << bits;
    let turned = if m == 0 { value } else { value >> m | value << (bits + 1 - m) };
    let result = turned as u64 & mask(size);
    cpu.end(place, size, result);
    if n != 0 {
        let carry = turned >> bits & 1 != 0;
        rotate_flags(cpu, carry, top(result, size) != next(result, size));
    }
    Ok(())
}

pub(crate) fn shld(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.c));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let b = cpu.register(insn.b, size);
    let bits = 8 * u32::from(size);
    if n == 0 {
        cpu.end(place, size, a);
        return Ok(());
    }
    let (result, carry) = if size == 8 {
        (a << n | b >> (64 - n), a >> (64 - n) & 1 != 0)
    } else {
        // With 16-bit operands and counts above 16 the result is undefined; what comes in after the source is the
        // destination again.
        let wide = u128::from(a) << (2 * bits) | u128::from(b) << bits | u128::from(a);
        let moved = wide << n >> (2 * bits);
        (moved as u64 & mask(size), moved >> bits & 1 != 0)
    };
    cpu.end(place, size, result);
    shift_flags(cpu, size, result, carry, carry != top(result, size));
    Ok(())
}

pub(crate) fn shrd(cpu: &mut Cpu, insn: &Insn) -> R {
    let (size, n) = (insn.size, count(cpu, insn, insn.c));
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let b = cpu.register(insn.b, size);
    let bits = 8 * u32::from(size);
    if n == 0 {
        cpu.end(place, size, a);
        return Ok(());
    }
    let (result, carry) = if size == 8 {
        (a >> n | b << (64 - n), a >> (n - 1) & 1 != 0)
    } else {
        let wide = u128::from(a) << (2 * bits) | u128::from(b) << bits | u128::from(a);
        ((wide >> n) as u64 & mask(size), wide >> (n - 1) & 1 != 0)
    };
    cpu.end(place, size, result);
    shift_flags(cpu, size, result, carry, top(result, size) != next(result, size));
    Ok(())
}

/// SHLX, SHRX, SARX: no flags.
fn flagless(cpu: &mut Cpu, insn: &Insn, f: fn(u64, u32, u8) -> u64) -> R {
    let size = insn.size;
    let a = cpu.get(insn, insn.b, size)?;
    let n = cpu.register(insn.c, size) as u32 & if size == 8 { 63 } else { 31 };
    cpu.set_register(insn.a, size, f(a, n, size));
    Ok(())
}

pub(crate) fn shlx(cpu: &mut Cpu, insn: &Insn) -> R {
    flagless(cpu, insn, |a, n, _| a << n)
}

pub(crate) fn shrx(cpu: &mut Cpu, insn: &Insn) -> R {
    flagless(cpu, insn, |a, n, _| a >> n)
}

pub(crate) fn sarx(cpu: &mut Cpu, insn: &Insn) -> R {
    flagless(cpu, insn, |a, n, size| (sign_extend(a, size) as i64 >> n) as u64)
}

pub(crate) fn rorx(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let a = cpu.get(insn, insn.b, size)?;
    let result = match size {
        8 => a.rotate_right(insn.imm as u32 & 63),
        _ => u64::from((a as u32).rotate_right(insn.imm as u32 & 31)),
    };
    cpu.set_register(insn.a, size, result);
    Ok(())
}
