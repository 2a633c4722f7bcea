//! When an SSE floating-point operation cannot change MXCSR, so that the host may execute it without loading and
//! storing MXCSR, which costs several times the operation.
//!
//! That is so if the guest's MXCSR asks for what the host's code runs under anyway (round to nearest, no flushing,
//! all masked), "precision" is already set or cannot be raised, and operands and results are of a kind that excludes
//! the other exceptions.

use super::{
    lanes::{X, dwords},
    sse_float::HOST_MXCSR,
    unmasked::Width,
};

/// Precision exception flag.
const PE: u32 = 0x20;
/// MXCSR without its flags.
const CONTROL: u32 = 0xffc0;

/// What has to hold of operands and result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// Not known: MXCSR is always looked at.
    Never,
    /// Nothing is ever raised.
    Exact,
    /// At most "precision".
    Inexact,
    /// Sums and differences in this many lanes.
    Sum(Width, u8),
    /// Products.
    Product(Width, u8),
    /// Quotients.
    Quotient(Width, u8),
    /// Operations that raise nothing if all operands are zero or normal.
    Operands(Width, u8),
    /// As `Operands` of the second operand alone.
    Source(Width, u8),
    /// Square roots of the second operand.
    Root(Width, u8),
    /// As `Source`, but for "precision".
    Rounded(Width, u8),
    /// Doubles of the second operand to single.
    Narrow(u8),
    /// Conversions to 32-bit integers: this many lanes of the result are not the "integer indefinite".
    Integers(u8),
    /// As `Integers`, one 64-bit integer.
    Long,
}

/// Zero or normal.
#[inline(always)]
fn plain(width: Width, lane: u64) -> bool {
    match width {
        Width::F32 => {
            let magnitude = (lane as u32) << 1;
            magnitude == 0 || magnitude.wrapping_sub(1 << 24) < 0xfe << 24
        }
        Width::F64 => {
            let magnitude = lane << 1;
            magnitude == 0 || magnitude.wrapping_sub(1 << 53) < 0x7fe << 53
        }
    }
}

/// Normal, and not of the smallest exponent: a result that was not tiny before rounding.
#[inline(always)]
fn in_range(width: Width, lane: u64) -> bool {
    match width {
        Width::F32 => ((lane as u32) << 1).wrapping_sub(2 << 24) < 0xfd << 24,
        Width::F64 => (lane << 1).wrapping_sub(2 << 53) < 0x7fd << 53,
    }
}

#[inline(always)]
fn is_zero(width: Width, lane: u64) -> bool {
    match width {
        Width::F32 => (lane as u32) << 1 == 0,
        Width::F64 => lane << 1 == 0,
    }
}

/// Lane `i` of a register.
#[inline(always)]
fn get(width: Width, value: X, i: u8) -> u64 {
    match width {
        Width::F32 => u64::from(dwords(value)[usize::from(i)]),
        Width::F64 => value[usize::from(i)],
    }
}

/// Whether it holds for every lane. A plain loop: iterator adaptors are not inlined here.
#[inline(always)]
fn all(lanes: u8, holds: impl Fn(u8) -> bool) -> bool {
    let mut lane = 0;
    while lane < lanes {
        if !holds(lane) {
            return false;
        }
        lane += 1;
    }
    true
}

impl Quiet {
    /// Whether the guest's MXCSR allows it.
    #[inline(always)]
    pub(super) fn allowed(self, mxcsr: u32) -> bool {
        match self {
            Quiet::Never => false,
            Quiet::Exact | Quiet::Operands(..) | Quiet::Source(..) => mxcsr & CONTROL == HOST_MXCSR,
            _ => mxcsr & (CONTROL | PE) == HOST_MXCSR | PE,
        }
    }

    /// Whether operands and result exclude all exceptions but "precision".
    #[inline(always)]
    pub(super) fn holds(self, first: X, second: X, result: X) -> bool {
        match self {
            Quiet::Never => false,
            Quiet::Exact | Quiet::Inexact => true,
            Quiet::Sum(width, lanes) => all(lanes, |i| {
                let value = get(width, result, i);
                plain(width, get(width, first, i))
                    && plain(width, get(width, second, i))
                    && (in_range(width, value) || is_zero(width, value))
            }),
            Quiet::Product(width, lanes) => all(lanes, |i| {
                let (a, b) = (get(width, first, i), get(width, second, i));
                plain(width, a)
                    && plain(width, b)
                    && (in_range(width, get(width, result, i)) || is_zero(width, a) || is_zero(width, b))
            }),
            Quiet::Quotient(width, lanes) => all(lanes, |i| {
                let (a, b) = (get(width, first, i), get(width, second, i));
                plain(width, a)
                    && plain(width, b)
                    && !is_zero(width, b)
                    && (in_range(width, get(width, result, i)) || is_zero(width, a))
            }),
            Quiet::Operands(width, lanes) => {
                all(lanes, |i| plain(width, get(width, first, i)) && plain(width, get(width, second, i)))
            }
            Quiet::Source(width, lanes) | Quiet::Rounded(width, lanes) => {
                all(lanes, |i| plain(width, get(width, second, i)))
            }
            Quiet::Root(width, lanes) => all(lanes, |i| {
                let value = get(width, second, i);
                plain(width, value) && (is_zero(width, value) || in_range(width, get(width, result, i)))
            }),
            Quiet::Narrow(lanes) => all(lanes, |i| {
                let value = get(Width::F64, second, i);
                plain(Width::F64, value)
                    && (is_zero(Width::F64, value) || in_range(Width::F32, get(Width::F32, result, i)))
            }),
            Quiet::Integers(lanes) => all(lanes, |i| dwords(result)[usize::from(i)] != 1 << 31),
            Quiet::Long => result[0] != 1 << 63,
        }
    }
}
