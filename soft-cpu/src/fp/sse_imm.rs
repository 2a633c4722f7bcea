//! SSE operations with an immediate (shuffles, blends, insertion and extraction) and those with a general register
//! or flags as result. Plain Rust, but where the host's instruction is the easier truth.

use core::arch::asm;

use iced_x86::Code;

use super::{
    FpFault, FpInsn, FpOperands, FpRun, FpState, GprUse,
    lanes::{
        X, dwords, from_bytes, from_dwords, from_host, from_words, load, source, store, to_bytes, to_host,
        words,
    },
};

type Done = Result<(), FpFault>;

fn pshufd(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let d = dwords(source::<16>(s, o));
    *s.xmm_mut(o.dst) = from_dwords(core::array::from_fn(|i| d[usize::from(o.imm >> (2 * i) & 3)]));
    Ok(())
}

/// Shuffles the four words of one quadword.
pub(super) fn shuffle_words(quad: u64, imm: u8) -> u64 {
    (0..4).fold(0, |all, i| {
        let from = imm >> (2 * i) & 3;
        all | (quad >> (16 * from) & 0xffff) << (16 * i)
    })
}

fn pshuflw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let [low, high] = source::<16>(s, o);
    *s.xmm_mut(o.dst) = [shuffle_words(low, o.imm), high];
    Ok(())
}

fn pshufhw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let [low, high] = source::<16>(s, o);
    *s.xmm_mut(o.dst) = [low, shuffle_words(high, o.imm)];
    Ok(())
}

fn shufps(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (dwords(s.xmm(o.dst)), dwords(source::<16>(s, o)));
    let pick = |d: &[u32; 4], i: u8| d[usize::from(o.imm >> (2 * i) & 3)];
    *s.xmm_mut(o.dst) = from_dwords([pick(&a, 0), pick(&a, 1), pick(&b, 2), pick(&b, 3)]);
    Ok(())
}

fn shufpd(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (s.xmm(o.dst), source::<16>(s, o));
    *s.xmm_mut(o.dst) = [a[usize::from(o.imm & 1)], b[usize::from(o.imm >> 1 & 1)]];
    Ok(())
}

fn palignr(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (to_bytes(s.xmm(o.dst)), to_bytes(source::<16>(s, o)));
    let at = |i: usize| match i {
        0..16 => b[i],
        16..32 => a[i - 16],
        _ => 0,
    };
    *s.xmm_mut(o.dst) = from_bytes(core::array::from_fn(|i| at(i + usize::from(o.imm))));
    Ok(())
}

fn psrldq(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = u128::from_le_bytes(to_bytes(s.xmm(o.dst)));
    *s.xmm_mut(o.dst) = from_bytes(value.checked_shr(u32::from(o.imm) * 8).unwrap_or(0).to_le_bytes());
    Ok(())
}

fn pslldq(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = u128::from_le_bytes(to_bytes(s.xmm(o.dst)));
    *s.xmm_mut(o.dst) = from_bytes(value.checked_shl(u32::from(o.imm) * 8).unwrap_or(0).to_le_bytes());
    Ok(())
}

fn pblendw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (words(s.xmm(o.dst)), words(source::<16>(s, o)));
    *s.xmm_mut(o.dst) = from_words(core::array::from_fn(|i| if o.imm >> i & 1 != 0 { b[i] } else { a[i] }));
    Ok(())
}

fn blendps(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (dwords(s.xmm(o.dst)), dwords(source::<16>(s, o)));
    *s.xmm_mut(o.dst) = from_dwords(core::array::from_fn(|i| if o.imm >> i & 1 != 0 { b[i] } else { a[i] }));
    Ok(())
}

fn blendpd(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (s.xmm(o.dst), source::<16>(s, o));
    *s.xmm_mut(o.dst) = core::array::from_fn(|i| if o.imm >> i & 1 != 0 { b[i] } else { a[i] });
    Ok(())
}

fn insertps(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let from = if o.mem.is_empty() { usize::from(o.imm >> 6) } else { 0 };
    let value = dwords(source::<4>(s, o))[from];
    let mut d = dwords(s.xmm(o.dst));
    d[usize::from(o.imm >> 4 & 3)] = value;
    *s.xmm_mut(o.dst) = from_dwords(core::array::from_fn(|i| if o.imm >> i & 1 != 0 { 0 } else { d[i] }));
    Ok(())
}

/// Sums of absolute differences of four bytes of the source at eight places of the first operand.
fn mpsadbw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (to_bytes(s.xmm(o.dst)), to_bytes(source::<16>(s, o)));
    let (first, second) = (usize::from(o.imm >> 2 & 1) * 4, usize::from(o.imm & 3) * 4);
    *s.xmm_mut(o.dst) = from_words(core::array::from_fn(|i| {
        (0..4).map(|j| u16::from(a[first + i + j].abs_diff(b[second + j]))).sum()
    }));
    Ok(())
}

/// The inserted value: the low `N` bytes of a general register, or memory.
fn inserted<const N: usize>(o: &FpOperands<'_>) -> u64 {
    if o.mem.is_empty() { o.gpr_in } else { load::<N>(o.mem)[0] }
}

fn pinsrb(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mut b = to_bytes(s.xmm(o.dst));
    b[usize::from(o.imm & 15)] = inserted::<1>(o) as u8;
    *s.xmm_mut(o.dst) = from_bytes(b);
    Ok(())
}

fn pinsrw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mut w = words(s.xmm(o.dst));
    w[usize::from(o.imm & 7)] = inserted::<2>(o) as u16;
    *s.xmm_mut(o.dst) = from_words(w);
    Ok(())
}

fn pinsrd(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mut d = dwords(s.xmm(o.dst));
    d[usize::from(o.imm & 3)] = inserted::<4>(o) as u32;
    *s.xmm_mut(o.dst) = from_dwords(d);
    Ok(())
}

fn pinsrq(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    s.xmm_mut(o.dst)[usize::from(o.imm & 1)] = inserted::<8>(o);
    Ok(())
}

/// Puts an extracted value where it goes: a general register, zero-extended, or `N` bytes of memory.
fn extracted<const N: usize>(o: &mut FpOperands<'_>, value: u64) -> Done {
    if o.mem.is_empty() {
        o.gpr_out = value;
    } else {
        store::<N>(o.mem, [value, 0]);
    }
    Ok(())
}

fn pextrb(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = to_bytes(s.xmm(o.src))[usize::from(o.imm & 15)];
    extracted::<1>(o, u64::from(value))
}

fn pextrw(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = words(s.xmm(o.src))[usize::from(o.imm & 7)];
    extracted::<2>(o, u64::from(value))
}

fn pextrd(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = dwords(s.xmm(o.src))[usize::from(o.imm & 3)];
    extracted::<4>(o, u64::from(value))
}

fn pextrq(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let value = s.xmm(o.src)[usize::from(o.imm & 1)];
    extracted::<8>(o, value)
}

/// The result of an instruction that makes a general register of an XMM register.
macro_rules! masks {
    ($($name:ident $mnemonic:ident;)*) => {
        $(
            fn $name(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
                let mask: u64;
                // SAFETY: touches the two registers only.
                unsafe {
                    asm!(
                        concat!(stringify!($mnemonic), " {mask:e}, {value}"),
                        mask = lateout(reg) mask,
                        value = in(xmm_reg) to_host(s.xmm(o.src)),
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                o.gpr_out = mask;
                Ok(())
            }
        )*
    };
}

masks! {
    pmovmskb pmovmskb;
    movmskps movmskps;
    movmskpd movmskpd;
}

/// ZF: no common bit. CF: no bit of the source outside the first operand. The others become 0.
fn ptest(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (a, b) = (s.xmm(o.dst), source::<16>(s, o));
    let zero = a[0] & b[0] | a[1] & b[1] == 0;
    let carry = !a[0] & b[0] | !a[1] & b[1] == 0;
    o.flags = u32::from(zero) << 6 | u32::from(carry);
    Ok(())
}

/// Executes the two-operand host instruction with the immediate `I`.
macro_rules! host_imm {
    ($($name:ident $mnemonic:ident;)*) => {
        $(
            fn $name<const I: u8>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
                let mut value = to_host(s.xmm(o.dst));
                // SAFETY: touches the two registers only; looked up only where the host has the instruction.
                unsafe {
                    asm!(
                        concat!(stringify!($mnemonic), " {first}, {second}, {imm}"),
                        first = inout(xmm_reg) value,
                        second = in(xmm_reg) to_host(source::<16>(s, o)),
                        imm = const I,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                *s.xmm_mut(o.dst) = from_host(value);
                Ok(())
            }
        )*
    };
}

host_imm! {
    pclmulqdq pclmulqdq;
    sha1rnds4 sha1rnds4;
    aeskeygenassist aeskeygenassist;
}

/// The round constant is only XORed into two doublewords, so the host executes with zero.
fn aeskeygen(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    aeskeygenassist::<0>(s, o)?;
    let constant = u64::from(o.imm) << 32;
    let value: &mut X = s.xmm_mut(o.dst);
    *value = [value[0] ^ constant, value[1] ^ constant];
    Ok(())
}

/// Instructions outside the model that the host executes although CPUID hides them.
fn hidden(code: Code, imm: u8) -> Option<FpInsn> {
    let (run, present): (FpRun, bool) = match code {
        Code::Pclmulqdq_xmm_xmmm128_imm8 => {
            let run = match imm & 0x11 {
                0 => pclmulqdq::<0>,
                1 => pclmulqdq::<1>,
                0x10 => pclmulqdq::<0x10>,
                _ => pclmulqdq::<0x11>,
            };
            (run, std::arch::is_x86_feature_detected!("pclmulqdq"))
        }
        Code::Sha1rnds4_xmm_xmmm128_imm8 => {
            let run = match imm & 3 {
                0 => sha1rnds4::<0>,
                1 => sha1rnds4::<1>,
                2 => sha1rnds4::<2>,
                _ => sha1rnds4::<3>,
            };
            (run, std::arch::is_x86_feature_detected!("sha"))
        }
        Code::Aeskeygenassist_xmm_xmmm128_imm8 => (aeskeygen, std::arch::is_x86_feature_detected!("aes")),
        _ => return None,
    };
    present.then(|| FpInsn::sse(run).reads(16).aligned())
}

/// The operations of this file.
pub(super) fn lookup(code: Code, imm: u8) -> Option<FpInsn> {
    let vector = |run: FpRun| FpInsn::sse(run).reads(16).aligned();
    Some(match code {
        Code::Pshufd_xmm_xmmm128_imm8 => vector(pshufd),
        Code::Pshuflw_xmm_xmmm128_imm8 => vector(pshuflw),
        Code::Pshufhw_xmm_xmmm128_imm8 => vector(pshufhw),
        Code::Shufps_xmm_xmmm128_imm8 => vector(shufps),
        Code::Shufpd_xmm_xmmm128_imm8 => vector(shufpd),
        Code::Palignr_xmm_xmmm128_imm8 => vector(palignr),
        Code::Pblendw_xmm_xmmm128_imm8 => vector(pblendw),
        Code::Blendps_xmm_xmmm128_imm8 => vector(blendps),
        Code::Blendpd_xmm_xmmm128_imm8 => vector(blendpd),
        Code::Mpsadbw_xmm_xmmm128_imm8 => vector(mpsadbw),
        Code::Ptest_xmm_xmmm128 => vector(ptest).flags(),
        Code::Psrldq_xmm_imm8 => FpInsn::sse(psrldq),
        Code::Pslldq_xmm_imm8 => FpInsn::sse(pslldq),
        Code::Insertps_xmm_xmmm32_imm8 => FpInsn::sse(insertps).reads(4),
        Code::Pinsrb_xmm_r32m8_imm8 | Code::Pinsrb_xmm_r64m8_imm8 => {
            FpInsn::sse(pinsrb).reads(1).gpr(GprUse::In)
        }
        Code::Pinsrw_xmm_r32m16_imm8 | Code::Pinsrw_xmm_r64m16_imm8 => {
            FpInsn::sse(pinsrw).reads(2).gpr(GprUse::In)
        }
        Code::Pinsrd_xmm_rm32_imm8 => FpInsn::sse(pinsrd).reads(4).gpr(GprUse::In),
        Code::Pinsrq_xmm_rm64_imm8 => FpInsn::sse(pinsrq).reads(8).gpr(GprUse::In),
        Code::Pextrb_r32m8_xmm_imm8 | Code::Pextrb_r64m8_xmm_imm8 => {
            FpInsn::sse(pextrb).writes(1).gpr(GprUse::Out)
        }
        Code::Pextrw_r32_xmm_imm8 | Code::Pextrw_r64_xmm_imm8 => FpInsn::sse(pextrw).gpr(GprUse::Out),
        Code::Pextrw_r32m16_xmm_imm8 | Code::Pextrw_r64m16_xmm_imm8 => {
            FpInsn::sse(pextrw).writes(2).gpr(GprUse::Out)
        }
        Code::Pextrd_rm32_xmm_imm8 | Code::Extractps_rm32_xmm_imm8 | Code::Extractps_r64m32_xmm_imm8 => {
            FpInsn::sse(pextrd).writes(4).gpr(GprUse::Out)
        }
        Code::Pextrq_rm64_xmm_imm8 => FpInsn::sse(pextrq).writes(8).gpr(GprUse::Out),
        Code::Pmovmskb_r32_xmm | Code::Pmovmskb_r64_xmm => FpInsn::sse(pmovmskb).gpr(GprUse::Out),
        Code::Movmskps_r32_xmm | Code::Movmskps_r64_xmm => FpInsn::sse(movmskps).gpr(GprUse::Out),
        Code::Movmskpd_r32_xmm | Code::Movmskpd_r64_xmm => FpInsn::sse(movmskpd).gpr(GprUse::Out),
        _ => return hidden(code, imm),
    })
}
