//! Conditions, multiplication, division, rotates, carries and exchanges: fast forms of what is less common than
//! `integer.rs`, with the same rule: an access that misses the TLB sends the whole instruction to `slow`.

use super::operand::{
    ADD, SUB, address, extend, get, handlers, ones, peek, poke, put, readable, set_flags, sign, whole,
    writable,
};
use crate::{
    flags::{CF, OF, cc, kind},
    handler::{next, slow},
};

/// Makes the flags those of a product.
macro_rules! product_flags {
    ($cpu:ident, $s:ident, $low:expr, $overflow:expr) => {{
        let lazy = &mut (*$cpu).lazy;
        (lazy.dst, lazy.src) = ($low, if $overflow { CF | OF } else { 0 });
        lazy.cc = const { cc(kind::RESULT, $s) };
    }};
}

/// Signed product of two `S`-byte values, and whether it does not fit.
#[inline(always)]
fn signed_product<const S: u8>(a: u64, b: u64) -> (u64, bool) {
    if S == 8 {
        let (low, over) = (a as i64).overflowing_mul(b as i64);
        return (low as u64, over);
    }
    let product = extend::<S>(a) * extend::<S>(b);
    let low = product as u64 & ones::<S>();
    (low, extend::<S>(low) != product)
}

handlers! {
    /// setcc r; `C` is the even half of the condition, `b` is 1 for the odd one.
    fn set_r<const C>(cpu, op, tlb) {
        let value = (*cpu).lazy.holds::<C>() ^ ((*op).b != 0);
        put::<1>(cpu, (*op).a, u64::from(value));
        next!(cpu, op.add(1), tlb)
    }
    /// setcc m; `a` is 1 for the odd condition.
    fn set_m<const C>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), 1);
        if at.is_null() { return slow(cpu, op, tlb); }
        let value = (*cpu).lazy.holds::<C>() ^ ((*op).a != 0);
        poke::<1>(at, u64::from(value));
        next!(cpu, op.add(1), tlb)
    }
    /// cmovcc r, r; `c` is 1 for the odd condition.
    fn cmov_rr<const C, const S>(cpu, op, tlb) {
        let yes = (*cpu).lazy.holds::<C>() ^ ((*op).c != 0);
        let (a, b) = (whole(cpu, (*op).a), whole(cpu, (*op).b));
        put::<S>(cpu, (*op).a, if yes { b } else { a });
        next!(cpu, op.add(1), tlb)
    }
    /// cmovcc r, m; the top bit of `d` is set for the odd condition.
    fn cmov_rm<const C, const S>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let yes = (*cpu).lazy.holds::<C>() ^ ((*op).d & 0x80 != 0);
        put::<S>(cpu, (*op).a, if yes { peek::<S>(at) } else { whole(cpu, (*op).a) });
        next!(cpu, op.add(1), tlb)
    }
    /// imul r, r
    fn imul_rr<const S>(cpu, op, tlb) {
        let (low, over) = signed_product::<S>(get::<S>(cpu, (*op).a), get::<S>(cpu, (*op).b));
        put::<S>(cpu, (*op).a, low);
        product_flags!(cpu, S, low, over);
        next!(cpu, op.add(1), tlb)
    }
    /// imul r, r, imm
    fn imul_rri<const S>(cpu, op, tlb) {
        let (low, over) = signed_product::<S>(get::<S>(cpu, (*op).b), i64::from((*op).imm) as u64 & ones::<S>());
        put::<S>(cpu, (*op).a, low);
        product_flags!(cpu, S, low, over);
        next!(cpu, op.add(1), tlb)
    }
    /// imul r, m
    fn imul_rm<const S>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let (low, over) = signed_product::<S>(get::<S>(cpu, (*op).a), peek::<S>(at));
        put::<S>(cpu, (*op).a, low);
        product_flags!(cpu, S, low, over);
        next!(cpu, op.add(1), tlb)
    }
    /// mul r
    fn mul_r<const S>(cpu, op, tlb) {
        let product = u128::from(get::<S>(cpu, 0)) * u128::from(get::<S>(cpu, (*op).a));
        let (low, high) = (product as u64 & ones::<S>(), (product >> (8 * u32::from(S))) as u64);
        put::<S>(cpu, 0, low);
        put::<S>(cpu, 2, high);
        product_flags!(cpu, S, low, high != 0);
        next!(cpu, op.add(1), tlb)
    }
    /// div r, where the dividend's upper half is zero
    fn div_r<const S>(cpu, op, tlb) {
        let divisor = get::<S>(cpu, (*op).a);
        if divisor == 0 || get::<S>(cpu, 2) != 0 { return slow(cpu, op, tlb); }
        let low = get::<S>(cpu, 0);
        put::<S>(cpu, 0, low / divisor);
        put::<S>(cpu, 2, low % divisor);
        next!(cpu, op.add(1), tlb)
    }
    /// idiv r, where the dividend is the accumulator sign-extended
    fn idiv_r<const S>(cpu, op, tlb) {
        let divisor = extend::<S>(get::<S>(cpu, (*op).a));
        let low = extend::<S>(get::<S>(cpu, 0));
        if divisor == 0 || divisor == -1 || extend::<S>(get::<S>(cpu, 2)) != low >> 63 {
            return slow(cpu, op, tlb);
        }
        put::<S>(cpu, 0, (low / divisor) as u64);
        put::<S>(cpu, 2, (low % divisor) as u64);
        next!(cpu, op.add(1), tlb)
    }
    /// neg r
    fn neg<const S>(cpu, op, tlb) {
        let a = get::<S>(cpu, (*op).a);
        let result = a.wrapping_neg() & ones::<S>();
        put::<S>(cpu, (*op).a, result);
        set_flags::<SUB, S>(cpu, result, a);
        next!(cpu, op.add(1), tlb)
    }
    /// not r
    fn not<const S>(cpu, op, tlb) {
        let a = whole(cpu, (*op).a);
        put::<S>(cpu, (*op).a, !a);
        next!(cpu, op.add(1), tlb)
    }
    /// inc m (PLUS 1) and dec m (PLUS 0)
    fn step_m<const PLUS, const S>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let carry = u64::from((*cpu).lazy.carry());
        let a = peek::<S>(at);
        let result = if PLUS == 1 { a.wrapping_add(1) } else { a.wrapping_sub(1) } & ones::<S>();
        poke::<S>(at, result);
        let lazy = &mut (*cpu).lazy;
        (lazy.dst, lazy.src) = (result, carry);
        lazy.cc = if PLUS == 1 { cc(kind::INC, S) } else { cc(kind::DEC, S) };
        next!(cpu, op.add(1), tlb)
    }
    /// shl, shr, sar (K 0, 1, 2) of a register by CL
    fn shift_cl<const K, const S>(cpu, op, tlb) {
        let n = whole(cpu, 1) as u32 & if S == 8 { 63 } else { 31 };
        let a = get::<S>(cpu, (*op).a);
        if n == 0 {
            put::<S>(cpu, (*op).a, a);
            next!(cpu, op.add(1), tlb);
        }
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
    /// ror r, imm (from 1 to the size less 1); FLAGS 0: nobody sees the flags
    fn rotate<const FLAGS, const S>(cpu, op, tlb) {
        let (a, n) = (get::<S>(cpu, (*op).a), (*op).imm as u32 & 63);
        let result = if S == 8 { a.rotate_right(n) } else { u64::from((a as u32).rotate_right(n)) };
        put::<S>(cpu, (*op).a, result);
        if FLAGS != 0 {
            // Left: the carry is the bit that came round to the bottom; right: to the top.
            let left = (*op).b != 0;
            let top = u64::from(sign::<S>(result));
            let carry = if left { result & 1 } else { top };
            let other = if left { top } else { result >> (8 * u32::from(S) - 2) & 1 };
            let lazy = &mut (*cpu).lazy;
            let flags = lazy.status() & !(CF | OF);
            lazy.set(flags | carry | (carry ^ other) << 11);
        }
        next!(cpu, op.add(1), tlb)
    }
    /// bt r, r
    fn bt_rr<const S>(cpu, op, tlb) {
        let bit = whole(cpu, (*op).b) & u64::from(8 * S - 1);
        let lazy = &mut (*cpu).lazy;
        let flags = lazy.status() & !CF;
        lazy.set(flags | whole(cpu, (*op).a) >> bit & 1);
        next!(cpu, op.add(1), tlb)
    }
    /// bt r, imm (in `b`)
    fn bt_ri<const S>(cpu, op, tlb) {
        let lazy = &mut (*cpu).lazy;
        let flags = lazy.status() & !CF;
        lazy.set(flags | whole(cpu, (*op).a) >> (*op).b & 1);
        next!(cpu, op.add(1), tlb)
    }
    /// cdq, cqo
    fn sign_data<const S>(cpu, op, tlb) {
        put::<S>(cpu, 2, (extend::<S>(get::<S>(cpu, 0)) >> 63) as u64);
        next!(cpu, op.add(1), tlb)
    }
    /// bswap r
    fn bswap<const S>(cpu, op, tlb) {
        let a = whole(cpu, (*op).a);
        put::<S>(cpu, (*op).a, if S == 8 { a.swap_bytes() } else { u64::from((a as u32).swap_bytes()) });
        next!(cpu, op.add(1), tlb)
    }
    /// mov r, imm of 64 bits (in a slot)
    fn mov_wide<>(cpu, op, tlb) {
        put::<8>(cpu, (*op).a, (*op.add(1)).as_word());
        next!(cpu, op.add(2), tlb)
    }
    /// push imm
    fn push_i<>(cpu, op, tlb) {
        let top = whole(cpu, 4).wrapping_sub(8);
        let at = writable(tlb, top, 8);
        if at.is_null() { return slow(cpu, op, tlb); }
        poke::<8>(at, i64::from((*op).imm) as u64);
        put::<8>(cpu, 4, top);
        next!(cpu, op.add(1), tlb)
    }
    /// push m
    fn push_m<>(cpu, op, tlb) {
        let from = readable(tlb, address(cpu, op), 8);
        let top = whole(cpu, 4).wrapping_sub(8);
        let at = writable(tlb, top, 8);
        if from.is_null() || at.is_null() { return slow(cpu, op, tlb); }
        poke::<8>(at, peek::<8>(from));
        put::<8>(cpu, 4, top);
        next!(cpu, op.add(1), tlb)
    }
    /// leave
    fn leave<>(cpu, op, tlb) {
        let frame = whole(cpu, 5);
        let at = readable(tlb, frame, 8);
        if at.is_null() { return slow(cpu, op, tlb); }
        put::<8>(cpu, 4, frame.wrapping_add(8));
        put::<8>(cpu, 5, peek::<8>(at));
        next!(cpu, op.add(1), tlb)
    }
    /// adc (K ADD) and sbb (K SUB) r, r
    fn carried_rr<const K, const S>(cpu, op, tlb) {
        let (a, b) = (get::<S>(cpu, (*op).a), get::<S>(cpu, (*op).b));
        let carry = (*cpu).lazy.carry();
        let c = u64::from(carry);
        let result = if K == ADD { a.wrapping_add(b).wrapping_add(c) } else { a.wrapping_sub(b).wrapping_sub(c) };
        let result = result & ones::<S>();
        put::<S>(cpu, (*op).a, result);
        let lazy = &mut (*cpu).lazy;
        let without = if K == ADD { const { cc(kind::ADD, S) } } else { const { cc(kind::SUB, S) } };
        (lazy.dst, lazy.src, lazy.cc) = (result, b, without + 4 * u32::from(carry));
        next!(cpu, op.add(1), tlb)
    }
    /// adc and sbb r, imm
    fn carried_ri<const K, const S>(cpu, op, tlb) {
        let (a, b) = (get::<S>(cpu, (*op).a), i64::from((*op).imm) as u64 & ones::<S>());
        let carry = (*cpu).lazy.carry();
        let c = u64::from(carry);
        let result = if K == ADD { a.wrapping_add(b).wrapping_add(c) } else { a.wrapping_sub(b).wrapping_sub(c) };
        let result = result & ones::<S>();
        put::<S>(cpu, (*op).a, result);
        let lazy = &mut (*cpu).lazy;
        let without = if K == ADD { const { cc(kind::ADD, S) } } else { const { cc(kind::SUB, S) } };
        (lazy.dst, lazy.src, lazy.cc) = (result, b, without + 4 * u32::from(carry));
        next!(cpu, op.add(1), tlb)
    }
    /// xchg r, r
    fn xchg_rr<const S>(cpu, op, tlb) {
        let (a, b) = (whole(cpu, (*op).a), whole(cpu, (*op).b));
        put::<S>(cpu, (*op).a, b);
        put::<S>(cpu, (*op).b, a);
        next!(cpu, op.add(1), tlb)
    }
    /// xchg m, r
    fn xchg_mr<const S>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let old = peek::<S>(at);
        poke::<S>(at, get::<S>(cpu, (*op).a));
        put::<S>(cpu, (*op).a, old);
        next!(cpu, op.add(1), tlb)
    }
    /// xadd m, r
    fn xadd_mr<const S>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let (a, b) = (peek::<S>(at), get::<S>(cpu, (*op).a));
        let sum = a.wrapping_add(b) & ones::<S>();
        put::<S>(cpu, (*op).a, a);
        poke::<S>(at, sum);
        set_flags::<ADD, S>(cpu, sum, b);
        next!(cpu, op.add(1), tlb)
    }
    /// cmpxchg m, r
    fn cmpxchg_mr<const S>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(S));
        if at.is_null() { return slow(cpu, op, tlb); }
        let (old, accumulator) = (peek::<S>(at), get::<S>(cpu, 0));
        set_flags::<SUB, S>(cpu, accumulator.wrapping_sub(old) & ones::<S>(), old);
        if accumulator == old {
            poke::<S>(at, get::<S>(cpu, (*op).a));
        } else {
            put::<S>(cpu, 0, old);
        }
        next!(cpu, op.add(1), tlb)
    }
}
