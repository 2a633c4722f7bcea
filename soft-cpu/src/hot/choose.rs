//! Which instruction gets which handler of `compute.rs`.

use iced_x86::Mnemonic as M;

use super::{
    compute, memory,
    operand::{ADD, SUB},
    register, small, with_memory, word,
};
use crate::{
    block::{Handler, Op},
    exec,
    insn::{Insn, Opd, Rep},
};

/// Picks by size 4 or 8.
macro_rules! two_sizes {
    ($f:ident, $size:expr $(, $k:expr)?) => {{
        let handler: Handler = if $size == 4 { compute::$f::<$($k,)? 4> } else { compute::$f::<$($k,)? 8> };
        handler
    }};
}

/// Picks by size 1, 2, 4 or 8.
macro_rules! four_sizes {
    ($f:ident, $size:expr $(, $k:expr)?) => {{
        let handler: Handler = match $size {
            1 => compute::$f::<$($k,)? 1>,
            2 => compute::$f::<$($k,)? 2>,
            4 => compute::$f::<$($k,)? 4>,
            _ => compute::$f::<$($k,)? 8>,
        };
        handler
    }};
}

/// Picks by the even half of a condition.
macro_rules! by_condition {
    ($f:ident, $c:expr $(, $s:literal)?) => {{
        let handler: Handler = match $c {
            0 => compute::$f::<0 $(, $s)?>,
            1 => compute::$f::<1 $(, $s)?>,
            2 => compute::$f::<2 $(, $s)?>,
            3 => compute::$f::<3 $(, $s)?>,
            4 => compute::$f::<4 $(, $s)?>,
            5 => compute::$f::<5 $(, $s)?>,
            6 => compute::$f::<6 $(, $s)?>,
            _ => compute::$f::<7 $(, $s)?>,
        };
        handler
    }};
}

/// The op for an instruction, and the data slot behind it. `quiet`: nobody sees the flags it leaves.
pub(super) fn choose(insn: &Insn, m: M, quiet: bool) -> Option<(Op, Option<Op>)> {
    let is = |run: crate::insn::Exec| std::ptr::fn_addr_eq(insn.run, run);
    if is(exec::transfer::setcc) {
        return set(insn);
    }
    if is(exec::transfer::cmov) {
        return conditional_move(insn);
    }
    let size = insn.size;
    let wide = size == 4 || size == 8;
    let plain = |run: Handler| Some((Op { run, a: 0, b: 0, c: 0, d: 0, imm: 0 }, None));
    let one = |run: Handler, a: u8| Some((Op { run, a, b: 0, c: 0, d: 0, imm: 0 }, None));
    let two = |run: Handler, a: u8, b: u8| Some((Op { run, a, b, c: 0, d: 0, imm: 0 }, None));
    let at = |run: Handler, a: u8| Some((with_memory(run, a, insn)?, None));
    match (m, insn.a, insn.b) {
        (M::Imul, Opd::R(a), b) if wide => match (b, insn.c) {
            (Opd::R(b), Opd::None) => two(two_sizes!(imul_rr, size), a, b),
            (Opd::Mem, Opd::None) => at(two_sizes!(imul_rm, size), a),
            (Opd::R(b), Opd::Imm) => {
                let imm = small(insn.imm, size)?;
                Some((Op { run: two_sizes!(imul_rri, size), a, b, c: 0, d: 0, imm }, None))
            }
            _ => None,
        },
        (M::Mul, Opd::R(a), Opd::None) if wide => one(two_sizes!(mul_r, size), a),
        (M::Div, Opd::R(a), Opd::None) if wide => one(two_sizes!(div_r, size), a),
        (M::Idiv, Opd::R(a), Opd::None) if wide => one(two_sizes!(idiv_r, size), a),
        (M::Neg, a, _) if a != Opd::Mem => one(four_sizes!(neg, size), register(a)?),
        (M::Not, Opd::R(a), _) if wide => one(two_sizes!(not, size), a),
        (M::Inc, Opd::Mem, _) => at(four_sizes!(step_m, size, 1), 0),
        (M::Dec, Opd::Mem, _) => at(four_sizes!(step_m, size, 0), 0),
        (M::Shl | M::Sal, Opd::R(a), Opd::R8(8)) if wide => one(two_sizes!(shift_cl, size, 0), a),
        (M::Shr, Opd::R(a), Opd::R8(8)) if wide => one(two_sizes!(shift_cl, size, 1), a),
        (M::Sar, Opd::R(a), Opd::R8(8)) if wide => one(two_sizes!(shift_cl, size, 2), a),
        (M::Rol | M::Ror, Opd::R(a), Opd::Imm) if wide => {
            let bits = i32::from(size) * 8;
            let n = insn.imm as i32 & (bits - 1);
            let left = m == M::Rol;
            if n == 0 {
                return None;
            }
            let run = if quiet { two_sizes!(rotate, size, 0) } else { two_sizes!(rotate, size, 1) };
            let imm = if left { bits - n } else { n };
            Some((Op { run, a, b: left.into(), c: 0, d: 0, imm }, None))
        }
        (M::Bt, Opd::R(a), Opd::R(b)) if wide => two(two_sizes!(bt_rr, size), a, b),
        (M::Bt, Opd::R(a), Opd::Imm) if wide => {
            two(two_sizes!(bt_ri, size), a, insn.imm as u8 & (8 * size - 1))
        }
        (M::Cwde, ..) => two(super::integer::sign_rr::<2, 4>, 0, 0),
        (M::Cdqe, ..) => two(super::integer::sign_rr::<4, 8>, 0, 0),
        (M::Cdq | M::Cqo, ..) => plain(two_sizes!(sign_data, size)),
        (M::Bswap, Opd::R(a), _) if wide => one(two_sizes!(bswap, size), a),
        (M::Mov, Opd::R(a), Opd::Imm) if size == 8 => {
            Some((Op { run: compute::mov_wide, a, b: 0, c: 0, d: 0, imm: 0 }, Some(word(insn.imm))))
        }
        (M::Push, Opd::Imm, _) if size == 8 => {
            let imm = small(insn.imm, 8)?;
            Some((Op { run: compute::push_i, a: 0, b: 0, c: 0, d: 0, imm }, None))
        }
        (M::Push, Opd::Mem, _) if size == 8 => at(compute::push_m, 0),
        (M::Leave, ..) if size == 8 => plain(compute::leave),
        (M::Adc, Opd::R(a), Opd::R(b)) if wide => two(two_sizes!(carried_rr, size, ADD), a, b),
        (M::Sbb, Opd::R(a), Opd::R(b)) if wide => two(two_sizes!(carried_rr, size, SUB), a, b),
        (M::Adc | M::Sbb, Opd::R(a), Opd::Imm) if wide => {
            let run = if m == M::Adc {
                two_sizes!(carried_ri, size, ADD)
            } else {
                two_sizes!(carried_ri, size, SUB)
            };
            Some((Op { run, a, b: 0, c: 0, d: 0, imm: small(insn.imm, size)? }, None))
        }
        (M::Xchg, Opd::R(a), Opd::R(b)) if wide => two(two_sizes!(xchg_rr, size), a, b),
        (M::Xchg, Opd::Mem, b) => at(four_sizes!(xchg_mr, size), register(b)?),
        (M::Xchg, a, Opd::Mem) => at(four_sizes!(xchg_mr, size), register(a)?),
        (M::Xadd, Opd::Mem, b) => at(four_sizes!(xadd_mr, size), register(b)?),
        (M::Cmpxchg, Opd::Mem, b) => at(four_sizes!(cmpxchg_mr, size), register(b)?),
        (M::Pause | M::Prefetcht0 | M::Prefetcht1 | M::Prefetcht2 | M::Prefetchnta | M::Prefetchw, ..)
        | (M::Lfence | M::Sfence | M::Mfence, ..)
            if insn.rep == Rep::No || m == M::Pause =>
        {
            plain(super::integer::nop)
        }
        _ => None,
    }
}

fn set(insn: &Insn) -> Option<(Op, Option<Op>)> {
    let odd = insn.imm2 & 1;
    let c = insn.imm2 >> 1;
    if insn.a == Opd::Mem {
        return Some((with_memory(by_condition!(set_m, c), odd, insn)?, None));
    }
    Some((Op { run: by_condition!(set_r, c), a: register(insn.a)?, b: odd, c: 0, d: 0, imm: 0 }, None))
}

fn conditional_move(insn: &Insn) -> Option<(Op, Option<Op>)> {
    let (odd, c, a) = (insn.imm2 & 1, insn.imm2 >> 1, register(insn.a)?);
    if insn.b == Opd::Mem {
        let run = match insn.size {
            4 => by_condition!(cmov_rm, c, 4),
            8 => by_condition!(cmov_rm, c, 8),
            _ => return None,
        };
        let (b, c, d, imm) = memory(insn)?;
        return Some((Op { run, a, b, c, d: d | odd << 7, imm }, None));
    }
    let run = match insn.size {
        4 => by_condition!(cmov_rr, c, 4),
        8 => by_condition!(cmov_rr, c, 8),
        _ => return None,
    };
    Some((Op { run, a, b: register(insn.b)?, c: odd, d: 0, imm: 0 }, None))
}

/// Are the flags the first instruction leaves overwritten before anything can look at them? Only instructions that
/// can neither fault nor end the block may come in between.
pub(crate) fn flags_unseen(insns: &[Insn]) -> bool {
    for insn in insns.iter().skip(1) {
        if insn.ends || insn.a == Opd::Mem || insn.b == Opd::Mem || insn.c == Opd::Mem {
            return false;
        }
        match insn.code.mnemonic() {
            M::Add | M::Sub | M::And | M::Or | M::Xor | M::Cmp | M::Test | M::Neg | M::Imul => return true,
            // Neither look nor fault, and leave some flags or all.
            M::Mov | M::Movzx | M::Movsx | M::Movsxd | M::Lea | M::Not | M::Bswap | M::Nop => {
                if !matches!(insn.a, Opd::R(_) | Opd::R8(_) | Opd::None) {
                    return false;
                }
            }
            M::Rol | M::Ror | M::Shl | M::Shr | M::Sar if insn.b == Opd::Imm => {}
            _ => return false,
        }
    }
    false
}
