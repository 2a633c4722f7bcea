//! Random states with special values.

use crate::fp::FpState;

/// Deterministic random numbers (xorshift64*, Vigna 2016).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

pub(super) const SINGLES: [u32; 18] = [
    0,
    0x8000_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0001,
    0xffc0_0000,
    0x7f80_0001,
    0xffa0_0000,
    1,
    0x807f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0x4f00_0000,
    0xcf00_0000,
    0x4b7f_ffff,
    0x3f00_0000,
];

pub(super) const DOUBLES: [u64; 20] = [
    0,
    0x8000 << 48,
    0x3ff0 << 48,
    0xbff0 << 48,
    0x7ff0 << 48,
    0xfff0 << 48,
    0x7ff8_0000_0000_0001,
    0xfff8 << 48,
    0x7ff0_0000_0000_0001,
    0xfff4 << 48,
    1,
    0x800f_ffff_ffff_ffff,
    0x0010 << 48,
    0x7fef_ffff_ffff_ffff,
    0x41e0 << 48,
    0xc1e0_0000_0020_0000,
    0x43e0 << 48,
    0x36a0 << 48,
    0x47ef_ffff_f000_0000,
    0x3fe0 << 48,
];

pub(super) const EXTENDED: [(u16, u64); 20] = [
    (0, 0),
    (0x8000, 0),
    (0x3fff, 1 << 63),
    (0xbfff, 1 << 63),
    (0x7fff, 1 << 63),
    (0xffff, 1 << 63),
    (0x7fff, 3 << 62),
    (0xffff, 0xc000_0000_0000_0001),
    (0x7fff, 0x8000_0000_0000_0001),
    (0, 1),
    (0x8000, 0x7fff_ffff_ffff_ffff),
    (0, 1 << 63),
    (1, 1 << 63),
    (0x7ffe, u64::MAX),
    (0x4000, 0x4000_0000_0000_0000),
    (0x7fff, 0x4000_0000_0000_0000),
    (0x403e, 1 << 63),
    (0xc01e, 1 << 63),
    (0x4000, 0xc90f_daa2_2168_c235),
    (0x3ffe, 0xffff_ffff_ffff_fc00),
];

pub(super) fn quad(r: &mut Random) -> u64 {
    match r.below(6) {
        0 => r.pick(&DOUBLES),
        1 => u64::from(r.pick(&SINGLES)) | u64::from(r.pick(&SINGLES)) << 32,
        2 => (r.next() as f64 / 1e15).to_bits(),
        3 => {
            u64::from((r.next() as f32 / 1e12).to_bits()) | u64::from((r.below(1000) as f32).to_bits()) << 32
        }
        4 => r.next() & r.next() & r.next() & 0x0303_0303_7f7f_ffff,
        _ => r.next(),
    }
}

pub(super) fn extended(r: &mut Random) -> [u8; 16] {
    let (exponent, significand) = match r.below(4) {
        0 => r.pick(&EXTENDED),
        1 => ((0x3fff - 70 + r.below(140)) as u16 | r.pick(&[0, 0x8000]), r.next() | 1 << 63),
        2 => ((0x3fff - 2 + r.below(8)) as u16, (r.next() & r.next() << 20) | 1 << 63),
        _ => (r.next() as u16, r.next()),
    };
    let mut value = [0; 16];
    value[..8].copy_from_slice(&significand.to_le_bytes());
    value[8..10].copy_from_slice(&exponent.to_le_bytes());
    value
}

pub(super) fn state(r: &mut Random, x87: bool) -> FpState {
    let mut s = FpState {
        xmm: core::array::from_fn(|_| [quad(r), quad(r)]),
        x87: core::array::from_fn(|_| extended(r)),
        ..FpState::default()
    };
    // Rounding, denormals-are-zero, flush-to-zero and sticky flags at random, all exceptions masked.
    s.mxcsr = 0x1f80 | (r.next() as u32 & 0xe07f & r.pick(&[0xffff, 0, 0x6000, 0x3f]));
    s.tags = match r.below(3) {
        0 => r.next() as u8,
        _ => 0xff,
    };
    if x87 {
        // Half of the time all exceptions are masked.
        let masks = r.next() as u16 & 0x3f | r.pick(&[0x3f, 0]);
        s.fcw = 0x40 | masks | (r.next() as u16 & 0x0f00);
        // No exception may be pending: flags only where masked.
        s.fsw = r.next() as u16 & 0x7f40 | (r.next() as u16 & masks);
    }
    s
}
