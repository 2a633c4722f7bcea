//! SSE operations on floating-point numbers: one host instruction each, under the guest's MXCSR.
//!
//! The host executes with all exceptions masked and reports in its own MXCSR which it met. If the guest has one
//! of them unmasked, the instruction raises #XM and changes nothing but MXCSR's flags (SDM vol. 1, 11.5.3).

use core::arch::asm;

use iced_x86::Code;

use super::{
    FpFault, FpInsn, FpOperands, FpRun, FpState, GprUse,
    lanes::{X, from_host, load, source, to_host},
    quiet::Quiet,
    unmasked::{self, Arith, Kind, Width},
};
use crate::{block::Handler, hot::float_forms};

/// MXCSR after reset: what the host's code runs under.
pub(super) const HOST_MXCSR: u32 = 0x1f80;
/// Exception flags of MXCSR: IE, DE, ZE, OE, UE, PE.
pub(super) const FLAGS: u32 = 0x3f;
/// Exception masks of MXCSR.
pub(super) const MASKS: u32 = 0x1f80;

type Done = Result<(), FpFault>;

/// A floating-point operation `xmm, xmm`.
pub(crate) trait FloatOp {
    /// How its results may leave the range, for unmasked exceptions.
    const KIND: Kind;
    /// When it cannot raise more than it has.
    const QUIET: Quiet;

    /// The new value of the first operand under the host's MXCSR, whatever it raises.
    fn bare(first: X, second: X) -> X;

    /// The new value of the first operand. Executes under `mxcsr`, which must have all exceptions masked, and
    /// leaves in it what the host had there afterwards.
    fn apply(first: X, second: X, mxcsr: &mut u32) -> X;
}

/// Executes `operation` under the guest's MXCSR and keeps the flags.
#[inline(always)]
fn guarded(
    s: &mut FpState,
    (kind, quiet): (Kind, Quiet),
    first: X,
    second: X,
    bare: impl Fn(X, X) -> X,
    operation: impl Fn(X, X, &mut u32) -> X,
) -> Result<X, FpFault> {
    if quiet.allowed(s.mxcsr) {
        let value = bare(first, second);
        if quiet.holds(first, second, value) {
            return Ok(value);
        }
    }
    let mut mxcsr = s.mxcsr & !FLAGS | MASKS;
    if s.mxcsr & MASKS == MASKS {
        let value = operation(first, second, &mut mxcsr);
        s.mxcsr |= mxcsr & FLAGS;
        return Ok(value);
    }
    unmasked::without_flush(s.mxcsr, &mut mxcsr);
    let value = operation(first, second, &mut mxcsr);
    unmasked::finish(s, kind, first, second, mxcsr & FLAGS)?;
    Ok(value)
}

/// The new value of the first operand if it is certain that MXCSR stays as it is.
#[inline(always)]
pub(crate) fn quietly<O: FloatOp>(mxcsr: u32, first: X, second: X) -> Option<X> {
    if !O::QUIET.allowed(mxcsr) {
        return None;
    }
    let value = O::bare(first, second);
    O::QUIET.holds(first, second, value).then_some(value)
}

/// Executes `O` with a source of `N` bytes.
pub(super) fn run<O: FloatOp, const N: usize>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (first, second) = (s.xmm(o.dst), source::<N>(s, o));
    *s.xmm_mut(o.dst) = guarded(s, (O::KIND, O::QUIET), first, second, O::bare, O::apply)?;
    Ok(())
}

/// The table entry of `O`: memory operands of 16 bytes must be aligned, shorter ones need not.
const fn entry<O: FloatOp, const N: usize>() -> FpInsn {
    sized(run::<O, N>, N)
}

/// An entry that reads `len` bytes, aligned if they are 16.
const fn sized(run: FpRun, len: usize) -> FpInsn {
    let insn = FpInsn::sse(run).reads(len as u16);
    if len == 16 { insn.aligned() } else { insn }
}

/// Executes one instruction under `$mxcsr`: `{p}` is the pair (guest's MXCSR, host's MXCSR).
macro_rules! under_mxcsr {
    ($mxcsr:ident; $($instruction:expr),+; $($operands:tt)*) => {{
        let mut pair = [*$mxcsr, HOST_MXCSR];
        // SAFETY: changes the named registers and `pair`. All exceptions are masked, so the host traps nothing;
        // MXCSR is restored for the code around.
        unsafe {
            asm!(
                "ldmxcsr dword ptr [{p}]",
                $($instruction,)+
                "stmxcsr dword ptr [{p}]",
                "ldmxcsr dword ptr [{p} + 4]",
                p = in(reg) &raw mut pair,
                $($operands)*
            );
        }
        *$mxcsr = pair[0];
    }};
}

/// Executes one instruction under the host's MXCSR.
macro_rules! bare {
    ($($instruction:expr),+; $($operands:tt)*) => {
        // SAFETY: touches the named registers, and flags of MXCSR that nothing looks at.
        unsafe {
            asm!($($instruction,)+ $($operands)*);
        }
    };
}

/// `Code mnemonic bytes-of-a-memory-source kind quiet;`
macro_rules! float_ops {
    ($($code:ident $mnemonic:ident $len:literal $kind:expr, $quiet:expr;)*) => {
        $(
            #[allow(non_camel_case_types, reason = "named after the encoding")]
            pub(super) struct $code;
            impl FloatOp for $code {
                const KIND: Kind = $kind;
                const QUIET: Quiet = $quiet;
                #[inline(always)]
                fn bare(first: X, second: X) -> X {
                    let mut value = to_host(first);
                    bare!(concat!(stringify!($mnemonic), " {first}, {second}");
                        first = inout(xmm_reg) value,
                        second = in(xmm_reg) to_host(second),
                        options(pure, nomem, nostack),
                    );
                    from_host(value)
                }
                #[inline(always)]
                fn apply(first: X, second: X, mxcsr: &mut u32) -> X {
                    let mut value = to_host(first);
                    under_mxcsr!(mxcsr; concat!(stringify!($mnemonic), " {first}, {second}");
                        first = inout(xmm_reg) value,
                        second = in(xmm_reg) to_host(second),
                        options(nostack, preserves_flags),
                    );
                    from_host(value)
                }
            }
        )*
        fn plain(code: Code) -> Option<FpInsn> {
            Some(match code {
                $(Code::$code => entry::<$code, $len>(),)*
                _ => return None,
            })
        }

        /// The fast handler of an operation.
        pub(super) fn hot(code: Code, mem: bool) -> Option<Handler> {
            Some(match code {
                $(Code::$code => float_forms::<$code, $len>(mem),)*
                _ => return None,
            })
        }
    };
}

/// `Code mnemonic kind quiet;` with an immediate in the instruction.
macro_rules! float_ops_imm {
    ($($code:ident $mnemonic:ident $kind:expr, $quiet:expr;)*) => {
        $(
            #[allow(non_camel_case_types, reason = "named after the encoding")]
            struct $code<const I: u8>;
            impl<const I: u8> FloatOp for $code<I> {
                const KIND: Kind = $kind;
                const QUIET: Quiet = $quiet;
                #[inline(always)]
                fn bare(first: X, second: X) -> X {
                    let mut value = to_host(first);
                    bare!(concat!(stringify!($mnemonic), " {first}, {second}, {imm}");
                        first = inout(xmm_reg) value,
                        second = in(xmm_reg) to_host(second),
                        imm = const I,
                        options(pure, nomem, nostack),
                    );
                    from_host(value)
                }
                #[inline(always)]
                fn apply(first: X, second: X, mxcsr: &mut u32) -> X {
                    let mut value = to_host(first);
                    under_mxcsr!(mxcsr; concat!(stringify!($mnemonic), " {first}, {second}, {imm}");
                        first = inout(xmm_reg) value,
                        second = in(xmm_reg) to_host(second),
                        imm = const I,
                        options(nostack, preserves_flags),
                    );
                    from_host(value)
                }
            }
        )*
    };
}

float_ops! {
    Addps_xmm_xmmm128 addps 16 Kind::Lanes(Arith::Add, Width::F32, 4), Quiet::Sum(Width::F32, 4);
    Addpd_xmm_xmmm128 addpd 16 Kind::Lanes(Arith::Add, Width::F64, 2), Quiet::Sum(Width::F64, 2);
    Addss_xmm_xmmm32 addss 4 Kind::Lanes(Arith::Add, Width::F32, 1), Quiet::Sum(Width::F32, 1);
    Addsd_xmm_xmmm64 addsd 8 Kind::Lanes(Arith::Add, Width::F64, 1), Quiet::Sum(Width::F64, 1);
    Mulps_xmm_xmmm128 mulps 16 Kind::Lanes(Arith::Mul, Width::F32, 4), Quiet::Product(Width::F32, 4);
    Mulpd_xmm_xmmm128 mulpd 16 Kind::Lanes(Arith::Mul, Width::F64, 2), Quiet::Product(Width::F64, 2);
    Mulss_xmm_xmmm32 mulss 4 Kind::Lanes(Arith::Mul, Width::F32, 1), Quiet::Product(Width::F32, 1);
    Mulsd_xmm_xmmm64 mulsd 8 Kind::Lanes(Arith::Mul, Width::F64, 1), Quiet::Product(Width::F64, 1);
    Subps_xmm_xmmm128 subps 16 Kind::Lanes(Arith::Sub, Width::F32, 4), Quiet::Sum(Width::F32, 4);
    Subpd_xmm_xmmm128 subpd 16 Kind::Lanes(Arith::Sub, Width::F64, 2), Quiet::Sum(Width::F64, 2);
    Subss_xmm_xmmm32 subss 4 Kind::Lanes(Arith::Sub, Width::F32, 1), Quiet::Sum(Width::F32, 1);
    Subsd_xmm_xmmm64 subsd 8 Kind::Lanes(Arith::Sub, Width::F64, 1), Quiet::Sum(Width::F64, 1);
    Divps_xmm_xmmm128 divps 16 Kind::Lanes(Arith::Div, Width::F32, 4), Quiet::Quotient(Width::F32, 4);
    Divpd_xmm_xmmm128 divpd 16 Kind::Lanes(Arith::Div, Width::F64, 2), Quiet::Quotient(Width::F64, 2);
    Divss_xmm_xmmm32 divss 4 Kind::Lanes(Arith::Div, Width::F32, 1), Quiet::Quotient(Width::F32, 1);
    Divsd_xmm_xmmm64 divsd 8 Kind::Lanes(Arith::Div, Width::F64, 1), Quiet::Quotient(Width::F64, 1);
    Minps_xmm_xmmm128 minps 16 Kind::InRange, Quiet::Operands(Width::F32, 4);
    Minpd_xmm_xmmm128 minpd 16 Kind::InRange, Quiet::Operands(Width::F64, 2);
    Minss_xmm_xmmm32 minss 4 Kind::InRange, Quiet::Operands(Width::F32, 1);
    Minsd_xmm_xmmm64 minsd 8 Kind::InRange, Quiet::Operands(Width::F64, 1);
    Maxps_xmm_xmmm128 maxps 16 Kind::InRange, Quiet::Operands(Width::F32, 4);
    Maxpd_xmm_xmmm128 maxpd 16 Kind::InRange, Quiet::Operands(Width::F64, 2);
    Maxss_xmm_xmmm32 maxss 4 Kind::InRange, Quiet::Operands(Width::F32, 1);
    Maxsd_xmm_xmmm64 maxsd 8 Kind::InRange, Quiet::Operands(Width::F64, 1);
    Sqrtps_xmm_xmmm128 sqrtps 16 Kind::InRange, Quiet::Root(Width::F32, 4);
    Sqrtpd_xmm_xmmm128 sqrtpd 16 Kind::InRange, Quiet::Root(Width::F64, 2);
    Sqrtss_xmm_xmmm32 sqrtss 4 Kind::InRange, Quiet::Root(Width::F32, 1);
    Sqrtsd_xmm_xmmm64 sqrtsd 8 Kind::InRange, Quiet::Root(Width::F64, 1);
    Rcpps_xmm_xmmm128 rcpps 16 Kind::InRange, Quiet::Exact;
    Rcpss_xmm_xmmm32 rcpss 4 Kind::InRange, Quiet::Exact;
    Rsqrtps_xmm_xmmm128 rsqrtps 16 Kind::InRange, Quiet::Exact;
    Rsqrtss_xmm_xmmm32 rsqrtss 4 Kind::InRange, Quiet::Exact;
    Haddps_xmm_xmmm128 haddps 16 Kind::Hadd(Width::F32), Quiet::Never;
    Haddpd_xmm_xmmm128 haddpd 16 Kind::Hadd(Width::F64), Quiet::Never;
    Hsubps_xmm_xmmm128 hsubps 16 Kind::Hsub(Width::F32), Quiet::Never;
    Hsubpd_xmm_xmmm128 hsubpd 16 Kind::Hsub(Width::F64), Quiet::Never;
    Addsubps_xmm_xmmm128 addsubps 16 Kind::Addsub(Width::F32), Quiet::Never;
    Addsubpd_xmm_xmmm128 addsubpd 16 Kind::Addsub(Width::F64), Quiet::Never;
    Cvtps2pd_xmm_xmmm64 cvtps2pd 8 Kind::InRange, Quiet::Source(Width::F32, 2);
    Cvtpd2ps_xmm_xmmm128 cvtpd2ps 16 Kind::Narrow(2), Quiet::Narrow(2);
    Cvtss2sd_xmm_xmmm32 cvtss2sd 4 Kind::InRange, Quiet::Source(Width::F32, 1);
    Cvtsd2ss_xmm_xmmm64 cvtsd2ss 8 Kind::Narrow(1), Quiet::Narrow(1);
    Cvtdq2ps_xmm_xmmm128 cvtdq2ps 16 Kind::InRange, Quiet::Inexact;
    Cvtps2dq_xmm_xmmm128 cvtps2dq 16 Kind::InRange, Quiet::Integers(4);
    Cvttps2dq_xmm_xmmm128 cvttps2dq 16 Kind::InRange, Quiet::Integers(4);
    Cvtpd2dq_xmm_xmmm128 cvtpd2dq 16 Kind::InRange, Quiet::Integers(2);
    Cvttpd2dq_xmm_xmmm128 cvttpd2dq 16 Kind::InRange, Quiet::Integers(2);
}

float_ops_imm! {
    Cmpps_xmm_xmmm128_imm8 cmpps Kind::InRange, Quiet::Operands(Width::F32, 4);
    Cmppd_xmm_xmmm128_imm8 cmppd Kind::InRange, Quiet::Operands(Width::F64, 2);
    Cmpss_xmm_xmmm32_imm8 cmpss Kind::InRange, Quiet::Operands(Width::F32, 1);
    Cmpsd_xmm_xmmm64_imm8 cmpsd Kind::InRange, Quiet::Operands(Width::F64, 1);
    Roundps_xmm_xmmm128_imm8 roundps Kind::InRange, Quiet::Rounded(Width::F32, 4);
    Roundpd_xmm_xmmm128_imm8 roundpd Kind::InRange, Quiet::Rounded(Width::F64, 2);
    Roundss_xmm_xmmm32_imm8 roundss Kind::InRange, Quiet::Rounded(Width::F32, 1);
    Roundsd_xmm_xmmm64_imm8 roundsd Kind::InRange, Quiet::Rounded(Width::F64, 1);
    Dpps_xmm_xmmm128_imm8 dpps Kind::Dot(Width::F32, I), Quiet::Never;
    Dppd_xmm_xmmm128_imm8 dppd Kind::Dot(Width::F64, I), Quiet::Never;
}

/// The table of one function per immediate 0..8.
macro_rules! by_imm {
    (8; $code:ident, $len:literal) => { by_imm!(@ $code, $len; 0 1 2 3 4 5 6 7) };
    (16; $code:ident, $len:literal) => { by_imm!(@ $code, $len; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    (@ $code:ident, $len:literal; $($i:literal)*) => { [$(run::<$code<$i>, $len>),*] };
}

/// One function per immediate 0..256, as sixteen rows.
macro_rules! by_imm_256 {
    ($code:ident) => { by_imm_256!(@ $code; 0x00 0x10 0x20 0x30 0x40 0x50 0x60 0x70 0x80 0x90 0xa0 0xb0 0xc0 0xd0 0xe0 0xf0) };
    (@ $code:ident; $($h:literal)*) => { [$(by_imm_256!(# $code; $h; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*] };
    (# $code:ident; $h:literal; $($i:literal)*) => { [$(run::<$code<{ $h + $i }>, 16>),*] };
}

/// Operations whose immediate is part of the host's instruction. CMPxx uses three bits of it, ROUNDxx four.
fn with_imm(code: Code, imm: u8) -> Option<FpInsn> {
    const DPPS: [[FpRun; 16]; 16] = by_imm_256!(Dpps_xmm_xmmm128_imm8);
    const DPPD: [[FpRun; 16]; 16] = by_imm_256!(Dppd_xmm_xmmm128_imm8);
    let (three, four) = (usize::from(imm & 7), usize::from(imm & 15));
    let (high, low) = (usize::from(imm >> 4), usize::from(imm & 15));
    Some(match code {
        Code::Cmpps_xmm_xmmm128_imm8 => sized(by_imm!(8; Cmpps_xmm_xmmm128_imm8, 16)[three], 16),
        Code::Cmppd_xmm_xmmm128_imm8 => sized(by_imm!(8; Cmppd_xmm_xmmm128_imm8, 16)[three], 16),
        Code::Cmpss_xmm_xmmm32_imm8 => sized(by_imm!(8; Cmpss_xmm_xmmm32_imm8, 4)[three], 4),
        Code::Cmpsd_xmm_xmmm64_imm8 => sized(by_imm!(8; Cmpsd_xmm_xmmm64_imm8, 8)[three], 8),
        Code::Roundps_xmm_xmmm128_imm8 => sized(by_imm!(16; Roundps_xmm_xmmm128_imm8, 16)[four], 16),
        Code::Roundpd_xmm_xmmm128_imm8 => sized(by_imm!(16; Roundpd_xmm_xmmm128_imm8, 16)[four], 16),
        Code::Roundss_xmm_xmmm32_imm8 => sized(by_imm!(16; Roundss_xmm_xmmm32_imm8, 4)[four], 4),
        Code::Roundsd_xmm_xmmm64_imm8 => sized(by_imm!(16; Roundsd_xmm_xmmm64_imm8, 8)[four], 8),
        Code::Dpps_xmm_xmmm128_imm8 => sized(DPPS[high][low], 16),
        Code::Dppd_xmm_xmmm128_imm8 => sized(DPPD[high][low], 16),
        _ => return None,
    })
}

/// xmm <- general register or memory integer of `$len` bytes.
macro_rules! from_integer {
    ($($name:ident $mnemonic:ident $len:literal $register:literal $quiet:expr;)*) => {
        $(
            fn $name(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
                let integer = if o.mem.is_empty() { o.gpr_in } else { load::<$len>(o.mem)[0] };
                let first = s.xmm(o.dst);
                let bare = |first: X, second: X| {
                    let mut value = to_host(first);
                    bare!(concat!(stringify!($mnemonic), " {first}, {second", $register, "}");
                        first = inout(xmm_reg) value,
                        second = in(reg) second[0],
                        options(pure, nomem, nostack),
                    );
                    from_host(value)
                };
                let operation = |first: X, second: X, mxcsr: &mut u32| {
                    let mut value = to_host(first);
                    under_mxcsr!(mxcsr; concat!(stringify!($mnemonic), " {first}, {second", $register, "}");
                        first = inout(xmm_reg) value,
                        second = in(reg) second[0],
                        options(nostack, preserves_flags),
                    );
                    from_host(value)
                };
                *s.xmm_mut(o.dst) = guarded(s, (Kind::InRange, $quiet), first, [integer, 0], bare, operation)?;
                Ok(())
            }
        )*
    };
}

from_integer! {
    cvtsi2ss_32 cvtsi2ss 4 ":e" Quiet::Inexact;
    cvtsi2ss_64 cvtsi2ss 8 "" Quiet::Inexact;
    cvtsi2sd_32 cvtsi2sd 4 ":e" Quiet::Exact;
    cvtsi2sd_64 cvtsi2sd 8 "" Quiet::Inexact;
}

/// general register <- xmm or memory number of `$len` bytes.
macro_rules! to_integer {
    ($($name:ident $mnemonic:ident $len:literal $register:literal $quiet:expr;)*) => {
        $(
            fn $name(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
                let second = source::<$len>(s, o);
                let bare = |_: X, second: X| {
                    let value: u64;
                    bare!(concat!(stringify!($mnemonic), " {value", $register, "}, {second}");
                        value = out(reg) value,
                        second = in(xmm_reg) to_host(second),
                        options(pure, nomem, nostack),
                    );
                    [value, 0]
                };
                let operation = |_: X, second: X, mxcsr: &mut u32| {
                    let value: u64;
                    under_mxcsr!(mxcsr; concat!(stringify!($mnemonic), " {value", $register, "}, {second}");
                        value = out(reg) value,
                        second = in(xmm_reg) to_host(second),
                        options(nostack, preserves_flags),
                    );
                    [value, 0]
                };
                o.gpr_out = guarded(s, (Kind::InRange, $quiet), [0; 2], second, bare, operation)?[0];
                Ok(())
            }
        )*
    };
}

to_integer! {
    cvtss2si_32 cvtss2si 4 ":e" Quiet::Integers(1);
    cvtss2si_64 cvtss2si 4 "" Quiet::Long;
    cvtsd2si_32 cvtsd2si 8 ":e" Quiet::Integers(1);
    cvtsd2si_64 cvtsd2si 8 "" Quiet::Long;
    cvttss2si_32 cvttss2si 4 ":e" Quiet::Integers(1);
    cvttss2si_64 cvttss2si 4 "" Quiet::Long;
    cvttsd2si_32 cvttsd2si 8 ":e" Quiet::Integers(1);
    cvttsd2si_64 cvttsd2si 8 "" Quiet::Long;
}

/// RFLAGS <- comparison: ZF, PF and CF; OF, SF and AF become 0.
macro_rules! compare {
    ($($name:ident $mnemonic:ident $len:literal $quiet:expr;)*) => {
        $(
            fn $name(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
                let (first, second) = (s.xmm(o.dst), source::<$len>(s, o));
                let bare = |first: X, second: X| {
                    let flags: u64;
                    bare!(concat!(stringify!($mnemonic), " {first}, {second}"), "lahf";
                        first = in(xmm_reg) to_host(first),
                        second = in(xmm_reg) to_host(second),
                        out("rax") flags,
                        options(pure, nomem, nostack),
                    );
                    [flags >> 8 & 0x45, 0]
                };
                let operation = |first: X, second: X, mxcsr: &mut u32| {
                    let flags: u64;
                    under_mxcsr!(mxcsr; concat!(stringify!($mnemonic), " {first}, {second}"), "lahf";
                        first = in(xmm_reg) to_host(first),
                        second = in(xmm_reg) to_host(second),
                        out("rax") flags,
                        options(nostack),
                    );
                    [flags >> 8 & 0x45, 0]
                };
                o.flags = guarded(s, (Kind::InRange, $quiet), first, second, bare, operation)?[0] as u32;
                Ok(())
            }
        )*
    };
}

compare! {
    ucomiss ucomiss 4 Quiet::Operands(Width::F32, 1);
    ucomisd ucomisd 8 Quiet::Operands(Width::F64, 1);
    comiss comiss 4 Quiet::Operands(Width::F32, 1);
    comisd comisd 8 Quiet::Operands(Width::F64, 1);
}

/// Operations with a general register or with flags.
fn mixed(code: Code) -> Option<FpInsn> {
    Some(match code {
        Code::Cvtsi2ss_xmm_rm32 => FpInsn::sse(cvtsi2ss_32).reads(4).gpr(GprUse::In),
        Code::Cvtsi2ss_xmm_rm64 => FpInsn::sse(cvtsi2ss_64).reads(8).gpr(GprUse::In),
        Code::Cvtsi2sd_xmm_rm32 => FpInsn::sse(cvtsi2sd_32).reads(4).gpr(GprUse::In),
        Code::Cvtsi2sd_xmm_rm64 => FpInsn::sse(cvtsi2sd_64).reads(8).gpr(GprUse::In),
        Code::Cvtss2si_r32_xmmm32 => FpInsn::sse(cvtss2si_32).reads(4).gpr(GprUse::Out),
        Code::Cvtss2si_r64_xmmm32 => FpInsn::sse(cvtss2si_64).reads(4).gpr(GprUse::Out),
        Code::Cvtsd2si_r32_xmmm64 => FpInsn::sse(cvtsd2si_32).reads(8).gpr(GprUse::Out),
        Code::Cvtsd2si_r64_xmmm64 => FpInsn::sse(cvtsd2si_64).reads(8).gpr(GprUse::Out),
        Code::Cvttss2si_r32_xmmm32 => FpInsn::sse(cvttss2si_32).reads(4).gpr(GprUse::Out),
        Code::Cvttss2si_r64_xmmm32 => FpInsn::sse(cvttss2si_64).reads(4).gpr(GprUse::Out),
        Code::Cvttsd2si_r32_xmmm64 => FpInsn::sse(cvttsd2si_32).reads(8).gpr(GprUse::Out),
        Code::Cvttsd2si_r64_xmmm64 => FpInsn::sse(cvttsd2si_64).reads(8).gpr(GprUse::Out),
        Code::Ucomiss_xmm_xmmm32 => FpInsn::sse(ucomiss).reads(4).flags(),
        Code::Ucomisd_xmm_xmmm64 => FpInsn::sse(ucomisd).reads(8).flags(),
        Code::Comiss_xmm_xmmm32 => FpInsn::sse(comiss).reads(4).flags(),
        Code::Comisd_xmm_xmmm64 => FpInsn::sse(comisd).reads(8).flags(),
        _ => return None,
    })
}

/// The floating-point operations.
pub(super) fn lookup(code: Code, imm: u8) -> Option<FpInsn> {
    plain(code).or_else(|| mixed(code)).or_else(|| with_imm(code, imm))
}

/// Four integers to single, for the forms with MMX registers.
pub(super) const CVTDQ2PS: FpRun = run::<Cvtdq2ps_xmm_xmmm128, 16>;
/// Four singles to integers.
pub(super) const CVTPS2DQ: FpRun = run::<Cvtps2dq_xmm_xmmm128, 16>;
/// Four singles to integers, truncated.
pub(super) const CVTTPS2DQ: FpRun = run::<Cvttps2dq_xmm_xmmm128, 16>;
/// Two doubles to integers.
pub(super) const CVTPD2DQ: FpRun = run::<Cvtpd2dq_xmm_xmmm128, 16>;
/// Two doubles to integers, truncated.
pub(super) const CVTTPD2DQ: FpRun = run::<Cvttpd2dq_xmm_xmmm128, 16>;
