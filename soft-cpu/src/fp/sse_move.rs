//! SSE moves: plain copies between XMM registers, memory and general registers.

use iced_x86::Code;

use super::{
    FpFault, FpInsn, FpOperands, FpState, GprUse,
    lanes::{bytes, dwords, from_dwords, load, source, store},
};

type Done = Result<(), FpFault>;

/// xmm <- xmm, the whole register.
fn copy(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    *s.xmm_mut(o.dst) = s.xmm(o.src);
    Ok(())
}

/// xmm <- memory of `N` bytes, zero-extended.
fn load_zero<const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    *s.xmm_mut(o.dst) = load::<N>(o.mem);
    Ok(())
}

/// memory of `N` bytes <- low part of xmm.
fn store_low<const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    store::<N>(o.mem, s.xmm(o.src));
    Ok(())
}

/// memory of 8 bytes <- high half of xmm (MOVHPS, MOVHPD).
fn store_high(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    store::<8>(o.mem, [s.xmm(o.src)[1], 0]);
    Ok(())
}

/// Low doubleword of xmm <- xmm (MOVSS between registers).
fn merge_32(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let low = s.xmm(o.src)[0] & 0xffff_ffff;
    let to = s.xmm_mut(o.dst);
    to[0] = to[0] & !0xffff_ffff | low;
    Ok(())
}

/// Low half of xmm <- low half of xmm (MOVSD between registers).
fn merge_64(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.xmm_mut(o.dst)[0] = s.xmm(o.src)[0];
    Ok(())
}

/// xmm <- low half of xmm, zero-extended (MOVQ between registers).
fn copy_low_zero(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    *s.xmm_mut(o.dst) = [s.xmm(o.src)[0], 0];
    Ok(())
}

/// Low half of xmm <- memory (MOVLPS, MOVLPD).
fn load_low(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.xmm_mut(o.dst)[0] = u64::from_le_bytes(bytes(o.mem));
    Ok(())
}

/// High half of xmm <- memory (MOVHPS, MOVHPD).
fn load_high(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.xmm_mut(o.dst)[1] = u64::from_le_bytes(bytes(o.mem));
    Ok(())
}

/// Low half <- high half of the source (MOVHLPS).
fn movhlps(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.xmm_mut(o.dst)[0] = s.xmm(o.src)[1];
    Ok(())
}

/// High half <- low half of the source (MOVLHPS).
fn movlhps(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.xmm_mut(o.dst)[1] = s.xmm(o.src)[0];
    Ok(())
}

fn movddup(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let low = source::<8>(s, o)[0];
    *s.xmm_mut(o.dst) = [low, low];
    Ok(())
}

fn movsldup(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let d = dwords(source::<16>(s, o));
    *s.xmm_mut(o.dst) = from_dwords([d[0], d[0], d[2], d[2]]);
    Ok(())
}

fn movshdup(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let d = dwords(source::<16>(s, o));
    *s.xmm_mut(o.dst) = from_dwords([d[1], d[1], d[3], d[3]]);
    Ok(())
}

/// xmm <- 32-bit general register or memory, zero-extended (MOVD).
fn movd_in(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = if o.mem.is_empty() { o.gpr_in } else { load::<4>(o.mem)[0] };
    *s.xmm_mut(o.dst) = [value & 0xffff_ffff, 0];
    Ok(())
}

/// xmm <- 64-bit general register or memory, zero-extended (MOVQ with REX.W).
fn movq_in(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = if o.mem.is_empty() { o.gpr_in } else { load::<8>(o.mem)[0] };
    *s.xmm_mut(o.dst) = [value, 0];
    Ok(())
}

/// 32-bit general register or memory <- xmm (MOVD).
fn movd_out(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = s.xmm(o.src);
    if o.mem.is_empty() {
        o.gpr_out = value[0] & 0xffff_ffff;
    } else {
        store::<4>(o.mem, value);
    }
    Ok(())
}

/// 64-bit general register or memory <- xmm (MOVQ with REX.W).
fn movq_out(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = s.xmm(o.src);
    if o.mem.is_empty() {
        o.gpr_out = value[0];
    } else {
        store::<8>(o.mem, value);
    }
    Ok(())
}

/// Bytes of memory <- bytes of xmm whose mask byte has its top bit set. The core gives the old contents.
fn maskmovdqu(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let data = super::lanes::to_bytes(s.xmm(o.dst));
    let mask = super::lanes::to_bytes(s.xmm(o.src));
    for ((to, from), mask) in o.mem.iter_mut().zip(data).zip(mask) {
        if mask & 0x80 != 0 {
            *to = from;
        }
    }
    Ok(())
}

/// The moves.
pub(super) fn lookup(code: Code, mem: bool) -> Option<FpInsn> {
    use super::MemAccess::ReadWrite;
    let load_or_copy = if mem { load_zero::<16> } else { copy };
    let store_or_copy = if mem { store_low::<16> } else { copy };
    Some(match code {
        Code::Movups_xmm_xmmm128 | Code::Movupd_xmm_xmmm128 | Code::Movdqu_xmm_xmmm128 => {
            FpInsn::sse(load_or_copy).reads(16)
        }
        Code::Lddqu_xmm_m128 => FpInsn::sse(load_zero::<16>).reads(16),
        Code::Movaps_xmm_xmmm128 | Code::Movapd_xmm_xmmm128 | Code::Movdqa_xmm_xmmm128 => {
            FpInsn::sse(load_or_copy).reads(16).aligned()
        }
        Code::Movntdqa_xmm_m128 => FpInsn::sse(load_zero::<16>).reads(16).aligned(),
        Code::Movups_xmmm128_xmm | Code::Movupd_xmmm128_xmm | Code::Movdqu_xmmm128_xmm => {
            FpInsn::sse(store_or_copy).writes(16)
        }
        Code::Movaps_xmmm128_xmm | Code::Movapd_xmmm128_xmm | Code::Movdqa_xmmm128_xmm => {
            FpInsn::sse(store_or_copy).writes(16).aligned()
        }
        Code::Movntps_m128_xmm | Code::Movntpd_m128_xmm | Code::Movntdq_m128_xmm => {
            FpInsn::sse(store_low::<16>).writes(16).aligned()
        }
        Code::Movss_xmm_xmmm32 => FpInsn::sse(if mem { load_zero::<4> } else { merge_32 }).reads(4),
        Code::Movsd_xmm_xmmm64 => FpInsn::sse(if mem { load_zero::<8> } else { merge_64 }).reads(8),
        Code::Movss_xmmm32_xmm => FpInsn::sse(if mem { store_low::<4> } else { merge_32 }).writes(4),
        Code::Movsd_xmmm64_xmm => FpInsn::sse(if mem { store_low::<8> } else { merge_64 }).writes(8),
        Code::Movq_xmm_xmmm64 => FpInsn::sse(if mem { load_zero::<8> } else { copy_low_zero }).reads(8),
        Code::Movq_xmmm64_xmm => FpInsn::sse(if mem { store_low::<8> } else { copy_low_zero }).writes(8),
        Code::Movlps_xmm_m64 | Code::Movlpd_xmm_m64 => FpInsn::sse(load_low).reads(8),
        Code::Movhps_xmm_m64 | Code::Movhpd_xmm_m64 => FpInsn::sse(load_high).reads(8),
        Code::Movlps_m64_xmm | Code::Movlpd_m64_xmm => FpInsn::sse(store_low::<8>).writes(8),
        Code::Movhps_m64_xmm | Code::Movhpd_m64_xmm => FpInsn::sse(store_high).writes(8),
        Code::Movhlps_xmm_xmm => FpInsn::sse(movhlps),
        Code::Movlhps_xmm_xmm => FpInsn::sse(movlhps),
        Code::Movddup_xmm_xmmm64 => FpInsn::sse(movddup).reads(8),
        Code::Movsldup_xmm_xmmm128 => FpInsn::sse(movsldup).reads(16).aligned(),
        Code::Movshdup_xmm_xmmm128 => FpInsn::sse(movshdup).reads(16).aligned(),
        Code::Movd_xmm_rm32 => FpInsn::sse(movd_in).reads(4).gpr(GprUse::In),
        Code::Movq_xmm_rm64 => FpInsn::sse(movq_in).reads(8).gpr(GprUse::In),
        Code::Movd_rm32_xmm => FpInsn::sse(movd_out).writes(4).gpr(GprUse::Out),
        Code::Movq_rm64_xmm => FpInsn::sse(movq_out).writes(8).gpr(GprUse::Out),
        Code::Maskmovdqu_rDI_xmm_xmm => FpInsn::sse(maskmovdqu).mem(ReadWrite, 16),
        _ => return None,
    })
}
