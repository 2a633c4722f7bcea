//! SSE4.2 string comparison: the host's instruction with the same immediate.

use core::arch::asm;

use iced_x86::Code;

use super::{
    FpFault, FpInsn, FpOperands, FpRun, FpState, GprUse,
    lanes::{from_host, source, to_host},
};

type Done = Result<(), FpFault>;

/// CF, PF, AF, ZF, SF, OF.
const STATUS_FLAGS: u64 = 0x8d5;

/// An explicit length in a general register. Its magnitude saturates at 16 bytes or 8 words, so clamping it to what
/// fits the 32-bit form changes nothing.
fn length<const WIDE: bool>(register: u64) -> u32 {
    let value = if WIDE { register as i64 } else { i64::from(register as u32 as i32) };
    value.clamp(-16, 16) as i32 as u32
}

/// Executes the host instruction; `$lengths` says whether it takes lengths in EAX and EDX.
macro_rules! compare {
    ($mnemonic:literal, $imm:ident, $s:ident, $o:ident; $($operands:tt)*) => {{
        let flags: u64;
        let second = to_host(source::<16>($s, $o));
        // SAFETY: touches the named registers and pushes once; x86-64-v2 hosts have the instruction.
        unsafe {
            asm!(
                concat!($mnemonic, " {first}, {second}, {imm}"),
                "pushfq",
                "pop {flags}",
                first = in(xmm_reg) to_host($s.xmm($o.dst)),
                second = in(xmm_reg) second,
                imm = const $imm,
                flags = out(reg) flags,
                $($operands)*
            );
        }
        $o.flags = (flags & STATUS_FLAGS) as u32;
    }};
}

fn pcmpestri<const I: u8, const WIDE: bool>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (first, second) = (length::<WIDE>(o.gpr_in), length::<WIDE>(o.gpr2_in));
    let index: u64;
    compare!("pcmpestri", I, s, o; in("eax") first, in("edx") second, out("rcx") index,);
    o.gpr_out = index;
    Ok(())
}

fn pcmpestrm<const I: u8, const WIDE: bool>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let (first, second) = (length::<WIDE>(o.gpr_in), length::<WIDE>(o.gpr2_in));
    let mask;
    compare!("pcmpestrm", I, s, o; in("eax") first, in("edx") second, out("xmm0") mask,);
    *s.xmm_mut(0) = from_host(mask);
    Ok(())
}

fn pcmpistri<const I: u8, const WIDE: bool>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let index: u64;
    compare!("pcmpistri", I, s, o; out("rcx") index,);
    o.gpr_out = index;
    Ok(())
}

fn pcmpistrm<const I: u8, const WIDE: bool>(s: &mut FpState, o: &mut FpOperands<'_>) -> Done {
    let mask;
    compare!("pcmpistrm", I, s, o; out("xmm0") mask,);
    *s.xmm_mut(0) = from_host(mask);
    Ok(())
}

/// One function per immediate 0..128 as eight rows: bit 7 is reserved and ignored.
macro_rules! by_imm {
    ($name:ident, $wide:literal) => { by_imm!(@ $name, $wide; 0x00 0x10 0x20 0x30 0x40 0x50 0x60 0x70) };
    (@ $name:ident, $wide:literal; $($h:literal)*) => {
        [$(by_imm!(# $name, $wide; $h; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)),*]
    };
    (# $name:ident, $wide:literal; $h:literal; $($i:literal)*) => { [$($name::<{ $h + $i }, $wide>),*] };
}

/// PCMPxSTRx. Memory operands need no alignment.
pub(super) fn lookup(code: Code, imm: u8) -> Option<FpInsn> {
    type Table = [[FpRun; 16]; 8];
    const ESTRI: Table = by_imm!(pcmpestri, false);
    const ESTRI64: Table = by_imm!(pcmpestri, true);
    const ESTRM: Table = by_imm!(pcmpestrm, false);
    const ESTRM64: Table = by_imm!(pcmpestrm, true);
    const ISTRI: Table = by_imm!(pcmpistri, false);
    const ISTRM: Table = by_imm!(pcmpistrm, false);
    let (table, gpr): (&Table, GprUse) = match code {
        Code::Pcmpestri_xmm_xmmm128_imm8 => (&ESTRI, GprUse::LengthsOutCx),
        Code::Pcmpestri64_xmm_xmmm128_imm8 => (&ESTRI64, GprUse::LengthsOutCx),
        Code::Pcmpestrm_xmm_xmmm128_imm8 => (&ESTRM, GprUse::Lengths),
        Code::Pcmpestrm64_xmm_xmmm128_imm8 => (&ESTRM64, GprUse::Lengths),
        Code::Pcmpistri_xmm_xmmm128_imm8 => (&ISTRI, GprUse::OutCx),
        Code::Pcmpistrm_xmm_xmmm128_imm8 => (&ISTRM, GprUse::None),
        _ => return None,
    };
    let run = table[usize::from(imm >> 4 & 7)][usize::from(imm & 15)];
    Some(FpInsn::sse(run).reads(16).gpr(gpr).flags())
}
