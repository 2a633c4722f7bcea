//! Between a case's registers (FXSAVE's view) and the software CPU's state.

use soft_cpu::state::CpuState;

use crate::case::{Fx, Registers};

/// The full tag of a register that is not empty (SDM vol. 1, 8.1.7).
fn tag(value: [u8; 10]) -> u16 {
    let exponent = u16::from_le_bytes([value[8], value[9]]) & 0x7fff;
    let zero = value[..8].iter().all(|&b| b == 0);
    match exponent {
        0 if zero => 1,
        0 | 0x7fff => 2,
        _ if value[7] & 0x80 == 0 => 2,
        _ => 0,
    }
}

/// Puts a case's registers into a complete state.
pub fn put_registers(from: &Registers, to: &mut CpuState) {
    to.gpr = from.gpr;
    to.rip = from.rip;
    to.rflags = from.rflags;
    to.fs.base = from.fs_base;
    to.gs.base = from.gs_base;
    let fx = &from.fx;
    (to.fcw, to.fsw, to.mxcsr) = (fx.fcw(), fx.fsw(), fx.mxcsr());
    let top = usize::from(fx.fsw() >> 11 & 7);
    to.ftw = 0;
    for i in 0..8 {
        let physical = (top + i) & 7;
        to.x87[physical] = [0; 16];
        to.x87[physical][..10].copy_from_slice(&fx.st(i));
        let tag = if fx.tags() >> physical & 1 == 0 { 3 } else { tag(fx.st(i)) };
        to.ftw |= tag << (2 * physical);
    }
    for i in 0..16 {
        to.xmm[i] = fx.xmm(i);
    }
}

/// The registers a case has, out of a complete state.
pub fn registers(from: &CpuState) -> Registers {
    let mut fx = Fx([0; 512]);
    fx.set_fcw(from.fcw);
    fx.set_fsw(from.fsw);
    fx.set_mxcsr(from.mxcsr);
    let top = usize::from(from.fsw >> 11 & 7);
    let mut tags = 0;
    for i in 0..8 {
        let physical = (top + i) & 7;
        let mut st = [0; 10];
        st.copy_from_slice(&from.x87[physical][..10]);
        fx.set_st(i, st);
        if from.ftw >> (2 * physical) & 3 != 3 {
            tags |= 1 << physical;
        }
    }
    fx.set_tags(tags);
    for i in 0..16 {
        fx.set_xmm(i, from.xmm[i]);
    }
    Registers {
        fx,
        gpr: from.gpr,
        rip: from.rip,
        rflags: from.rflags,
        fs_base: from.fs.base,
        gs_base: from.gs.base,
    }
}
