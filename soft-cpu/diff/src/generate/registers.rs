//! Random registers.

use fastrand::Rng;

use super::undefined::flag;
use crate::{
    case::{Fx, Registers},
    layout::{DATA, STACK},
    values,
};

/// A random x87, MMX and SSE state that FXRSTOR takes as it is.
pub(super) fn fx(rng: &mut Rng) -> Fx {
    let mut fx = Fx([0; 512]);
    fx.set_mxcsr(values::mxcsr(rng));
    fx.set_fcw(values::fcw(rng));
    let mut fsw = (rng.u16(..8) << 11) | (rng.u16(..) & 0x4700);
    if rng.u8(..6) == 0 {
        fsw |= rng.u16(..) & 0x7f;
    }
    fx.set_fsw(consistent(fsw, fx.fcw()));
    fx.set_tags(match rng.u8(..6) {
        0 => 0,
        1 => rng.u8(..),
        2 => 0xff ^ 1 << rng.u32(..8),
        _ => 0xff,
    });
    for i in 0..8 {
        let value = if rng.u8(..4) == 0 {
            let mut mm = [0xff; 10];
            mm[..8].copy_from_slice(&values::vector(rng)[0].to_le_bytes());
            mm
        } else {
            values::f80(rng)
        };
        fx.set_st(i, value);
    }
    for i in 0..16 {
        let value = values::vector(rng);
        fx.set_xmm(i, value);
    }
    fx
}

/// FSW with the summary bits as the processor would have them.
pub(super) fn consistent(fsw: u16, fcw: u16) -> u16 {
    if fsw & !fcw & 0x3f != 0 { fsw | 0x8080 } else { fsw & !0x8080 }
}

/// All registers; RIP is for the caller.
pub(super) fn all(rng: &mut Rng) -> Registers {
    let mut registers = Registers { fx: fx(rng), ..Registers::default() };
    for value in &mut registers.gpr {
        *value = values::int(rng);
    }
    registers.gpr[4] = (STACK.base + 0x800 + rng.u64(..0x1000)) & !7;
    registers.rflags = 0x202 | rng.u64(..) & flag::STATUS;
    match rng.u8(..32) {
        0..4 => registers.rflags |= flag::DF,
        4 => registers.rflags |= flag::AC,
        5 => registers.rflags |= 1 << 21,
        6 if rng.bool() => registers.rflags |= flag::TF,
        _ => {}
    }
    let base = |rng: &mut Rng| match rng.u8(..4) {
        0 => 0,
        1 => DATA.base + rng.u64(..0x1000),
        2 => rng.u64(..1 << 47),
        _ => 0u64.wrapping_sub(rng.u64(..1 << 47)),
    };
    registers.fs_base = base(rng);
    registers.gs_base = base(rng);
    registers
}
