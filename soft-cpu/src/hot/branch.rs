//! Branches, calls and returns, and comparisons fused with the branch that follows.
//!
//! A conditional branch has a slot with both distances from the block's address and two link slots, the one for "base
//! condition true" first; odd conditions are lowered with the two exchanged.

use super::operand::{
    AND, CMP, SUB, TEST, address, cached, compute, extend, get, jump_by, ones, peek, poke, put, readable,
    set_flags, sign, whole, writable, writes,
};
use crate::{
    block::Op,
    cpu::Cpu,
    handler::{next, slow},
    insn::BASE,
    tlb::Entry,
};

/// Two distances in a slot.
pub(super) fn distances(yes: i32, no: i32) -> u64 {
    u64::from(yes as u32) | u64::from(no as u32) << 32
}

/// Takes one of two links; `slots` is the slot with the distances.
#[inline(always)]
unsafe fn choose(cpu: *mut Cpu, yes: bool, slots: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: lowered with a slot of distances and two link slots.
    unsafe {
        let both = (*slots).as_word();
        if yes {
            return jump_by(cpu, i64::from(both as i32), slots.add(1), tlb);
        }
        jump_by(cpu, i64::from((both >> 32) as i32), slots.add(2), tlb)
    }
}

/// Condition `C` (even half of the encoding, shifted right) of an operation just done on masked operands.
#[inline(always)]
fn holds<const K: u8, const S: u8, const C: u8>(a: u64, b: u64, result: u64) -> bool {
    let compares = K == CMP || K == SUB;
    match C {
        1 => compares && a < b,
        2 => result == 0,
        3 => {
            if compares {
                a <= b
            } else {
                result == 0
            }
        }
        4 => sign::<S>(result),
        6 => {
            if compares {
                extend::<S>(a) < extend::<S>(b)
            } else {
                sign::<S>(result)
            }
        }
        _ => {
            if compares {
                extend::<S>(a) <= extend::<S>(b)
            } else {
                result == 0 || sign::<S>(result)
            }
        }
    }
}

/// op r, r then jcc
pub(super) unsafe extern "C" fn fused_rr<const K: u8, const S: u8, const C: u8>(
    cpu: *mut Cpu,
    op: *const Op,
    tlb: *const Entry,
) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let (a, b) = (get::<S>(cpu, (*op).a), get::<S>(cpu, (*op).b));
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() {
            put::<S>(cpu, (*op).a, result);
        }
        set_flags::<K, S>(cpu, result, b);
        choose(cpu, holds::<K, S, C>(a, b, result), op.add(1), tlb)
    }
}

/// op r, imm then jcc
pub(super) unsafe extern "C" fn fused_ri<const K: u8, const S: u8, const C: u8>(
    cpu: *mut Cpu,
    op: *const Op,
    tlb: *const Entry,
) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let (a, b) = (get::<S>(cpu, (*op).a), i64::from((*op).imm) as u64 & ones::<S>());
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() {
            put::<S>(cpu, (*op).a, result);
        }
        set_flags::<K, S>(cpu, result, b);
        choose(cpu, holds::<K, S, C>(a, b, result), op.add(1), tlb)
    }
}

/// jcc; `C` is the even half of the condition.
pub(super) unsafe extern "C" fn jcc<const C: u8>(
    cpu: *mut Cpu,
    op: *const Op,
    tlb: *const Entry,
) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let yes = (*cpu).lazy.holds::<C>();
        choose(cpu, yes, op.add(1), tlb)
    }
}

/// jmp to a constant distance
pub(super) unsafe extern "C" fn jmp(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe { jump_by(cpu, i64::from((*op).imm), op.add(1), tlb) }
}

/// call to a constant distance; `a` and `b` hold the return address's offset.
pub(super) unsafe extern "C" fn call(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let top = whole(cpu, 4).wrapping_sub(8);
        let at = writable(tlb, top, 8);
        if at.is_null() {
            return slow(cpu, op, tlb);
        }
        let back = u64::from(u16::from_le_bytes([(*op).a, (*op).b]));
        poke::<8>(at, whole(cpu, BASE).wrapping_add(back));
        put::<8>(cpu, 4, top);
        jump_by(cpu, i64::from((*op).imm), op.add(1), tlb)
    }
}

/// ret
pub(super) unsafe extern "C" fn ret(cpu: *mut Cpu, op: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let top = whole(cpu, 4);
        let at = readable(tlb, top, 8);
        if at.is_null() {
            return slow(cpu, op, tlb);
        }
        let to = peek::<8>(at);
        let target = cached(cpu, to);
        if target.is_null() {
            return slow(cpu, op, tlb);
        }
        put::<8>(cpu, 4, top.wrapping_add(8));
        put::<8>(cpu, BASE, to);
        next!(cpu, target, tlb)
    }
}

/// Goes to `to`, pushing the return address first if `PUSH` is 1.
#[inline(always)]
unsafe fn indirect<const PUSH: u8>(
    cpu: *mut Cpu,
    op: *const Op,
    tlb: *const Entry,
    to: u64,
    back: u64,
) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let target = cached(cpu, to);
        if target.is_null() {
            return slow(cpu, op, tlb);
        }
        if PUSH == 1 {
            let top = whole(cpu, 4).wrapping_sub(8);
            let at = writable(tlb, top, 8);
            if at.is_null() {
                return slow(cpu, op, tlb);
            }
            poke::<8>(at, whole(cpu, BASE).wrapping_add(back));
            put::<8>(cpu, 4, top);
        }
        put::<8>(cpu, BASE, to);
        next!(cpu, target, tlb)
    }
}

/// jmp r, call r; `imm` is the return address's offset.
pub(super) unsafe extern "C" fn indirect_r<const PUSH: u8>(
    cpu: *mut Cpu,
    op: *const Op,
    tlb: *const Entry,
) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe { indirect::<PUSH>(cpu, op, tlb, whole(cpu, (*op).a), i64::from((*op).imm) as u64) }
}

/// jmp m, call m; the slot is the return address's offset.
pub(super) unsafe extern "C" fn indirect_m<const PUSH: u8>(
    cpu: *mut Cpu,
    op: *const Op,
    tlb: *const Entry,
) -> *const Op {
    // SAFETY: the contract of `operand`.
    unsafe {
        let at = readable(tlb, address(cpu, op), 8);
        if at.is_null() {
            return slow(cpu, op, tlb);
        }
        indirect::<PUSH>(cpu, op, tlb, peek::<8>(at), (*op.add(1)).as_word())
    }
}

macro_rules! by_condition {
    ($f:ident, $k:ident, $s:literal, $c:expr) => {
        match $c {
            1 => $f::<$k, $s, 1>,
            2 => $f::<$k, $s, 2>,
            3 => $f::<$k, $s, 3>,
            4 => $f::<$k, $s, 4>,
            6 => $f::<$k, $s, 6>,
            7 => $f::<$k, $s, 7>,
            _ => return None,
        }
    };
}

macro_rules! by_kind {
    ($f:ident, $kind:expr, $size:expr, $c:expr) => {
        match ($kind, $size) {
            (CMP, 1) => by_condition!($f, CMP, 1, $c),
            (CMP, 4) => by_condition!($f, CMP, 4, $c),
            (CMP, 8) => by_condition!($f, CMP, 8, $c),
            (TEST, 1) => by_condition!($f, TEST, 1, $c),
            (TEST, 4) => by_condition!($f, TEST, 4, $c),
            (TEST, 8) => by_condition!($f, TEST, 8, $c),
            (SUB, 4) => by_condition!($f, SUB, 4, $c),
            (SUB, 8) => by_condition!($f, SUB, 8, $c),
            (AND, 4) => by_condition!($f, AND, 4, $c),
            (AND, 8) => by_condition!($f, AND, 8, $c),
            _ => return None,
        }
    };
}

/// The fused handler for an operation, a size and the even half of a condition.
pub(super) fn fused(kind: u8, size: u8, c: u8, immediate: bool) -> Option<crate::block::Handler> {
    Some(if immediate { by_kind!(fused_ri, kind, size, c) } else { by_kind!(fused_rr, kind, size, c) })
}

/// The handler for an unfused conditional branch.
pub(super) fn conditional(c: u8) -> crate::block::Handler {
    match c {
        0 => jcc::<0>,
        1 => jcc::<1>,
        2 => jcc::<2>,
        3 => jcc::<3>,
        4 => jcc::<4>,
        5 => jcc::<5>,
        6 => jcc::<6>,
        _ => jcc::<7>,
    }
}
