//! SSE exceptions when the guest has some of them unmasked.
//!
//! The host executes with all masked, which differs in what it reports (SDM vol. 1, 11.5.3 and 4.9.1.5):
//! - exceptions found before computing (invalid, denormal, divide by zero) hide those found after it;
//! - unmasked underflow is raised for a tiny result even if it is exact;
//! - with unmasked overflow or underflow, "precision" says whether the result is inexact with unbounded exponent.

use super::{
    FpFault, FpState,
    lanes::{X, dwords},
    sse_float::{
        Addsd_xmm_xmmm64, Addss_xmm_xmmm32, Cvtsd2ss_xmm_xmmm64, Divsd_xmm_xmmm64, Divss_xmm_xmmm32, FLAGS,
        FloatOp, MASKS, Mulsd_xmm_xmmm64, Mulss_xmm_xmmm32, Subsd_xmm_xmmm64, Subss_xmm_xmmm32,
    },
};

/// Invalid operation, denormal operand, divide by zero.
const BEFORE: u32 = 0x07;
/// Overflow.
const OVERFLOW: u32 = 0x08;
/// Underflow.
const UNDERFLOW: u32 = 0x10;
/// Inexact.
const PRECISION: u32 = 0x20;
/// Flush to zero.
const FTZ: u32 = 0x8000;

/// An operation on one lane that may leave the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arith {
    Add,
    Sub,
    Mul,
    Div,
    /// Double to single.
    Narrow,
}

/// Format of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    F32,
    F64,
}

/// What an instruction does to its lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Neither overflow nor underflow can happen.
    InRange,
    /// The operation on this many lanes.
    Lanes(Arith, Width, u8),
    /// Adds adjacent lanes.
    Hadd(Width),
    /// Subtracts adjacent lanes.
    Hsub(Width),
    /// Subtracts even lanes, adds odd ones.
    Addsub(Width),
    /// Converts this many doubles of the source to single.
    Narrow(u8),
    /// Dot product of the lanes the immediate selects.
    Dot(Width, u8),
}

/// With unmasked underflow the hardware ignores flush-to-zero.
pub(super) fn without_flush(guest: u32, host: &mut u32) {
    if guest & UNDERFLOW << 7 == 0 {
        *host &= !FTZ;
    }
}

/// Records the exceptions of an executed instruction, `flags` being what the host reported, and decides whether
/// it raises #XM.
pub(super) fn finish(s: &mut FpState, kind: Kind, first: X, second: X, flags: u32) -> Result<(), FpFault> {
    let unmasked = !(s.mxcsr >> 7) & FLAGS;
    let raise = |s: &mut FpState, flags: u32| {
        s.mxcsr |= flags;
        if flags & unmasked == 0 { Ok(()) } else { Err(FpFault::SimdException) }
    };
    if let Kind::Dot(width, imm) = kind {
        return dot(s.mxcsr, width, imm, first, second, &mut |flags| raise(s, flags));
    }
    if flags & BEFORE & unmasked != 0 {
        return raise(s, flags & BEFORE);
    }
    if kind == Kind::InRange || unmasked & (OVERFLOW | UNDERFLOW) == 0 {
        return raise(s, flags);
    }
    let mxcsr = s.mxcsr;
    let all = lanes(kind, first, second)
        .fold(0, |all, (arith, width, a, b)| all | lane(mxcsr, arith, width, a, b).1);
    raise(s, all)
}

/// Lane `i` of a register.
fn get(width: Width, value: X, i: usize) -> u64 {
    match width {
        Width::F32 => u64::from(dwords(value)[i]),
        Width::F64 => value[i],
    }
}

/// The operations an instruction consists of: what, format, both operands.
fn lanes(kind: Kind, a: X, b: X) -> impl Iterator<Item = (Arith, Width, u64, u64)> {
    let full = |width| if width == Width::F32 { 4 } else { 2 };
    let (width, count) = match kind {
        Kind::InRange => (Width::F64, 0),
        Kind::Lanes(_, width, count) => (width, usize::from(count)),
        Kind::Hadd(width) | Kind::Hsub(width) | Kind::Addsub(width) | Kind::Dot(width, _) => {
            (width, full(width))
        }
        Kind::Narrow(count) => (Width::F64, usize::from(count)),
    };
    (0..count).map(move |i| {
        let pair = |arith| {
            let from = if i < count / 2 { a } else { b };
            let at = i % (count / 2) * 2;
            (arith, width, get(width, from, at), get(width, from, at + 1))
        };
        let straight = |arith| (arith, width, get(width, a, i), get(width, b, i));
        match kind {
            Kind::Hadd(_) => pair(Arith::Add),
            Kind::Hsub(_) => pair(Arith::Sub),
            Kind::Addsub(_) => straight(if i % 2 == 0 { Arith::Sub } else { Arith::Add }),
            Kind::Lanes(arith, ..) => straight(arith),
            Kind::InRange | Kind::Narrow(_) | Kind::Dot(..) => (Arith::Narrow, width, 0, get(width, b, i)),
        }
    })
}

/// One lane under the guest's `mxcsr`: the result with all masked, and the flags as the hardware sets them.
fn lane(mxcsr: u32, arith: Arith, width: Width, a: u64, b: u64) -> (u64, u32) {
    let mut host = mxcsr & !FLAGS | MASKS;
    without_flush(mxcsr, &mut host);
    let (first, second) = ([a, 0], [b, 0]);
    let value = match (arith, width) {
        (Arith::Add, Width::F32) => Addss_xmm_xmmm32::apply(first, second, &mut host),
        (Arith::Add, Width::F64) => Addsd_xmm_xmmm64::apply(first, second, &mut host),
        (Arith::Sub, Width::F32) => Subss_xmm_xmmm32::apply(first, second, &mut host),
        (Arith::Sub, Width::F64) => Subsd_xmm_xmmm64::apply(first, second, &mut host),
        (Arith::Mul, Width::F32) => Mulss_xmm_xmmm32::apply(first, second, &mut host),
        (Arith::Mul, Width::F64) => Mulsd_xmm_xmmm64::apply(first, second, &mut host),
        (Arith::Div, Width::F32) => Divss_xmm_xmmm32::apply(first, second, &mut host),
        (Arith::Div, Width::F64) => Divsd_xmm_xmmm64::apply(first, second, &mut host),
        (Arith::Narrow, _) => Cvtsd2ss_xmm_xmmm64::apply(first, second, &mut host),
    }[0];
    let mut flags = host & FLAGS;
    let denormal = match (arith, width) {
        (Arith::Narrow, _) | (_, Width::F32) => value & 0x7f80_0000 == 0 && value & 0x007f_ffff != 0,
        (_, Width::F64) => value & 0x7ff0 << 48 == 0 && value << 12 != 0,
    };
    let overflow = flags & OVERFLOW != 0 && mxcsr & OVERFLOW << 7 == 0;
    let underflow = (flags & UNDERFLOW != 0 || denormal) && mxcsr & UNDERFLOW << 7 == 0;
    if underflow {
        flags |= UNDERFLOW;
    }
    if overflow || underflow {
        flags &= !PRECISION;
        if inexact(arith, width, a, b) {
            flags |= PRECISION;
        }
    }
    (value, flags)
}

/// The dot product step by step, each reporting its flags.
fn dot(
    mxcsr: u32,
    width: Width,
    imm: u8,
    a: X,
    b: X,
    raise: &mut dyn FnMut(u32) -> Result<(), FpFault>,
) -> Result<(), FpFault> {
    let count = if width == Width::F32 { 4 } else { 2 };
    let unmasked_before = !(mxcsr >> 7) & BEFORE;
    let mut report = |flags: u32| raise(if flags & unmasked_before != 0 { flags & BEFORE } else { flags });
    let mut terms = [0; 4];
    let mut flags = 0;
    for (i, term) in terms.iter_mut().enumerate().take(count) {
        if imm & 0x10 << i != 0 {
            let (value, f) = lane(mxcsr, Arith::Mul, width, get(width, a, i), get(width, b, i));
            *term = value;
            flags |= f;
        }
    }
    report(flags)?;
    let (low, low_flags) = lane(mxcsr, Arith::Add, width, terms[0], terms[1]);
    if width == Width::F64 {
        return report(low_flags);
    }
    let (high, high_flags) = lane(mxcsr, Arith::Add, width, terms[2], terms[3]);
    report(low_flags | high_flags)?;
    report(lane(mxcsr, Arith::Add, width, low, high).1)
}

/// Magnitude as `significand * 2^exponent`, and the sign. For finite numbers.
fn split(width: Width, bits: u64) -> (u64, i32, bool) {
    let (fraction_bits, exponent_bits, bias) = match width {
        Width::F32 => (23, 8, 127),
        Width::F64 => (52, 11, 1023),
    };
    let fraction = bits & ((1 << fraction_bits) - 1);
    let exponent = (bits >> fraction_bits) as i32 & ((1 << exponent_bits) - 1);
    let negative = bits >> (fraction_bits + exponent_bits) & 1 != 0;
    if exponent == 0 {
        (fraction, 1 - bias - fraction_bits, negative)
    } else {
        (fraction | 1 << fraction_bits, exponent - bias - fraction_bits, negative)
    }
}

/// Whether the result of an operation on finite numbers needs more than the format's significand.
fn inexact(arith: Arith, width: Width, a: u64, b: u64) -> bool {
    let significant = |value: u128| match value {
        0 => 0,
        _ => 128 - value.leading_zeros() - value.trailing_zeros(),
    };
    let precision = match width {
        Width::F32 => 24,
        Width::F64 => 53,
    };
    let ((ma, ea, na), (mb, eb, nb)) = (split(width, a), split(width, b));
    match arith {
        Arith::Narrow => significant(u128::from(mb)) > 24,
        Arith::Mul => significant(u128::from(ma) * u128::from(mb)) > precision,
        Arith::Div => mb != 0 && ma % (mb >> mb.trailing_zeros()) != 0,
        Arith::Add | Arith::Sub => {
            if ma == 0 || mb == 0 {
                return false;
            }
            let difference = ea - eb;
            if difference.abs() > 64 {
                return true;
            }
            let (wide_a, wide_b) =
                (i128::from(ma) << difference.max(0), i128::from(mb) << (-difference).max(0));
            let same = (na == nb) == (arith == Arith::Add);
            let sum = if same { wide_a + wide_b } else { wide_a - wide_b };
            significant(sum.unsigned_abs()) > precision
        }
    }
}
