//! MMX, and the SSE instructions that use MMX registers: the host's own MMX instructions.
//!
//! MMn is the significand of physical x87 register n. Any MMX instruction sets TOP to 0 and all tags to valid, EMMS
//! all tags to empty; a write sets sign and exponent to ones (SDM vol. 1, 9.5).

use core::arch::asm;

use iced_x86::Code;

use super::{
    FpClass, FpFault, FpInsn, FpOperands, FpState, GprUse,
    MemAccess::ReadWrite,
    lanes::{load, store},
};

type Done = Result<(), FpFault>;

/// The x87 becomes an MMX register file.
fn enter(s: &mut FpState) {
    s.fsw &= !0x3800;
    s.tags = 0xff;
}

/// MM register `number`.
fn get(s: &FpState, number: u8) -> u64 {
    load::<8>(&s.x87[usize::from(number & 7)])[0]
}

/// Writes MM register `number`.
fn set(s: &mut FpState, number: u8, value: u64) {
    let register = &mut s.x87[usize::from(number & 7)];
    register[..8].copy_from_slice(&value.to_le_bytes());
    register[8..10].fill(0xff);
}

/// The second operand: `N` bytes of memory or an MM register.
fn source<const N: usize>(s: &FpState, o: &FpOperands<'_>) -> u64 {
    if o.mem.is_empty() { get(s, o.src) } else { load::<N>(o.mem)[0] }
}

/// An operation `mm, mm`.
trait MmxOp {
    /// The new value of the first operand.
    fn apply(first: u64, second: u64) -> u64;
}

/// Executes `O` with a source of `N` bytes.
fn run<O: MmxOp, const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = O::apply(get(s, o.dst), source::<N>(s, o));
    set(s, o.dst, value);
    Ok(())
}

/// Executes the shift `O` by the immediate.
fn run_shift<O: MmxOp>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = O::apply(get(s, o.dst), u64::from(o.imm));
    set(s, o.dst, value);
    Ok(())
}

/// `Code mnemonic bytes-of-a-memory-source;`
macro_rules! mmx_ops {
    ($($code:ident $mnemonic:ident $len:literal;)*) => {
        $(
            #[allow(non_camel_case_types, reason = "named after the encoding")]
            struct $code;
            impl MmxOp for $code {
                fn apply(first: u64, second: u64) -> u64 {
                    let mut value = first;
                    // SAFETY: the x87 and MMX registers are given up, EMMS leaves them as the ABI asks for.
                    unsafe {
                        asm!(
                            "movq mm0, {first}",
                            "movq mm1, {second}",
                            concat!(stringify!($mnemonic), " mm0, mm1"),
                            "movq {first}, mm0",
                            "emms",
                            first = inout(reg) value,
                            second = in(reg) second,
                            out("mm0") _, out("mm1") _, out("mm2") _, out("mm3") _,
                            out("mm4") _, out("mm5") _, out("mm6") _, out("mm7") _,
                            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                            options(nomem, nostack),
                        );
                    }
                    value
                }
            }
        )*
        fn plain(code: Code) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => mmx(run::<$code, $len>).reads($len),)*
                _ => return None,
            })
        }
    };
}

mmx_ops! {
    Punpcklbw_mm_mmm32 punpcklbw 4;
    Punpcklwd_mm_mmm32 punpcklwd 4;
    Punpckldq_mm_mmm32 punpckldq 4;
    Packsswb_mm_mmm64 packsswb 8;
    Pcmpgtb_mm_mmm64 pcmpgtb 8;
    Pcmpgtw_mm_mmm64 pcmpgtw 8;
    Pcmpgtd_mm_mmm64 pcmpgtd 8;
    Packuswb_mm_mmm64 packuswb 8;
    Punpckhbw_mm_mmm64 punpckhbw 8;
    Punpckhwd_mm_mmm64 punpckhwd 8;
    Punpckhdq_mm_mmm64 punpckhdq 8;
    Packssdw_mm_mmm64 packssdw 8;
    Pcmpeqb_mm_mmm64 pcmpeqb 8;
    Pcmpeqw_mm_mmm64 pcmpeqw 8;
    Pcmpeqd_mm_mmm64 pcmpeqd 8;
    Psrlw_mm_mmm64 psrlw 8;
    Psrld_mm_mmm64 psrld 8;
    Psrlq_mm_mmm64 psrlq 8;
    Paddq_mm_mmm64 paddq 8;
    Pmullw_mm_mmm64 pmullw 8;
    Psubusb_mm_mmm64 psubusb 8;
    Psubusw_mm_mmm64 psubusw 8;
    Pminub_mm_mmm64 pminub 8;
    Pand_mm_mmm64 pand 8;
    Paddusb_mm_mmm64 paddusb 8;
    Paddusw_mm_mmm64 paddusw 8;
    Pmaxub_mm_mmm64 pmaxub 8;
    Pandn_mm_mmm64 pandn 8;
    Pavgb_mm_mmm64 pavgb 8;
    Psraw_mm_mmm64 psraw 8;
    Psrad_mm_mmm64 psrad 8;
    Pavgw_mm_mmm64 pavgw 8;
    Pmulhuw_mm_mmm64 pmulhuw 8;
    Pmulhw_mm_mmm64 pmulhw 8;
    Psubsb_mm_mmm64 psubsb 8;
    Psubsw_mm_mmm64 psubsw 8;
    Pminsw_mm_mmm64 pminsw 8;
    Por_mm_mmm64 por 8;
    Paddsb_mm_mmm64 paddsb 8;
    Paddsw_mm_mmm64 paddsw 8;
    Pmaxsw_mm_mmm64 pmaxsw 8;
    Pxor_mm_mmm64 pxor 8;
    Psllw_mm_mmm64 psllw 8;
    Pslld_mm_mmm64 pslld 8;
    Psllq_mm_mmm64 psllq 8;
    Pmuludq_mm_mmm64 pmuludq 8;
    Pmaddwd_mm_mmm64 pmaddwd 8;
    Psadbw_mm_mmm64 psadbw 8;
    Psubb_mm_mmm64 psubb 8;
    Psubw_mm_mmm64 psubw 8;
    Psubd_mm_mmm64 psubd 8;
    Psubq_mm_mmm64 psubq 8;
    Paddb_mm_mmm64 paddb 8;
    Paddw_mm_mmm64 paddw 8;
    Paddd_mm_mmm64 paddd 8;
    Pshufb_mm_mmm64 pshufb 8;
    Phaddw_mm_mmm64 phaddw 8;
    Phaddd_mm_mmm64 phaddd 8;
    Phaddsw_mm_mmm64 phaddsw 8;
    Pmaddubsw_mm_mmm64 pmaddubsw 8;
    Phsubw_mm_mmm64 phsubw 8;
    Phsubd_mm_mmm64 phsubd 8;
    Phsubsw_mm_mmm64 phsubsw 8;
    Psignb_mm_mmm64 psignb 8;
    Psignw_mm_mmm64 psignw 8;
    Psignd_mm_mmm64 psignd 8;
    Pmulhrsw_mm_mmm64 pmulhrsw 8;
    Pabsb_mm_mmm64 pabsb 8;
    Pabsw_mm_mmm64 pabsw 8;
    Pabsd_mm_mmm64 pabsd 8;
}

/// An instruction of class MMX.
const fn mmx(run: super::FpRun) -> FpInsn {
    FpInsn::new(FpClass::Mmx, run)
}

/// Shifts by an immediate.
fn shifts(code: Code) -> Option<FpInsn> {
    Some(mmx(match code {
        Code::Psrlw_mm_imm8 => run_shift::<Psrlw_mm_mmm64>,
        Code::Psrld_mm_imm8 => run_shift::<Psrld_mm_mmm64>,
        Code::Psrlq_mm_imm8 => run_shift::<Psrlq_mm_mmm64>,
        Code::Psraw_mm_imm8 => run_shift::<Psraw_mm_mmm64>,
        Code::Psrad_mm_imm8 => run_shift::<Psrad_mm_mmm64>,
        Code::Psllw_mm_imm8 => run_shift::<Psllw_mm_mmm64>,
        Code::Pslld_mm_imm8 => run_shift::<Pslld_mm_mmm64>,
        Code::Psllq_mm_imm8 => run_shift::<Psllq_mm_mmm64>,
        _ => return None,
    }))
}

fn emms(s: &mut FpState, _: &mut FpOperands<'_>) -> Done {
    enter(s);
    s.tags = 0;
    Ok(())
}

/// mm <- 32-bit general register or memory, zero-extended.
fn movd_in(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = if o.mem.is_empty() { o.gpr_in } else { load::<4>(o.mem)[0] };
    set(s, o.dst, value & 0xffff_ffff);
    Ok(())
}

/// mm <- 64-bit general register or memory.
fn movq_in(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = if o.mem.is_empty() { o.gpr_in } else { load::<8>(o.mem)[0] };
    set(s, o.dst, value);
    Ok(())
}

/// 32-bit general register or memory <- mm.
fn movd_out(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = get(s, o.src) & 0xffff_ffff;
    if o.mem.is_empty() {
        o.gpr_out = value;
    } else {
        store::<4>(o.mem, [value, 0]);
    }
    Ok(())
}

/// 64-bit general register or memory <- mm.
fn movq_out(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = get(s, o.src);
    if o.mem.is_empty() {
        o.gpr_out = value;
    } else {
        store::<8>(o.mem, [value, 0]);
    }
    Ok(())
}

/// mm <- mm or memory.
fn movq_load(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = source::<8>(s, o);
    set(s, o.dst, value);
    Ok(())
}

/// mm or memory <- mm.
fn movq_store(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = get(s, o.src);
    if o.mem.is_empty() {
        set(s, o.dst, value);
    } else {
        store::<8>(o.mem, [value, 0]);
    }
    Ok(())
}

/// xmm <- mm, zero-extended.
fn movq2dq(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    *s.xmm_mut(o.dst) = [get(s, o.src), 0];
    Ok(())
}

/// mm <- low half of xmm.
fn movdq2q(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = s.xmm(o.src)[0];
    set(s, o.dst, value);
    Ok(())
}

fn pshufw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = super::sse_imm::shuffle_words(source::<8>(s, o), o.imm);
    set(s, o.dst, value);
    Ok(())
}

fn palignr(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let both = u128::from(get(s, o.dst)) << 64 | u128::from(source::<8>(s, o));
    let value = both.checked_shr(u32::from(o.imm) * 8).unwrap_or(0) as u64;
    set(s, o.dst, value);
    Ok(())
}

fn pinsrw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let word = if o.mem.is_empty() { o.gpr_in & 0xffff } else { load::<2>(o.mem)[0] };
    let shift = 16 * (o.imm & 3);
    let value = get(s, o.dst) & !(0xffff << shift) | word << shift;
    set(s, o.dst, value);
    Ok(())
}

fn pextrw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    o.gpr_out = get(s, o.src) >> (16 * (o.imm & 3)) & 0xffff;
    Ok(())
}

fn pmovmskb(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let value = get(s, o.src);
    o.gpr_out = (0..8).fold(0, |mask, i| mask | (value >> (8 * i + 7) & 1) << i);
    Ok(())
}

/// Bytes of memory <- bytes of mm whose mask byte has its top bit set. The core gives the old contents.
fn maskmovq(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    enter(s);
    let (data, mask) = (get(s, o.dst).to_le_bytes(), get(s, o.src).to_le_bytes());
    for ((to, from), mask) in o.mem.iter_mut().zip(data).zip(mask) {
        if mask & 0x80 != 0 {
            *to = from;
        }
    }
    Ok(())
}

/// Two integers of mm or memory to numbers, through the same operation on XMM. A memory source leaves the x87 alone.
fn from_integers(s: &mut FpState, o: &mut FpOperands<'_>, xmm: super::FpRun) -> Result<u64, FpFault> {
    let integers = source::<8>(s, o);
    // Before the operation: the hardware has done it also where #XM follows.
    if o.mem.is_empty() {
        enter(s);
    }
    Ok(on_xmm(s, [integers, 0], xmm)?[0])
}

/// Executes the operation `xmm` with `source` as its second operand; no register changes.
fn on_xmm(s: &mut FpState, source: [u64; 2], xmm: super::FpRun) -> Result<[u64; 2], FpFault> {
    let (kept, mut mem) = (s.xmm(0), super::lanes::to_bytes(source));
    let mut operands = FpOperands {
        dst: 0,
        src: 0,
        imm: 0,
        gpr_in: 0,
        gpr_out: 0,
        gpr2_in: 0,
        mem: &mut mem,
        flags: 0,
        skip_store: false,
    };
    let outcome = xmm(s, &mut operands);
    let result = s.xmm(0);
    *s.xmm_mut(0) = kept;
    outcome.map(|()| result)
}

fn cvtpi2ps(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = from_integers(s, o, super::sse_float::CVTDQ2PS)?;
    s.xmm_mut(o.dst)[0] = value;
    Ok(())
}

fn cvtpi2pd(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let integers = source::<8>(s, o);
    if o.mem.is_empty() {
        enter(s);
    }
    let double = |integer: u64| f64::from(integer as u32 as i32).to_bits();
    *s.xmm_mut(o.dst) = [double(integers), double(integers >> 32)];
    Ok(())
}

/// mm <- two numbers of xmm or memory, through the same operation on XMM.
fn to_integers<const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>, xmm: super::FpRun) -> Done {
    let mut numbers = super::lanes::source::<N>(s, o);
    if N == 8 {
        numbers[1] = 0;
    }
    enter(s);
    let result = on_xmm(s, numbers, xmm)?;
    set(s, o.dst, result[0]);
    Ok(())
}

fn cvtps2pi(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    to_integers::<8>(s, o, super::sse_float::CVTPS2DQ)
}

fn cvttps2pi(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    to_integers::<8>(s, o, super::sse_float::CVTTPS2DQ)
}

fn cvtpd2pi(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    to_integers::<16>(s, o, super::sse_float::CVTPD2DQ)
}

fn cvttpd2pi(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    to_integers::<16>(s, o, super::sse_float::CVTTPD2DQ)
}

/// The instructions of this file.
pub(super) fn lookup(code: Code) -> Option<FpInsn> {
    Some(match code {
        Code::Emms => mmx(emms),
        Code::Movd_mm_rm32 => mmx(movd_in).reads(4).gpr(GprUse::In),
        Code::Movq_mm_rm64 => mmx(movq_in).reads(8).gpr(GprUse::In),
        Code::Movd_rm32_mm => mmx(movd_out).writes(4).gpr(GprUse::Out),
        Code::Movq_rm64_mm => mmx(movq_out).writes(8).gpr(GprUse::Out),
        Code::Movq_mm_mmm64 => mmx(movq_load).reads(8),
        Code::Movq_mmm64_mm | Code::Movntq_m64_mm => mmx(movq_store).writes(8),
        Code::Movq2dq_xmm_mm => mmx(movq2dq),
        Code::Movdq2q_mm_xmm => mmx(movdq2q),
        Code::Pshufw_mm_mmm64_imm8 => mmx(pshufw).reads(8),
        Code::Palignr_mm_mmm64_imm8 => mmx(palignr).reads(8),
        Code::Pinsrw_mm_r32m16_imm8 | Code::Pinsrw_mm_r64m16_imm8 => mmx(pinsrw).reads(2).gpr(GprUse::In),
        Code::Pextrw_r32_mm_imm8 | Code::Pextrw_r64_mm_imm8 => mmx(pextrw).gpr(GprUse::Out),
        Code::Pmovmskb_r32_mm | Code::Pmovmskb_r64_mm => mmx(pmovmskb).gpr(GprUse::Out),
        Code::Maskmovq_rDI_mm_mm => mmx(maskmovq).mem(ReadWrite, 8),
        Code::Cvtpi2ps_xmm_mmm64 => mmx(cvtpi2ps).reads(8),
        Code::Cvtpi2pd_xmm_mmm64 => mmx(cvtpi2pd).reads(8),
        Code::Cvtps2pi_mm_xmmm64 => mmx(cvtps2pi).reads(8),
        Code::Cvttps2pi_mm_xmmm64 => mmx(cvttps2pi).reads(8),
        Code::Cvtpd2pi_mm_xmmm128 => mmx(cvtpd2pi).reads(16).aligned(),
        Code::Cvttpd2pi_mm_xmmm128 => mmx(cvttpd2pi).reads(16).aligned(),
        _ => return plain(code).or_else(|| shifts(code)),
    })
}
