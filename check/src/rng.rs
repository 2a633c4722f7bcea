//! A fixed small generator: schedules are a function of (seed, index) for ever, so it must not change with a
//! library's version.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A stream for one schedule.
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        let mut rng = Rng(seed ^ 0x7265_7769_6e64_0000);
        let mixed = rng.next();
        Rng(mixed ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03))
    }

    /// 64 uniform bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform below `bound` (0 for a bound of 0); the bias of a multiply-shift is below 2^-32 here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
