//! Where a case lives. The same addresses are used natively and in the software CPU, below 2 GiB so that
//! 32-bit addressing reaches most of them, with every kind of page edge: unmapped, read-only, not executable.

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// What user mode may do with a span of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read.
    ReadOnly,
    /// Read and write, not execute.
    ReadWrite,
    /// Everything: self-modifying code is a case too.
    All,
}

/// Consecutive pages with the same access. Neighbouring spans may touch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// First linear address.
    pub base: u64,
    /// Pages.
    pub pages: u64,
    /// Access for user mode.
    pub access: Access,
}

impl Span {
    /// Bytes.
    pub const fn size(&self) -> u64 {
        self.pages * PAGE
    }

    /// One past the last address.
    pub const fn end(&self) -> u64 {
        self.base + self.size()
    }
}

/// Code under test, filled with INT3 where a case has none.
pub const CODE: Span = Span { base: 0x1000_0000, pages: 2, access: Access::All };
/// Most memory operands: an unmapped page before, read-only after.
pub const DATA: Span = Span { base: 0x2000_0000, pages: 2, access: Access::ReadWrite };
/// Right behind [`DATA`], unmapped after it.
pub const DATA_READ_ONLY: Span = Span { base: DATA.end(), pages: 1, access: Access::ReadOnly };
/// Read-only, followed by writable.
pub const READ_ONLY_FIRST: Span = Span { base: 0x2100_0000, pages: 1, access: Access::ReadOnly };
/// Right behind [`READ_ONLY_FIRST`], unmapped after it.
pub const WRITABLE_SECOND: Span = Span { base: READ_ONLY_FIRST.end(), pages: 1, access: Access::ReadWrite };
/// Stack, unmapped on both sides.
pub const STACK: Span = Span { base: 0x3000_0000, pages: 2, access: Access::ReadWrite };
/// Reached by 64-bit addresses only.
pub const HIGH: Span = Span { base: 0x4567_89ab_c000, pages: 1, access: Access::ReadWrite };

/// All spans, in image order.
pub const SPANS: [Span; 7] = [CODE, DATA, DATA_READ_ONLY, READ_ONLY_FIRST, WRITABLE_SECOND, STACK, HIGH];

/// Bytes of the image: all spans one after another.
pub const IMAGE: usize = {
    let mut sum = 0;
    let mut i = 0;
    while i < SPANS.len() {
        sum += SPANS[i].size() as usize;
        i += 1;
    }
    sum
};

/// A read-only page of addresses for the exit stubs: natively of the trampoline, in the software CPU unmapped.
pub const SLOTS: u64 = 0x7000_0000;
/// The exits a case may have.
pub const EXITS: usize = 8;
/// In the software CPU, slot `k` holds this plus `16 * k`: nothing is there, so the fetch faults and says `k`.
pub const SOFT_EXIT: u64 = 0x7200_0000;
/// The native executor's own page for register images, not seen by the software CPU. No case refers to it.
pub const CONTROL: u64 = 0x7100_0000;

/// Does an access of up to `len` bytes on either side of `address` meet the harness's own pages?
pub fn harness(address: u64, len: u64) -> bool {
    [SLOTS, CONTROL, SOFT_EXIT]
        .iter()
        .any(|&page| address.wrapping_add(len) >= page && address < page + PAGE + len)
}

/// The bytes that leave a case by exit `k`: `jmp qword [SLOTS + 8 * k]`, which changes no register or flag.
pub fn exit_stub(k: usize) -> [u8; 7] {
    assert!(k < EXITS);
    let [a, b, c, d] = (SLOTS as u32 + 8 * k as u32).to_le_bytes();
    [0xff, 0x24, 0x25, a, b, c, d]
}

/// Offset in the image of a linear address, if a span has it.
pub fn image_offset(address: u64) -> Option<usize> {
    let mut offset = 0;
    for span in SPANS {
        if (span.base..span.end()).contains(&address) {
            return Some(offset + (address - span.base) as usize);
        }
        offset += span.size() as usize;
    }
    None
}

/// Linear address of a byte of the image.
pub fn image_address(offset: usize) -> u64 {
    let mut rest = offset as u64;
    for span in SPANS {
        if rest < span.size() {
            return span.base + rest;
        }
        rest -= span.size();
    }
    panic!("offset {offset:#x} is outside the image");
}

/// What the image holds before a case's own bytes: INT3 in the code pages; elsewhere a mix of random bytes and
/// values that matter (small integers, sign limits, floats of every class), the same on every host.
pub fn background() -> Vec<u8> {
    let mut rng = fastrand::Rng::with_seed(0x0062_6163_6b67);
    let mut image = vec![0xcc; IMAGE];
    let start = CODE.size() as usize;
    for chunk in image[start..].chunks_exact_mut(16) {
        let value = crate::values::memory_16(&mut rng);
        chunk.copy_from_slice(&value);
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_addresses_are_inverse() {
        for offset in [0, 1, 4095, 4096, 0x4fff, 0x5000, IMAGE - 1] {
            assert_eq!(image_offset(image_address(offset)), Some(offset));
        }
        assert_eq!(image_offset(CODE.base - 1), None);
        assert_eq!(image_offset(STACK.end()), None);
    }
}
