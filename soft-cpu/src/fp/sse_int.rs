//! SSE operations on integers and bits: one host instruction each. They neither read nor write MXCSR.

use core::arch::asm;

use iced_x86::Code;

use super::{
    FpFault, FpInsn, FpOperands, FpState,
    lanes::{X, from_host, source, to_host},
};
use crate::{
    block::Handler,
    hot::{vector_forms, vector_immediate},
};

/// An operation `xmm, xmm` that depends on nothing but its two operands.
pub(crate) trait VectorOp {
    /// The new value of the first operand.
    fn apply(first: X, second: X) -> X;
}

/// Executes `O` with a source of `N` bytes.
fn run<O: VectorOp, const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let second = source::<N>(s, o);
    let first = s.xmm_mut(o.dst);
    *first = O::apply(*first, second);
    Ok(())
}

/// Executes `O` between registers.
fn run_registers<O: VectorOp>(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let second = s.xmm(o.src);
    let first = s.xmm_mut(o.dst);
    *first = O::apply(*first, second);
    Ok(())
}

/// Executes the shift `O` by the immediate.
fn run_shift<O: VectorOp>(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let first = s.xmm_mut(o.dst);
    *first = O::apply(*first, [u64::from(o.imm), 0]);
    Ok(())
}

/// An operation with XMM0 as implicit third operand.
trait VectorOp3 {
    /// The new value of the first operand.
    fn apply(first: X, second: X, xmm0: X) -> X;
}

/// Executes `O` with a source of 16 bytes.
fn run3<O: VectorOp3>(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let (second, xmm0) = (source::<16>(s, o), s.xmm(0));
    let first = s.xmm_mut(o.dst);
    *first = O::apply(*first, second, xmm0);
    Ok(())
}

/// The table entry of `O`: memory operands of 16 bytes must be aligned, shorter ones need not.
const fn entry<O: VectorOp, const N: usize>(mem: bool) -> FpInsn {
    let insn = FpInsn::sse(if mem { run::<O, N> } else { run_registers::<O> }).reads(N as u16);
    if N == 16 { insn.aligned() } else { insn }
}

/// `Code mnemonic bytes-of-a-memory-source;`
macro_rules! vector_ops {
    ($table:ident $($hot:ident)?; $($code:ident $mnemonic:ident $len:literal;)*) => {
        $(
            #[allow(non_camel_case_types, reason = "named after the encoding")]
            pub(super) struct $code;
            impl VectorOp for $code {
                #[inline(always)]
                fn apply(first: X, second: X) -> X {
                    let mut value = to_host(first);
                    // SAFETY: touches the two registers only; x86-64-v2 hosts have the instruction, and AES, SHA
                    // and PCLMULQDQ are only looked up where the host has them.
                    unsafe {
                        asm!(
                            concat!(stringify!($mnemonic), " {first}, {second}"),
                            first = inout(xmm_reg) value,
                            second = in(xmm_reg) to_host(second),
                            options(pure, nomem, nostack, preserves_flags),
                        );
                    }
                    from_host(value)
                }
            }
        )*
        fn $table(code: Code, mem: bool) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => entry::<$code, $len>(mem),)*
                _ => return None,
            })
        }
        vector_ops! { @ $($hot)?; $($code $len;)* }
    };
    (@; $($code:ident $len:literal;)*) => {};
    (@ $hot:ident; $($code:ident $len:literal;)*) => {
        /// The fast handler of an operation.
        pub(super) fn $hot(code: Code, mem: bool) -> Option<Handler> {
            Some(match code {
                $(Code::$code => vector_forms::<$code, $len>(mem),)*
                _ => return None,
            })
        }
    };
}

/// `Code mnemonic;` with the implicit XMM0.
macro_rules! vector_ops3 {
    ($table:ident; $($code:ident $mnemonic:ident;)*) => {
        $(
            #[allow(non_camel_case_types, reason = "named after the encoding")]
            struct $code;
            impl VectorOp3 for $code {
                #[inline(always)]
                fn apply(first: X, second: X, xmm0: X) -> X {
                    let mut value = to_host(first);
                    // SAFETY: as above.
                    unsafe {
                        asm!(
                            concat!(stringify!($mnemonic), " {first}, {second}"),
                            first = inout(xmm_reg) value,
                            second = in(xmm_reg) to_host(second),
                            in("xmm0") to_host(xmm0),
                            options(pure, nomem, nostack, preserves_flags),
                        );
                    }
                    from_host(value)
                }
            }
        )*
        fn $table(code: Code) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => FpInsn::sse(run3::<$code>).reads(16).aligned(),)*
                _ => return None,
            })
        }
    };
}

vector_ops! { plain hot;
    Unpcklps_xmm_xmmm128 unpcklps 16;
    Unpcklpd_xmm_xmmm128 unpcklpd 16;
    Unpckhps_xmm_xmmm128 unpckhps 16;
    Unpckhpd_xmm_xmmm128 unpckhpd 16;
    Andps_xmm_xmmm128 andps 16;
    Andpd_xmm_xmmm128 andpd 16;
    Andnps_xmm_xmmm128 andnps 16;
    Andnpd_xmm_xmmm128 andnpd 16;
    Orps_xmm_xmmm128 orps 16;
    Orpd_xmm_xmmm128 orpd 16;
    Xorps_xmm_xmmm128 xorps 16;
    Xorpd_xmm_xmmm128 xorpd 16;
    Punpcklbw_xmm_xmmm128 punpcklbw 16;
    Punpcklwd_xmm_xmmm128 punpcklwd 16;
    Punpckldq_xmm_xmmm128 punpckldq 16;
    Packsswb_xmm_xmmm128 packsswb 16;
    Pcmpgtb_xmm_xmmm128 pcmpgtb 16;
    Pcmpgtw_xmm_xmmm128 pcmpgtw 16;
    Pcmpgtd_xmm_xmmm128 pcmpgtd 16;
    Packuswb_xmm_xmmm128 packuswb 16;
    Punpckhbw_xmm_xmmm128 punpckhbw 16;
    Punpckhwd_xmm_xmmm128 punpckhwd 16;
    Punpckhdq_xmm_xmmm128 punpckhdq 16;
    Packssdw_xmm_xmmm128 packssdw 16;
    Punpcklqdq_xmm_xmmm128 punpcklqdq 16;
    Punpckhqdq_xmm_xmmm128 punpckhqdq 16;
    Pcmpeqb_xmm_xmmm128 pcmpeqb 16;
    Pcmpeqw_xmm_xmmm128 pcmpeqw 16;
    Pcmpeqd_xmm_xmmm128 pcmpeqd 16;
    Psrlw_xmm_xmmm128 psrlw 16;
    Psrld_xmm_xmmm128 psrld 16;
    Psrlq_xmm_xmmm128 psrlq 16;
    Paddq_xmm_xmmm128 paddq 16;
    Pmullw_xmm_xmmm128 pmullw 16;
    Psubusb_xmm_xmmm128 psubusb 16;
    Psubusw_xmm_xmmm128 psubusw 16;
    Pminub_xmm_xmmm128 pminub 16;
    Pand_xmm_xmmm128 pand 16;
    Paddusb_xmm_xmmm128 paddusb 16;
    Paddusw_xmm_xmmm128 paddusw 16;
    Pmaxub_xmm_xmmm128 pmaxub 16;
    Pandn_xmm_xmmm128 pandn 16;
    Pavgb_xmm_xmmm128 pavgb 16;
    Psraw_xmm_xmmm128 psraw 16;
    Psrad_xmm_xmmm128 psrad 16;
    Pavgw_xmm_xmmm128 pavgw 16;
    Pmulhuw_xmm_xmmm128 pmulhuw 16;
    Pmulhw_xmm_xmmm128 pmulhw 16;
    Psubsb_xmm_xmmm128 psubsb 16;
    Psubsw_xmm_xmmm128 psubsw 16;
    Pminsw_xmm_xmmm128 pminsw 16;
    Por_xmm_xmmm128 por 16;
    Paddsb_xmm_xmmm128 paddsb 16;
    Paddsw_xmm_xmmm128 paddsw 16;
    Pmaxsw_xmm_xmmm128 pmaxsw 16;
    Pxor_xmm_xmmm128 pxor 16;
    Psllw_xmm_xmmm128 psllw 16;
    Pslld_xmm_xmmm128 pslld 16;
    Psllq_xmm_xmmm128 psllq 16;
    Pmuludq_xmm_xmmm128 pmuludq 16;
    Pmaddwd_xmm_xmmm128 pmaddwd 16;
    Psadbw_xmm_xmmm128 psadbw 16;
    Psubb_xmm_xmmm128 psubb 16;
    Psubw_xmm_xmmm128 psubw 16;
    Psubd_xmm_xmmm128 psubd 16;
    Psubq_xmm_xmmm128 psubq 16;
    Paddb_xmm_xmmm128 paddb 16;
    Paddw_xmm_xmmm128 paddw 16;
    Paddd_xmm_xmmm128 paddd 16;
    Pshufb_xmm_xmmm128 pshufb 16;
    Phaddw_xmm_xmmm128 phaddw 16;
    Phaddd_xmm_xmmm128 phaddd 16;
    Phaddsw_xmm_xmmm128 phaddsw 16;
    Pmaddubsw_xmm_xmmm128 pmaddubsw 16;
    Phsubw_xmm_xmmm128 phsubw 16;
    Phsubd_xmm_xmmm128 phsubd 16;
    Phsubsw_xmm_xmmm128 phsubsw 16;
    Psignb_xmm_xmmm128 psignb 16;
    Psignw_xmm_xmmm128 psignw 16;
    Psignd_xmm_xmmm128 psignd 16;
    Pmulhrsw_xmm_xmmm128 pmulhrsw 16;
    Pabsb_xmm_xmmm128 pabsb 16;
    Pabsw_xmm_xmmm128 pabsw 16;
    Pabsd_xmm_xmmm128 pabsd 16;
    Pmovsxbw_xmm_xmmm64 pmovsxbw 8;
    Pmovsxbd_xmm_xmmm32 pmovsxbd 4;
    Pmovsxbq_xmm_xmmm16 pmovsxbq 2;
    Pmovsxwd_xmm_xmmm64 pmovsxwd 8;
    Pmovsxwq_xmm_xmmm32 pmovsxwq 4;
    Pmovsxdq_xmm_xmmm64 pmovsxdq 8;
    Pmuldq_xmm_xmmm128 pmuldq 16;
    Pcmpeqq_xmm_xmmm128 pcmpeqq 16;
    Packusdw_xmm_xmmm128 packusdw 16;
    Pmovzxbw_xmm_xmmm64 pmovzxbw 8;
    Pmovzxbd_xmm_xmmm32 pmovzxbd 4;
    Pmovzxbq_xmm_xmmm16 pmovzxbq 2;
    Pmovzxwd_xmm_xmmm64 pmovzxwd 8;
    Pmovzxwq_xmm_xmmm32 pmovzxwq 4;
    Pmovzxdq_xmm_xmmm64 pmovzxdq 8;
    Pcmpgtq_xmm_xmmm128 pcmpgtq 16;
    Pminsb_xmm_xmmm128 pminsb 16;
    Pminsd_xmm_xmmm128 pminsd 16;
    Pminuw_xmm_xmmm128 pminuw 16;
    Pminud_xmm_xmmm128 pminud 16;
    Pmaxsb_xmm_xmmm128 pmaxsb 16;
    Pmaxsd_xmm_xmmm128 pmaxsd 16;
    Pmaxuw_xmm_xmmm128 pmaxuw 16;
    Pmaxud_xmm_xmmm128 pmaxud 16;
    Pmulld_xmm_xmmm128 pmulld 16;
    Phminposuw_xmm_xmmm128 phminposuw 16;
    Cvtdq2pd_xmm_xmmm64 cvtdq2pd 8;
}

vector_ops! { aes;
    Aesimc_xmm_xmmm128 aesimc 16;
    Aesenc_xmm_xmmm128 aesenc 16;
    Aesenclast_xmm_xmmm128 aesenclast 16;
    Aesdec_xmm_xmmm128 aesdec 16;
    Aesdeclast_xmm_xmmm128 aesdeclast 16;
}

vector_ops! { sha;
    Sha1nexte_xmm_xmmm128 sha1nexte 16;
    Sha1msg1_xmm_xmmm128 sha1msg1 16;
    Sha1msg2_xmm_xmmm128 sha1msg2 16;
    Sha256msg1_xmm_xmmm128 sha256msg1 16;
    Sha256msg2_xmm_xmmm128 sha256msg2 16;
}

vector_ops3! { blends;
    Pblendvb_xmm_xmmm128 pblendvb;
    Blendvps_xmm_xmmm128 blendvps;
    Blendvpd_xmm_xmmm128 blendvpd;
}

vector_ops3! { sha3;
    Sha256rnds2_xmm_xmmm128 sha256rnds2;
}

/// The fast handler of a shift by an immediate.
pub(super) fn hot_immediate(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Psrlw_xmm_imm8 => vector_immediate::<Psrlw_xmm_xmmm128>(),
        Code::Psrld_xmm_imm8 => vector_immediate::<Psrld_xmm_xmmm128>(),
        Code::Psrlq_xmm_imm8 => vector_immediate::<Psrlq_xmm_xmmm128>(),
        Code::Psraw_xmm_imm8 => vector_immediate::<Psraw_xmm_xmmm128>(),
        Code::Psrad_xmm_imm8 => vector_immediate::<Psrad_xmm_xmmm128>(),
        Code::Psllw_xmm_imm8 => vector_immediate::<Psllw_xmm_xmmm128>(),
        Code::Pslld_xmm_imm8 => vector_immediate::<Pslld_xmm_xmmm128>(),
        Code::Psllq_xmm_imm8 => vector_immediate::<Psllq_xmm_xmmm128>(),
        _ => return None,
    })
}

/// Shifts by an immediate.
fn shifts(code: Code) -> Option<FpInsn> {
    Some(FpInsn::sse(match code {
        Code::Psrlw_xmm_imm8 => run_shift::<Psrlw_xmm_xmmm128>,
        Code::Psrld_xmm_imm8 => run_shift::<Psrld_xmm_xmmm128>,
        Code::Psrlq_xmm_imm8 => run_shift::<Psrlq_xmm_xmmm128>,
        Code::Psraw_xmm_imm8 => run_shift::<Psraw_xmm_xmmm128>,
        Code::Psrad_xmm_imm8 => run_shift::<Psrad_xmm_xmmm128>,
        Code::Psllw_xmm_imm8 => run_shift::<Psllw_xmm_xmmm128>,
        Code::Pslld_xmm_imm8 => run_shift::<Pslld_xmm_xmmm128>,
        Code::Psllq_xmm_imm8 => run_shift::<Psllq_xmm_xmmm128>,
        _ => return None,
    }))
}

/// The integer and bitwise operations. AES and SHA are outside the model, but a host executes them although
/// CPUID hides them, so they are here where the host has them.
pub(super) fn lookup(code: Code, mem: bool) -> Option<FpInsn> {
    plain(code, mem)
        .or_else(|| shifts(code))
        .or_else(|| blends(code))
        .or_else(|| aes(code, mem).filter(|_| std::arch::is_x86_feature_detected!("aes")))
        .or_else(|| {
            sha(code, mem).or_else(|| sha3(code)).filter(|_| std::arch::is_x86_feature_detected!("sha"))
        })
}
