//! Machine code assembled by the compiler and kept as bytes.

/// Bytes of a micro-guest; position-independent.
pub type GuestCode = &'static [u8];

/// `guest_code!(NAME = "instruction", ...)`: a function `NAME()` that answers the assembled bytes (Intel syntax).
#[macro_export]
macro_rules! guest_code {
    ($(#[$doc:meta])* $name:ident = $($line:literal),+ $(,)?) => {
        ::core::arch::global_asm!(
            ".pushsection .rodata.rewind_guest_code, \"a\", @progbits",
            concat!(".globl \"", module_path!(), "::", stringify!($name), "_start\""),
            concat!("\"", module_path!(), "::", stringify!($name), "_start\":"),
            $($line,)+
            concat!(".globl \"", module_path!(), "::", stringify!($name), "_end\""),
            concat!("\"", module_path!(), "::", stringify!($name), "_end\":"),
            ".byte 0",
            ".popsection",
        );
        $(#[$doc])*
        fn $name() -> $crate::micro::GuestCode {
            unsafe extern "C" {
                #[link_name = concat!(module_path!(), "::", stringify!($name), "_start")]
                static START: u8;
                #[link_name = concat!(module_path!(), "::", stringify!($name), "_end")]
                static END: u8;
            }
            let (start, end) = (&raw const START, &raw const END);
            // SAFETY: both labels are in one section, START before END, and everything between is initialised.
            unsafe { ::core::slice::from_raw_parts(start, end.addr() - start.addr()) }
        }
    };
}
