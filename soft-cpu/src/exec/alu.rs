//! Addition, subtraction, logic, comparison and their exchanging forms (SDM vol. 2).

use crate::{
    cpu::Cpu,
    exec::mask,
    flags::{AF, CF, OF, SF, ZF, cc, kind, zsp},
    insn::{Insn, Opd, R},
};

impl Cpu {
    #[inline]
    pub(crate) fn flags_from(&mut self, kind: u32, size: u8, dst: u64, src: u64) {
        self.lazy.dst = dst & mask(size);
        self.lazy.src = src & mask(size);
        self.lazy.cc = cc(kind, size);
    }
}

/// Adds or subtracts with carry in.
fn carried(cpu: &mut Cpu, insn: &Insn, plus: bool, with_carry: bool) -> R {
    let size = insn.size;
    let b = cpu.get(insn, insn.b, size)?;
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let carry = with_carry && cpu.lazy.carry();
    let c = u64::from(carry);
    let result = if plus { a.wrapping_add(b).wrapping_add(c) } else { a.wrapping_sub(b).wrapping_sub(c) };
    cpu.end(place, size, result);
    let kind = match (plus, carry) {
        (true, false) => kind::ADD,
        (true, true) => kind::ADC,
        (false, false) => kind::SUB,
        (false, true) => kind::SBB,
    };
    cpu.flags_from(kind, size, result, b);
    Ok(())
}

pub(crate) fn add(cpu: &mut Cpu, insn: &Insn) -> R {
    carried(cpu, insn, true, false)
}

pub(crate) fn adc(cpu: &mut Cpu, insn: &Insn) -> R {
    carried(cpu, insn, true, true)
}

pub(crate) fn sub(cpu: &mut Cpu, insn: &Insn) -> R {
    carried(cpu, insn, false, false)
}

pub(crate) fn sbb(cpu: &mut Cpu, insn: &Insn) -> R {
    carried(cpu, insn, false, true)
}

fn logic(cpu: &mut Cpu, insn: &Insn, f: fn(u64, u64) -> u64) -> R {
    let size = insn.size;
    let b = cpu.get(insn, insn.b, size)?;
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let result = f(a, b);
    cpu.end(place, size, result);
    cpu.flags_from(kind::LOGIC, size, result, 0);
    Ok(())
}

pub(crate) fn and(cpu: &mut Cpu, insn: &Insn) -> R {
    logic(cpu, insn, |a, b| a & b)
}

pub(crate) fn or(cpu: &mut Cpu, insn: &Insn) -> R {
    logic(cpu, insn, |a, b| a | b)
}

pub(crate) fn xor(cpu: &mut Cpu, insn: &Insn) -> R {
    logic(cpu, insn, |a, b| a ^ b)
}

pub(crate) fn cmp(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let a = cpu.get(insn, insn.a, size)?;
    let b = cpu.get(insn, insn.b, size)?;
    cpu.flags_from(kind::SUB, size, a.wrapping_sub(b), b);
    Ok(())
}

pub(crate) fn test(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let a = cpu.get(insn, insn.a, size)?;
    let b = cpu.get(insn, insn.b, size)?;
    cpu.flags_from(kind::LOGIC, size, a & b, 0);
    Ok(())
}

pub(crate) fn inc(cpu: &mut Cpu, insn: &Insn) -> R {
    let (a, place) = cpu.begin(insn, insn.a, insn.size)?;
    let carry = u64::from(cpu.lazy.carry());
    let result = a.wrapping_add(1);
    cpu.end(place, insn.size, result);
    cpu.flags_from(kind::INC, insn.size, result, carry);
    Ok(())
}

pub(crate) fn dec(cpu: &mut Cpu, insn: &Insn) -> R {
    let (a, place) = cpu.begin(insn, insn.a, insn.size)?;
    let carry = u64::from(cpu.lazy.carry());
    let result = a.wrapping_sub(1);
    cpu.end(place, insn.size, result);
    cpu.flags_from(kind::DEC, insn.size, result, carry);
    Ok(())
}

pub(crate) fn neg(cpu: &mut Cpu, insn: &Insn) -> R {
    let (a, place) = cpu.begin(insn, insn.a, insn.size)?;
    let result = a.wrapping_neg();
    cpu.end(place, insn.size, result);
    cpu.flags_from(kind::SUB, insn.size, result, a);
    Ok(())
}

pub(crate) fn not(cpu: &mut Cpu, insn: &Insn) -> R {
    let (a, place) = cpu.begin(insn, insn.a, insn.size)?;
    cpu.end(place, insn.size, !a);
    Ok(())
}

pub(crate) fn xchg(cpu: &mut Cpu, insn: &Insn) -> R {
    // With two registers the order does not matter; with memory it is always the first operand in iced's
    // naming, but XCHG r, r/m is decoded with the memory operand first too.
    let (mem, reg) = if insn.b == Opd::Mem { (insn.b, insn.a) } else { (insn.a, insn.b) };
    let (a, place) = cpu.begin(insn, mem, insn.size)?;
    let b = cpu.register(reg, insn.size);
    cpu.end(place, insn.size, b);
    cpu.set_register(reg, insn.size, a);
    Ok(())
}

pub(crate) fn xadd(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let (a, place) = cpu.begin(insn, insn.a, size)?;
    let b = cpu.register(insn.b, size);
    let sum = a.wrapping_add(b);
    // The register is written first: with both operands the same register the sum stays.
    cpu.set_register(insn.b, size, a);
    cpu.end(place, size, sum);
    cpu.flags_from(kind::ADD, size, sum, b);
    Ok(())
}

pub(crate) fn cmpxchg(cpu: &mut Cpu, insn: &Insn) -> R {
    let size = insn.size;
    let (old, place) = cpu.begin(insn, insn.a, size)?;
    let accumulator = cpu.gpr[0] & mask(size);
    let new = cpu.register(insn.b, size);
    cpu.flags_from(kind::SUB, size, accumulator.wrapping_sub(old), old);
    let low = if size == 1 { Opd::R8(0) } else { Opd::R(0) };
    if accumulator == old {
        cpu.end(place, size, new);
    } else {
        // The destination is written back with its own value (a register of 32 bits is so zero-extended on Intel
        // only when equal; the accumulator is always written).
        if let Place::Memory(span) = &place {
            span.write(old);
        }
        cpu.set_register(low, size, old);
    }
    Ok(())
}

use crate::exec::Place;

fn cmpxchg_wide(cpu: &mut Cpu, insn: &Insn, half: u8) -> R {
    let at = cpu.address(insn);
    if half == 8 && at & 15 != 0 {
        return Err(crate::fault::gp(0));
    }
    let span = cpu.span(at, usize::from(half) * 2, true, cpu.user, insn.stack)?;
    let half_len = usize::from(half);
    let mut bytes = [0u8; 16];
    span.read_bytes(&mut bytes[..half_len * 2]);
    let word = |b: &[u8]| {
        let mut w = [0; 8];
        w[..half_len].copy_from_slice(b);
        u64::from_le_bytes(w)
    };
    let (low, high) = (word(&bytes[..half_len]), word(&bytes[half_len..half_len * 2]));
    let m = mask(half);
    let equal = low == cpu.gpr[0] & m && high == cpu.gpr[2] & m;
    let flags = cpu.lazy.status() & !ZF | if equal { ZF } else { 0 };
    cpu.lazy.set(flags);
    if equal {
        bytes[..half_len].copy_from_slice(&cpu.gpr[3].to_le_bytes()[..half_len]);
        bytes[half_len..half_len * 2].copy_from_slice(&cpu.gpr[1].to_le_bytes()[..half_len]);
    } else {
        cpu.set_register(Opd::R(0), half, low);
        cpu.set_register(Opd::R(2), half, high);
    }
    span.write_bytes(&bytes[..half_len * 2]);
    Ok(())
}

pub(crate) fn cmpxchg8b(cpu: &mut Cpu, insn: &Insn) -> R {
    cmpxchg_wide(cpu, insn, 4)
}

pub(crate) fn cmpxchg16b(cpu: &mut Cpu, insn: &Insn) -> R {
    cmpxchg_wide(cpu, insn, 8)
}

/// ADCX and ADOX: one flag as carry in and out, the others kept.
fn add_with(cpu: &mut Cpu, insn: &Insn, flag: u64) -> R {
    let size = insn.size;
    let b = cpu.get(insn, insn.b, size)?;
    let a = cpu.register(insn.a, size);
    let flags = cpu.lazy.status();
    let sum = u128::from(a) + u128::from(b) + u128::from(flags & flag != 0);
    let out = sum >> (8 * u32::from(size)) != 0;
    cpu.set_register(insn.a, size, sum as u64);
    cpu.lazy.set(flags & !flag | if out { flag } else { 0 });
    Ok(())
}

pub(crate) fn adcx(cpu: &mut Cpu, insn: &Insn) -> R {
    add_with(cpu, insn, CF)
}

pub(crate) fn adox(cpu: &mut Cpu, insn: &Insn) -> R {
    add_with(cpu, insn, OF)
}

pub(crate) fn lahf(cpu: &mut Cpu, _: &Insn) -> R {
    let flags = cpu.lazy.status() & 0xff | 2;
    cpu.set_register(Opd::R8(1), 1, flags);
    Ok(())
}

pub(crate) fn sahf(cpu: &mut Cpu, _: &Insn) -> R {
    let ah = cpu.register(Opd::R8(1), 1);
    let of = cpu.lazy.status() & OF;
    cpu.lazy.set(ah & (SF | ZF | AF | crate::flags::PF | CF) | of);
    Ok(())
}

pub(crate) fn clc(cpu: &mut Cpu, _: &Insn) -> R {
    let flags = cpu.lazy.status();
    cpu.lazy.set(flags & !CF);
    Ok(())
}

pub(crate) fn stc(cpu: &mut Cpu, _: &Insn) -> R {
    let flags = cpu.lazy.status();
    cpu.lazy.set(flags | CF);
    Ok(())
}

pub(crate) fn cmc(cpu: &mut Cpu, _: &Insn) -> R {
    let flags = cpu.lazy.status();
    cpu.lazy.set(flags ^ CF);
    Ok(())
}

pub(crate) fn cld(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.rflags &= !crate::flags::DF;
    Ok(())
}

pub(crate) fn std(cpu: &mut Cpu, _: &Insn) -> R {
    cpu.rflags |= crate::flags::DF;
    Ok(())
}

/// Sets flags as a logic instruction with result `result` does, with CF as given (BMI).
pub(crate) fn logic_flags(cpu: &mut Cpu, size: u8, result: u64, carry: bool) {
    cpu.lazy.set(zsp(result, size) & (ZF | SF) | u64::from(carry));
}
