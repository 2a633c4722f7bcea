//! CRC32 (SSE4.2): general registers only.

use core::arch::asm;

use iced_x86::Code;

use super::{FpClass, FpFault, FpInsn, FpOperands, FpState, GprUse, lanes::load};

macro_rules! crc32 {
    ($($name:ident $len:literal $first:literal $class:ident $second:literal $type:ty;)*) => {
        $(
            fn $name(_: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
                let value = if o.mem.is_empty() { o.gpr_in } else { load::<$len>(o.mem)[0] };
                let mut crc = o.gpr2_in;
                // SAFETY: touches the two registers only; x86-64-v2 hosts have the instruction.
                unsafe {
                    asm!(
                        concat!("crc32 {crc", $first, "}, {value", $second, "}"),
                        crc = inout(reg) crc,
                        value = in($class) value as $type,
                        options(pure, nomem, nostack, preserves_flags),
                    );
                }
                o.gpr_out = crc;
                Ok(())
            }
        )*
    };
}

crc32! {
    crc32_8 1 ":e" reg_byte "" u8;
    crc32_16 2 ":e" reg ":x" u16;
    crc32_32 4 ":e" reg ":e" u32;
    crc32_64 8 "" reg "" u64;
}

/// CRC32.
pub(super) fn lookup(code: Code) -> Option<FpInsn> {
    let (run, len): (super::FpRun, u16) = match code {
        Code::Crc32_r32_rm8 | Code::Crc32_r64_rm8 => (crc32_8, 1),
        Code::Crc32_r32_rm16 => (crc32_16, 2),
        Code::Crc32_r32_rm32 => (crc32_32, 4),
        Code::Crc32_r64_rm64 => (crc32_64, 8),
        _ => return None,
    };
    Some(FpInsn::new(FpClass::General, run).reads(len).gpr(GprUse::InOut))
}
