//! Arithmetic, logic and moves between registers, immediates and memory.
//!
//! Each handler first makes sure that its accesses hit the TLB; otherwise `slow` runs the whole instruction.

use super::operand::{
    address, compute, extend, get, handlers, ones, peek, poke, put, readable, set_flags, whole, writable,
    writes,
};
use crate::{
    flags::{cc, kind},
    handler::{next, slow},
};

handlers! {
    /// op r, r
    fn alu_rr<const K, const S>(cpu, op, tlb) {
        let (a, b) = (get::<S>(cpu, (*op).a), get::<S>(cpu, (*op).b));
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() { put::<S>(cpu, (*op).a, result); }
        set_flags::<K, S>(cpu, result, b);
        next!(cpu, op.add(1), tlb)
    }
    /// op r, imm
    fn alu_ri<const K, const S>(cpu, op, tlb) {
        let (a, b) = (get::<S>(cpu, (*op).a), i64::from((*op).imm) as u64 & ones::<S>());
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() { put::<S>(cpu, (*op).a, result); }
        set_flags::<K, S>(cpu, result, b);
        next!(cpu, op.add(1), tlb)
    }
    /// op r, m
    fn alu_rm<const K, const S>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let (a, b) = (get::<S>(cpu, (*op).a), peek::<S>(at));
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() { put::<S>(cpu, (*op).a, result); }
        set_flags::<K, S>(cpu, result, b);
        next!(cpu, op.add(1), tlb)
    }
    /// op m, r
    fn alu_mr<const K, const S>(cpu, op, tlb) {
        let at = if writes::<K>() {
            writable(tlb, address(cpu, op), u64::from(S))
        } else {
            readable(tlb, address(cpu, op), u64::from(S)).cast_mut()
        };
        if at.is_null() { return slow(cpu, op, tlb); }
        let (a, b) = (peek::<S>(at), get::<S>(cpu, (*op).a));
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() { poke::<S>(at, result); }
        set_flags::<K, S>(cpu, result, b);
        next!(cpu, op.add(1), tlb)
    }
    /// op m, imm (the immediate is in a slot)
    fn alu_mi<const K, const S>(cpu, op, tlb) {
        let at = if writes::<K>() {
            writable(tlb, address(cpu, op), u64::from(S))
        } else {
            readable(tlb, address(cpu, op), u64::from(S)).cast_mut()
        };
        if at.is_null() { return slow(cpu, op, tlb); }
        let (a, b) = (peek::<S>(at), (*op.add(1)).as_word() & ones::<S>());
        let result = compute::<K>(a, b) & ones::<S>();
        if writes::<K>() { poke::<S>(at, result); }
        set_flags::<K, S>(cpu, result, b);
        next!(cpu, op.add(2), tlb)
    }
    /// inc r (PLUS 1) and dec r (PLUS 0)
    fn step<const PLUS, const S>(cpu, op, tlb) {
        let carry = u64::from((*cpu).lazy.carry());
        let a = get::<S>(cpu, (*op).a);
        let result = if PLUS == 1 { a.wrapping_add(1) } else { a.wrapping_sub(1) } & ones::<S>();
        put::<S>(cpu, (*op).a, result);
        let lazy = &mut (*cpu).lazy;
        (lazy.dst, lazy.src) = (result, carry);
        lazy.cc = if PLUS == 1 { cc(kind::INC, S) } else { cc(kind::DEC, S) };
        next!(cpu, op.add(1), tlb)
    }
    /// shl, shr, sar (K 0, 1, 2) of a register by an immediate from 1 to the size less 1
    fn shift<const K, const S>(cpu, op, tlb) {
        let (a, n) = (get::<S>(cpu, (*op).a), (*op).imm as u32 & 63);
        let bits = 8 * u32::from(S);
        let (result, carry) = match K {
            0 => (a << n & ones::<S>(), a >> (bits - n) & 1),
            1 => (a >> n, a >> (n - 1) & 1),
            _ => ((extend::<S>(a) >> n) as u64 & ones::<S>(), (extend::<S>(a) >> (n - 1)) as u64 & 1),
        };
        let overflow = match K {
            0 => carry ^ result >> (bits - 1) & 1,
            1 => result >> (bits - 2) & 1,
            _ => 0,
        };
        put::<S>(cpu, (*op).a, result);
        let lazy = &mut (*cpu).lazy;
        (lazy.dst, lazy.src, lazy.cc) = (result, carry | overflow << 11, const { cc(kind::RESULT, S) });
        next!(cpu, op.add(1), tlb)
    }
    /// mov r, r
    fn mov_rr<const S>(cpu, op, tlb) {
        let value = get::<S>(cpu, (*op).b);
        put::<S>(cpu, (*op).a, value);
        next!(cpu, op.add(1), tlb)
    }
    /// mov r, imm (sign-extended)
    fn mov_ri<const S>(cpu, op, tlb) {
        put::<S>(cpu, (*op).a, i64::from((*op).imm) as u64);
        next!(cpu, op.add(1), tlb)
    }
    /// mov r, m
    fn mov_rm<const S>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        put::<S>(cpu, (*op).a, peek::<S>(at));
        next!(cpu, op.add(1), tlb)
    }
    /// mov m, r
    fn mov_mr<const S>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        poke::<S>(at, get::<S>(cpu, (*op).a));
        next!(cpu, op.add(1), tlb)
    }
    /// mov m, imm (the immediate is in a slot)
    fn mov_mi<const S>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        poke::<S>(at, (*op.add(1)).as_word());
        next!(cpu, op.add(2), tlb)
    }
    /// movzx r, r (from S bytes to 32 or 64 bits)
    fn zero_rr<const S>(cpu, op, tlb) {
        let value = get::<S>(cpu, (*op).b);
        put::<8>(cpu, (*op).a, value);
        next!(cpu, op.add(1), tlb)
    }
    /// movzx r, m
    fn zero_rm<const S>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        put::<8>(cpu, (*op).a, peek::<S>(at));
        next!(cpu, op.add(1), tlb)
    }
    /// movsx r, r (from S to D bytes)
    fn sign_rr<const S, const D>(cpu, op, tlb) {
        let value = extend::<S>(get::<S>(cpu, (*op).b)) as u64;
        put::<D>(cpu, (*op).a, value);
        next!(cpu, op.add(1), tlb)
    }
    /// movsx r, m
    fn sign_rm<const S, const D>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        put::<D>(cpu, (*op).a, extend::<S>(peek::<S>(at)) as u64);
        next!(cpu, op.add(1), tlb)
    }
    /// lea r, m
    fn lea<const S>(cpu, op, tlb) {
        put::<S>(cpu, (*op).a, address(cpu, op));
        next!(cpu, op.add(1), tlb)
    }
    /// push r
    fn push<const S>(cpu, op, tlb) {
        let top = whole(cpu, 4).wrapping_sub(8);
        let at = writable(tlb, top, u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        poke::<S>(at, whole(cpu, (*op).a));
        put::<8>(cpu, 4, top);
        next!(cpu, op.add(1), tlb)
    }
    /// pop r
    fn pop<const S>(cpu, op, tlb) {
        let top = whole(cpu, 4);
        let at = readable(tlb, top, u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let value = peek::<S>(at);
        put::<8>(cpu, 4, top.wrapping_add(8));
        put::<8>(cpu, (*op).a, value);
        next!(cpu, op.add(1), tlb)
    }
    /// Nothing.
    fn nop<>(cpu, op, tlb) {
        next!(cpu, op.add(1), tlb)
    }
}
