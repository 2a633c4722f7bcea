//! Values of vector registers and memory operands, taken apart and put together.

use core::arch::x86_64::__m128i;

use super::{FpOperands, FpState};

/// The value of an XMM register, low quadword first.
pub(super) type X = [u64; 2];

/// The register value as the host's vector type.
#[inline(always)]
pub(super) fn to_host(value: X) -> __m128i {
    // SAFETY: both are 16 plain bytes, every pattern is valid for both.
    unsafe { core::mem::transmute(value) }
}

/// The host's vector type as register value.
#[inline(always)]
pub(super) fn from_host(value: __m128i) -> X {
    // SAFETY: both are 16 plain bytes, every pattern is valid for both.
    unsafe { core::mem::transmute(value) }
}

/// The first `N` bytes of a memory operand. The core hands over exactly as many as the table says, so a shorter
/// slice is an error of the core; it reads as zeroes.
#[inline(always)]
pub(super) fn bytes<const N: usize>(mem: &[u8]) -> [u8; N] {
    debug_assert!(mem.len() >= N, "memory operand of {} bytes, {N} needed", mem.len());
    mem.first_chunk::<N>().copied().unwrap_or([0; N])
}

/// A memory operand of `N` bytes, zero-extended.
#[inline(always)]
pub(super) fn load<const N: usize>(mem: &[u8]) -> X {
    if N == 16 {
        let all = bytes::<16>(mem);
        let all = u128::from_le_bytes(all);
        return [all as u64, (all >> 64) as u64];
    }
    let mut wide = [0; 16];
    wide[..N].copy_from_slice(&bytes::<N>(mem));
    from_bytes(wide)
}

/// Fills the memory operand with the low bytes of `value`.
#[inline(always)]
pub(super) fn store<const N: usize>(mem: &mut [u8], value: X) {
    debug_assert!(mem.len() >= N, "memory operand of {} bytes, {N} needed", mem.len());
    if let Some(to) = mem.first_chunk_mut::<N>() {
        to.copy_from_slice(&to_bytes(value)[..N]);
    }
}

/// The sixteen bytes of a register.
#[inline(always)]
pub(super) fn to_bytes(value: X) -> [u8; 16] {
    (u128::from(value[0]) | u128::from(value[1]) << 64).to_le_bytes()
}

/// The register of these sixteen bytes.
#[inline(always)]
pub(super) fn from_bytes(value: [u8; 16]) -> X {
    let value = u128::from_le_bytes(value);
    [value as u64, (value >> 64) as u64]
}

/// The eight words of a register.
#[inline(always)]
pub(super) fn words(value: X) -> [u16; 8] {
    core::array::from_fn(|i| (value[i / 4] >> (i % 4 * 16)) as u16)
}

/// The register of these eight words.
#[inline(always)]
pub(super) fn from_words(words: [u16; 8]) -> X {
    let half = |w: &[u16]| w.iter().rev().fold(0, |acc, &word| acc << 16 | u64::from(word));
    [half(&words[..4]), half(&words[4..])]
}

/// The four doublewords of a register.
#[inline(always)]
pub(super) fn dwords(value: X) -> [u32; 4] {
    [value[0] as u32, (value[0] >> 32) as u32, value[1] as u32, (value[1] >> 32) as u32]
}

/// The register of these four doublewords.
#[inline(always)]
pub(super) fn from_dwords(d: [u32; 4]) -> X {
    [u64::from(d[0]) | u64::from(d[1]) << 32, u64::from(d[2]) | u64::from(d[3]) << 32]
}

impl FpState {
    /// XMM register `number`.
    #[inline(always)]
    pub(super) fn xmm(&self, number: u8) -> X {
        self.xmm[usize::from(number & 15)]
    }

    /// XMM register `number`, to be changed.
    #[inline(always)]
    pub(super) fn xmm_mut(&mut self, number: u8) -> &mut X {
        &mut self.xmm[usize::from(number & 15)]
    }
}

/// The second operand: `N` bytes of memory, zero-extended, or the whole XMM register.
#[inline(always)]
pub(super) fn source<const N: usize>(state: &FpState, operands: &FpOperands<'_>) -> X {
    if operands.mem.is_empty() { state.xmm(operands.src) } else { load::<N>(operands.mem) }
}
