//! A page's name: the BLAKE3 of its 4 KiB.

use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;

/// BLAKE3 of a page's content; the page of zeros is named by 32 zero bytes and never stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageHash(pub [u8; 32]);

impl PageHash {
    /// The page of zeros.
    pub const ZERO: PageHash = PageHash([0; 32]);

    /// The name of this content.
    pub fn of(page: &[u8; PAGE_SIZE]) -> Self {
        if is_zero(page) { Self::ZERO } else { PageHash(*blake3::hash(page).as_bytes()) }
    }

    /// Is this the page of zeros?
    pub fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
}

impl std::fmt::Display for PageHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for PageHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageHash({self})")
    }
}

/// Nothing but zeros? Reads eight bytes at a time and stops at the first that is not.
pub fn is_zero(page: &[u8; PAGE_SIZE]) -> bool {
    page.chunks_exact(64).all(|chunk| {
        chunk.chunks_exact(8).fold(0, |all, word| {
            all | u64::from_ne_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]])
        }) == 0
    })
}
