//! SSE moves, and any SSE operation on two registers or a register and memory, as fast handlers.
//!
//! They run only while CR0 and CR4 allow SSE (`Cpu::sse_on`); everything out of the ordinary goes to `slow`.

use iced_x86::Code;

use super::{
    operand::{address, get, handlers, peek, poke, put, readable, writable},
    register, with_memory,
};
use crate::{
    block::{Handler, Op},
    cpu::Cpu,
    fp::{FloatOp, VectorOp},
    handler::{next, slow},
    insn::{Insn, Opd},
};

/// An XMM register, low quadword first.
type X = [u64; 2];

#[inline(always)]
unsafe fn xmm(cpu: *mut Cpu, n: u8) -> *mut X {
    // SAFETY: the contract of `operand`; the number is masked.
    unsafe { (&raw mut (*cpu).fp.xmm).cast::<X>().add(usize::from(n & 15)) }
}

/// Host address of a readable operand of `N` bytes, or null; sixteen bytes must be aligned.
#[inline(always)]
unsafe fn source<const N: u8>(cpu: *mut Cpu, op: *const Op, tlb: *const crate::tlb::Entry) -> *const u8 {
    // SAFETY: the contract of `operand`.
    unsafe {
        let at = readable(tlb, address(cpu, op), u64::from(N));
        if N == 16 && at.addr() & 15 != 0 { std::ptr::null() } else { at }
    }
}

/// `N` bytes, zero-extended.
#[inline(always)]
unsafe fn load<const N: u8>(at: *const u8) -> X {
    // SAFETY: the TLB hit covers `N` bytes.
    unsafe { if N == 16 { at.cast::<X>().read_unaligned() } else { [peek::<N>(at), 0] } }
}

handlers! {
    /// xmm <- xmm
    fn copy<>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        *xmm(cpu, (*op).a) = *xmm(cpu, (*op).b);
        next!(cpu, op.add(1), tlb)
    }
    /// xmm <- N bytes of memory, zero-extended; ALIGNED 1: sixteen must be aligned
    fn load_zero<const N, const ALIGNED>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), u64::from(N));
        if at.is_null() || ALIGNED == 1 && at.addr() & 15 != 0 || !(*cpu).sse_on { return slow(cpu, op, tlb); }
        *xmm(cpu, (*op).a) = load::<N>(at);
        next!(cpu, op.add(1), tlb)
    }
    /// N bytes of memory <- low part of xmm
    fn store_low<const N, const ALIGNED>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), u64::from(N));
        if at.is_null() || ALIGNED == 1 && at.addr() & 15 != 0 || !(*cpu).sse_on { return slow(cpu, op, tlb); }
        let value = *xmm(cpu, (*op).a);
        if N == 16 { at.cast::<X>().write_unaligned(value); } else { poke::<N>(at, value[0]); }
        next!(cpu, op.add(1), tlb)
    }
    /// 8 bytes of memory <- high half (movhps)
    fn store_high<>(cpu, op, tlb) {
        let at = writable(tlb, address(cpu, op), 8);
        if at.is_null() || !(*cpu).sse_on { return slow(cpu, op, tlb); }
        poke::<8>(at, (*xmm(cpu, (*op).a))[1]);
        next!(cpu, op.add(1), tlb)
    }
    /// Half H of xmm <- 8 bytes of memory (movlps, movhps)
    fn load_half<const H>(cpu, op, tlb) {
        let at = readable(tlb, address(cpu, op), 8);
        if at.is_null() || !(*cpu).sse_on { return slow(cpu, op, tlb); }
        (*xmm(cpu, (*op).a))[H as usize] = peek::<8>(at);
        next!(cpu, op.add(1), tlb)
    }
    /// Half TO of xmm <- half FROM of xmm (movhlps, movlhps, movsd)
    fn half<const TO, const FROM>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        (*xmm(cpu, (*op).a))[TO as usize] = (*xmm(cpu, (*op).b))[FROM as usize];
        next!(cpu, op.add(1), tlb)
    }
    /// Low doubleword of xmm <- xmm (movss)
    fn merge_32<>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        let low = (*xmm(cpu, (*op).b))[0] & 0xffff_ffff;
        let to = &mut (*xmm(cpu, (*op).a))[0];
        *to = *to & !0xffff_ffff | low;
        next!(cpu, op.add(1), tlb)
    }
    /// xmm <- low half of xmm, zero-extended (movq)
    fn copy_low<>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        *xmm(cpu, (*op).a) = [(*xmm(cpu, (*op).b))[0], 0];
        next!(cpu, op.add(1), tlb)
    }
    /// xmm <- general register of S bytes (movd, movq)
    fn from_general<const S>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        *xmm(cpu, (*op).a) = [get::<S>(cpu, (*op).b), 0];
        next!(cpu, op.add(1), tlb)
    }
    /// general register of S bytes <- xmm (movd, movq)
    fn to_general<const S>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        put::<S>(cpu, (*op).a, (*xmm(cpu, (*op).b))[0]);
        next!(cpu, op.add(1), tlb)
    }
    /// general register <- top bits of the bytes (pmovmskb)
    fn byte_mask<>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        put::<8>(cpu, (*op).a, u64::from(crate::fp::byte_mask(*xmm(cpu, (*op).b))));
        next!(cpu, op.add(1), tlb)
    }
    /// Any shuffle of doublewords by an immediate (pshufd)
    fn shuffle<>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        let from = xmm(cpu, (*op).b).cast::<u32>();
        let imm = (*op).imm as usize;
        let pick = |i: usize| u64::from(from.add(imm >> (2 * i) & 3).read());
        *xmm(cpu, (*op).a) = [pick(0) | pick(1) << 32, pick(2) | pick(3) << 32];
        next!(cpu, op.add(1), tlb)
    }
    /// An integer or bit operation on two registers
    fn vector_rr<; type O: VectorOp>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        let to = xmm(cpu, (*op).a);
        *to = O::apply(*to, *xmm(cpu, (*op).b));
        next!(cpu, op.add(1), tlb)
    }
    /// An integer or bit operation on a register and N bytes of memory
    fn vector_rm<const N; type O: VectorOp>(cpu, op, tlb) {
        let at = source::<N>(cpu, op, tlb);
        if at.is_null() || !(*cpu).sse_on { return slow(cpu, op, tlb); }
        let to = xmm(cpu, (*op).a);
        *to = O::apply(*to, load::<N>(at));
        next!(cpu, op.add(1), tlb)
    }
    /// A shift by an immediate
    fn vector_ri<; type O: VectorOp>(cpu, op, tlb) {
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        let to = xmm(cpu, (*op).a);
        *to = O::apply(*to, [(*op).imm as u64, 0]);
        next!(cpu, op.add(1), tlb)
    }
    /// An operation on floating-point numbers, where it can raise nothing new
    fn float_rr<; type O: FloatOp>(cpu, op, tlb) {
        let to = xmm(cpu, (*op).a);
        if !(*cpu).sse_on { return slow(cpu, op, tlb); }
        match crate::fp::quietly::<O>((*cpu).fp.mxcsr, *to, *xmm(cpu, (*op).b)) {
            Some(value) => *to = value,
            None => return slow(cpu, op, tlb),
        }
        next!(cpu, op.add(1), tlb)
    }
    /// As `float_rr` with N bytes of memory
    fn float_rm<const N; type O: FloatOp>(cpu, op, tlb) {
        let at = source::<N>(cpu, op, tlb);
        let to = xmm(cpu, (*op).a);
        if at.is_null() || !(*cpu).sse_on { return slow(cpu, op, tlb); }
        match crate::fp::quietly::<O>((*cpu).fp.mxcsr, *to, load::<N>(at)) {
            Some(value) => *to = value,
            None => return slow(cpu, op, tlb),
        }
        next!(cpu, op.add(1), tlb)
    }
}

/// The handlers of a [`VectorOp`].
pub(crate) fn vector_forms<O: VectorOp, const N: u8>(memory: bool) -> Handler {
    if memory { vector_rm::<O, N> } else { vector_rr::<O> }
}

/// The handler of a [`VectorOp`] whose second operand is an immediate count.
pub(crate) fn vector_immediate<O: VectorOp>() -> Handler {
    vector_ri::<O>
}

/// The handlers of a [`FloatOp`].
pub(crate) fn float_forms<O: FloatOp, const N: u8>(memory: bool) -> Handler {
    if memory { float_rm::<O, N> } else { float_rr::<O> }
}

/// The op for an SSE instruction.
pub(super) fn choose(insn: &Insn) -> Option<Op> {
    let memory = insn.a == Opd::Mem || insn.b == Opd::Mem;
    let x = |opd: Opd| if let Opd::X(n) = opd { Some(n) } else { None };
    let two = |run: Handler| Some(Op { run, a: x(insn.a)?, b: x(insn.b)?, c: 0, d: 0, imm: 0 });
    let reads = |run: Handler| with_memory(run, x(insn.a)?, insn);
    let writes = |run: Handler| with_memory(run, x(insn.b)?, insn);
    match insn.code {
        Code::Movups_xmm_xmmm128 | Code::Movupd_xmm_xmmm128 | Code::Movdqu_xmm_xmmm128 if memory => {
            reads(load_zero::<16, 0>)
        }
        Code::Movaps_xmm_xmmm128 | Code::Movapd_xmm_xmmm128 | Code::Movdqa_xmm_xmmm128 if memory => {
            reads(load_zero::<16, 1>)
        }
        Code::Movups_xmmm128_xmm | Code::Movupd_xmmm128_xmm | Code::Movdqu_xmmm128_xmm if memory => {
            writes(store_low::<16, 0>)
        }
        Code::Movaps_xmmm128_xmm | Code::Movapd_xmmm128_xmm | Code::Movdqa_xmmm128_xmm if memory => {
            writes(store_low::<16, 1>)
        }
        Code::Movups_xmm_xmmm128
        | Code::Movupd_xmm_xmmm128
        | Code::Movdqu_xmm_xmmm128
        | Code::Movaps_xmm_xmmm128
        | Code::Movapd_xmm_xmmm128
        | Code::Movdqa_xmm_xmmm128
        | Code::Movups_xmmm128_xmm
        | Code::Movupd_xmmm128_xmm
        | Code::Movdqu_xmmm128_xmm
        | Code::Movaps_xmmm128_xmm
        | Code::Movapd_xmmm128_xmm
        | Code::Movdqa_xmmm128_xmm => two(copy),
        Code::Movntps_m128_xmm | Code::Movntpd_m128_xmm | Code::Movntdq_m128_xmm => {
            writes(store_low::<16, 1>)
        }
        Code::Movss_xmm_xmmm32 if memory => reads(load_zero::<4, 0>),
        Code::Movsd_xmm_xmmm64 | Code::Movq_xmm_xmmm64 if memory => reads(load_zero::<8, 0>),
        Code::Movss_xmmm32_xmm if memory => writes(store_low::<4, 0>),
        Code::Movsd_xmmm64_xmm | Code::Movq_xmmm64_xmm if memory => writes(store_low::<8, 0>),
        Code::Movss_xmm_xmmm32 | Code::Movss_xmmm32_xmm => two(merge_32),
        Code::Movsd_xmm_xmmm64 | Code::Movsd_xmmm64_xmm => two(half::<0, 0>),
        Code::Movq_xmm_xmmm64 | Code::Movq_xmmm64_xmm => two(copy_low),
        Code::Movlps_xmm_m64 | Code::Movlpd_xmm_m64 => reads(load_half::<0>),
        Code::Movhps_xmm_m64 | Code::Movhpd_xmm_m64 => reads(load_half::<1>),
        Code::Movlps_m64_xmm | Code::Movlpd_m64_xmm => writes(store_low::<8, 0>),
        Code::Movhps_m64_xmm | Code::Movhpd_m64_xmm => writes(store_high),
        Code::Movhlps_xmm_xmm => two(half::<0, 1>),
        Code::Movlhps_xmm_xmm => two(half::<1, 0>),
        Code::Movd_xmm_rm32 if memory => reads(load_zero::<4, 0>),
        Code::Movq_xmm_rm64 if memory => reads(load_zero::<8, 0>),
        Code::Movd_rm32_xmm if memory => writes(store_low::<4, 0>),
        Code::Movq_rm64_xmm if memory => writes(store_low::<8, 0>),
        Code::Movd_xmm_rm32 | Code::Movq_xmm_rm64 => {
            let run: Handler =
                if insn.code == Code::Movd_xmm_rm32 { from_general::<4> } else { from_general::<8> };
            Some(Op { run, a: x(insn.a)?, b: register(insn.b)?, c: 0, d: 0, imm: 0 })
        }
        Code::Movd_rm32_xmm | Code::Movq_rm64_xmm => {
            let run: Handler =
                if insn.code == Code::Movd_rm32_xmm { to_general::<4> } else { to_general::<8> };
            Some(Op { run, a: register(insn.a)?, b: x(insn.b)?, c: 0, d: 0, imm: 0 })
        }
        Code::Pmovmskb_r32_xmm | Code::Pmovmskb_r64_xmm => {
            Some(Op { run: byte_mask, a: register(insn.a)?, b: x(insn.b)?, c: 0, d: 0, imm: 0 })
        }
        Code::Pshufd_xmm_xmmm128_imm8 if !memory => Some(Op { imm: insn.imm as i32 & 255, ..two(shuffle)? }),
        code => {
            if let Some(run) = crate::fp::hot_immediate(code) {
                return Some(Op { run, a: x(insn.a)?, b: 0, c: 0, d: 0, imm: insn.imm as i32 & 255 });
            }
            let run = crate::fp::hot(code, memory)?;
            if memory { reads(run) } else { two(run) }
        }
    }
}
