//! Where things of the host's root lie in its image: a function of their path, so that a change elsewhere on the host
//! moves nothing and a run that used none of it stays the same run.
//!
//! ```text
//! block 0            superblock          block 1   root directory's inode
//! 2^20 .. 2^30       directories' blocks and data of files under 256 MiB
//! 2^30 .. 2^31       data of larger files
//! 2^31 .. 2^32       one inode a block
//! ```
//!
//! All of it lies below block 2^32: the kernel finds an inode's block by its number in 32 bits (`erofs_blk_t`,
//! fs/erofs/internal.h and inode.c), as it does data. Two paths that want one place are told apart by who came first,
//! which a run repeats.

use std::collections::BTreeMap;
use std::ops::Range;

const SMALL: Range<u64> = 1 << 20..1 << 30;
const LARGE: Range<u64> = 1 << 30..1 << 31;
/// Blocks from which on data counts as large.
const LARGE_FROM: u64 = 1 << 16;
/// First block of inodes.
const INODES: u64 = 1 << 31;
const INODE_BLOCKS: u64 = (1 << 31) - 2048;
/// Blocks in all; a few more than inodes hash to, for those that had to move.
pub(super) const BLOCKS: u64 = INODES + INODE_BLOCKS + 1024;
/// The root directory's inode.
pub(super) const ROOT: u64 = 1;

/// Where the inode of `path` lies; `taken` says whether another path has a block.
pub(super) fn inode_block(path: &[u8], taken: impl Fn(u64) -> bool) -> u64 {
    if path.is_empty() {
        return ROOT;
    }
    let wanted = INODES + hash("rewind root inode 1", path) % INODE_BLOCKS;
    (wanted..BLOCKS).find(|&block| !taken(block)).unwrap_or(wanted)
}

/// Ranges of data blocks in use: first block to blocks and owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Data(BTreeMap<u64, (u64, u64)>);

impl Data {
    /// A place for `blocks` blocks of `path`, whose inode's block is `owner`; none if there is no room.
    pub(super) fn place(&mut self, path: &[u8], blocks: u64, owner: u64) -> Option<u64> {
        let region = if blocks < LARGE_FROM { SMALL } else { LARGE };
        let room = (region.end - region.start).checked_sub(blocks)?;
        let mut at = region.start + hash("rewind root data 1", path) % (room + 1);
        let mut wrapped = false;
        while let Some(end) = self.overlap(at, blocks) {
            at = end;
            if at + blocks > region.end {
                if wrapped {
                    return None;
                }
                (at, wrapped) = (region.start, true);
            }
        }
        self.0.insert(at, (blocks, owner));
        Some(at)
    }

    /// Puts in what was placed before.
    pub(super) fn restore(&mut self, first: u64, blocks: u64, owner: u64) {
        self.0.insert(first, (blocks, owner));
    }

    /// The end of a range that overlaps.
    fn overlap(&self, at: u64, blocks: u64) -> Option<u64> {
        let (&first, &(len, _)) = self.0.range(..at + blocks).next_back()?;
        (first + len > at).then_some(first + len)
    }

    /// Who has a block: first block of the range and owner.
    pub(super) fn owner(&self, block: u64) -> Option<(u64, u64)> {
        let (&first, &(len, owner)) = self.0.range(..=block).next_back()?;
        (first + len > block).then_some((first, owner))
    }
}

fn hash(context: &str, path: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    hasher.update(path);
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().expect("8 of 32"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_never_overlap_and_come_again() {
        let place = || {
            let mut data = Data::default();
            // Large enough that some want the same place, and with room for all however they fall.
            (0..20u64)
                .map(|n| data.place(&n.to_le_bytes(), (1 << 24) - 1 - n, n).expect("room"))
                .collect::<Vec<_>>()
        };
        let places = place();
        assert_eq!(places, place());
        let mut sorted: Vec<_> =
            places.iter().zip(0..).map(|(&at, n): (_, u64)| (at, at + (1 << 24) - 1 - n)).collect();
        sorted.sort();
        assert!(sorted.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert!(sorted.last().expect("some").1 <= LARGE.end);
        let mut full = Data::default();
        assert!(full.place(b"x", (1 << 30) + 1, 0).is_none());
        assert!(full.place(b"x", 1 << 30, 0).is_some());
        assert!(full.place(b"y", 1 << 16, 0).is_none());
    }

    #[test]
    fn inodes_that_want_one_block_move_on() {
        let wanted = inode_block(b"a", |_| false);
        assert_eq!(inode_block(b"a", |block| block == wanted), wanted + 1);
    }
}
