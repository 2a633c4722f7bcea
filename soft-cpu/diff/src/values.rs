//! Values that matter: limits of integers, floats of every class, mixed with random ones.

use fastrand::Rng;

/// A 64-bit integer, often one where carries, signs and truncations change.
pub fn int(rng: &mut Rng) -> u64 {
    match rng.u8(..16) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => [0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x1_0000][rng.usize(..8)],
        4 => [0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000][rng.usize(..4)],
        5 => [i64::MAX as u64, i64::MIN as u64, i64::MIN as u64 + 1, u64::MAX - 1][rng.usize(..4)],
        6 => (i64::from(rng.i8(..))) as u64,
        7 => u64::from(rng.u8(..)),
        8 => (rng.i32(..) as i64) as u64,
        9 => u64::from(rng.u32(..)),
        10 => 1 << rng.u32(..64),
        11 => (1u64 << rng.u32(..64)).wrapping_sub(1),
        _ => rng.u64(..),
    }
}

/// Bits of a single-precision float, NaNs, infinities, denormals and conversion limits included.
pub fn f32_bits(rng: &mut Rng) -> u32 {
    let sign = rng.u32(..2) << 31;
    sign | match rng.u8(..20) {
        0 => 0,
        1 => 0x3f80_0000,
        2 => 0x7f80_0000,
        3 => 0x7fc0_0000 | rng.u32(..0x40_0000),
        4 => 0x7f80_0001 + rng.u32(..0x3f_ffff),
        5 => 1 + rng.u32(..0x7f_ffff),
        6 => 1,
        7 => 0x0080_0000,
        8 => 0x7f7f_ffff,
        9 => 0x3f00_0000,
        10 => [0x4eff_ffff, 0x4f00_0000, 0x4f00_0001, 0x4f80_0000, 0x5eff_ffff, 0x5f00_0000, 0x5f80_0000]
            [rng.usize(..7)],
        11 => ((rng.u32(..2000) as f32) / 4.0).to_bits(),
        12 => (rng.u32(..100) as f32).to_bits(),
        13 => (rng.u32(1..255) << 23) | (rng.u32(..8) << 20),
        14 => (rng.u32(100..150) << 23) | rng.u32(..0x80_0000),
        _ => rng.u32(..0x8000_0000),
    }
}

/// As [`f32_bits`], double precision.
pub fn f64_bits(rng: &mut Rng) -> u64 {
    let sign = rng.u64(..2) << 63;
    sign | match rng.u8(..20) {
        0 => 0,
        1 => 0x3ff0_0000_0000_0000,
        2 => 0x7ff0_0000_0000_0000,
        3 => 0x7ff8_0000_0000_0000 | rng.u64(..1 << 51),
        4 => 0x7ff0_0000_0000_0001 + rng.u64(..(1 << 51) - 1),
        5 => 1 + rng.u64(..(1 << 52) - 1),
        6 => 1,
        7 => 0x0010_0000_0000_0000,
        8 => 0x7fef_ffff_ffff_ffff,
        9 => 0x3fe0_0000_0000_0000,
        10 => [
            2147483647.0f64,
            2147483647.5,
            2147483648.0,
            2147483648.5,
            2147483649.0,
            4294967296.0,
            9223372036854775808.0,
            9223372036854774784.0,
            18446744073709551616.0,
            4503599627370497.5,
        ][rng.usize(..10)]
        .to_bits(),
        11 => (f64::from(rng.u32(..2000)) / 4.0).to_bits(),
        12 => f64::from(rng.u32(..100)).to_bits(),
        // Around the limits of single precision, where conversions overflow, underflow and round.
        13 => [
            0x47ef_ffff_e000_0000,
            0x47ef_ffff_efff_ffff,
            0x47ef_ffff_f000_0000,
            0x3810_0000_0000_0000,
            0x380f_ffff_ffff_ffff,
            0x3690_0000_0000_0000,
            0x36a0_0000_0000_0000,
        ][rng.usize(..7)],
        14 => (rng.u64(1000..1060) << 52) | rng.u64(..1 << 52),
        15 => (rng.u64(890..1160) << 52) | (rng.u64(..1 << 23) << 29),
        _ => rng.u64(..1 << 63),
    }
}

/// An 80-bit x87 value, unsupported encodings included.
pub fn f80(rng: &mut Rng) -> [u8; 10] {
    const J: u64 = 1 << 63;
    let sign = (rng.u16(..2)) << 15;
    let (exponent, mantissa): (u16, u64) = match rng.u8(..24) {
        0 => (0, 0),
        1 => (0x3fff, J),
        2 => (0x7fff, J),
        3 => (0x7fff, J | (1 << 62) | rng.u64(..1 << 62)),
        4 => (0x7fff, J | (1 + rng.u64(..(1 << 62) - 1))),
        5 => (0, 1 + rng.u64(..J - 1)),
        6 => (0, J | rng.u64(..J)),
        7 => (rng.u16(1..0x7fff), rng.u64(..J)),
        8 => (0x7fff, rng.u64(..J)),
        9 => (1, J),
        10 => (0x7ffe, u64::MAX),
        11 => (0x3fff + rng.u16(..70), J | (rng.u64(..16) << 59)),
        12 => (0x3fff + rng.u16(..66), J | rng.u64(..J)),
        13 => (0x3fff - rng.u16(..70), J | rng.u64(..J)),
        // The limits of double and single precision.
        14 => (0x3fff + [1023, 1024, 127, 128, 63, 31, 15][rng.usize(..7)], J | rng.u64(..J)),
        15 => (0x3fff - [1022, 1023, 1074, 1075, 126, 127, 149, 150][rng.usize(..8)], J | rng.u64(..J)),
        16 => (0x3ffe, J),
        17 | 18 => {
            let value = rng.u64(1..1000);
            let shift = value.leading_zeros();
            (0x3fff + 63 - shift as u16, value << shift)
        }
        _ => (rng.u16(0x3f00..0x4100), J | rng.u64(..J)),
    };
    let mut out = [0; 10];
    out[..8].copy_from_slice(&mantissa.to_le_bytes());
    out[8..].copy_from_slice(&(exponent | sign).to_le_bytes());
    out
}

/// Ten bytes of packed decimal, now and then with digits that are none.
pub fn bcd(rng: &mut Rng) -> [u8; 10] {
    let mut out = [0; 10];
    for byte in &mut out[..9] {
        *byte = if rng.u8(..40) == 0 { rng.u8(..) } else { rng.u8(..10) << 4 | rng.u8(..10) };
    }
    out[9] = if rng.u8(..10) == 0 { rng.u8(..) } else { rng.u8(..2) << 7 };
    out
}

/// Sixteen bytes of one kind of element.
pub fn vector(rng: &mut Rng) -> [u64; 2] {
    match rng.u8(..8) {
        0 | 1 => {
            let mut half = || u64::from(f32_bits(rng)) | u64::from(f32_bits(rng)) << 32;
            [half(), half()]
        }
        2 | 3 => [f64_bits(rng), f64_bits(rng)],
        4 => [int(rng), int(rng)],
        5 => {
            // Bytes and words at their limits, for the saturating operations.
            let mut half = || {
                let words = [0u16, 1, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff, 0x8080];
                (0..4).fold(0, |sum, _| sum << 16 | u64::from(words[rng.usize(..10)]))
            };
            [half(), half()]
        }
        6 => {
            // Text, with a zero somewhere, for the string comparisons.
            let mut bytes = [0u8; 16];
            for byte in &mut bytes {
                *byte = rng.u8(0x60..0x66);
            }
            if rng.bool() {
                bytes[rng.usize(..16)] = 0;
            }
            let value = u128::from_le_bytes(bytes);
            [value as u64, (value >> 64) as u64]
        }
        _ => [rng.u64(..), rng.u64(..)],
    }
}

/// Sixteen bytes of memory background.
pub fn memory_16(rng: &mut Rng) -> [u8; 16] {
    let mut out = [0; 16];
    if rng.u8(..4) == 0 {
        out[..10].copy_from_slice(&f80(rng));
    } else {
        let [a, b] = vector(rng);
        out[..8].copy_from_slice(&a.to_le_bytes());
        out[8..].copy_from_slice(&b.to_le_bytes());
    }
    out
}

/// An MXCSR: usually all exceptions masked.
pub fn mxcsr(rng: &mut Rng) -> u32 {
    match rng.u8(..8) {
        0..3 => 0x1f80,
        // Any rounding, DAZ, FTZ and sticky flags; masked.
        3..6 => 0x1f80 | rng.u32(..) & 0xe07f,
        6 => (0x1f80 & !(1 << rng.u32(7..13))) | rng.u32(..) & 0xe07f,
        _ => rng.u32(..0x1_0000),
    }
}

/// An x87 control word: usually all exceptions masked and extended precision.
pub fn fcw(rng: &mut Rng) -> u16 {
    let mut fcw: u16 = 0x37f;
    if rng.bool() {
        fcw = (fcw & 0xf0ff) | (rng.u16(..4) << 10) | [0x300, 0x300, 0x300, 0x200, 0][rng.usize(..5)];
    }
    match rng.u8(..8) {
        0 => fcw & !(1 << rng.u32(..6)),
        1 => (fcw & !0x3f) | rng.u16(..0x40) | 0x40,
        _ => fcw,
    }
}
