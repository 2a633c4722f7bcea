//! The index beside a pack: which page lies where. Append-only; fixed entries with their own check, so that a
//! torn tail is told from data.

use super::page::PageHash;

/// Header of pack and index files: magic (8), version (u32), the pack's number (u32).
pub(super) const HEADER: u64 = 16;
pub(super) const VERSION: u32 = 1;
pub(super) const PACK_MAGIC: [u8; 8] = *b"RWDPACK\0";
pub(super) const INDEX_MAGIC: [u8; 8] = *b"RWDINDX\0";
/// Bytes of an index entry: hash (32), offset in the pack (u64), stored length (u32), check (u32).
pub(super) const ENTRY: usize = 48;

/// Where a page lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) pack: u32,
    /// Bytes as stored; 4096 = not compressed.
    pub(super) len: u32,
    pub(super) offset: u64,
}

pub(super) fn header(magic: [u8; 8], pack: u32) -> [u8; HEADER as usize] {
    let mut out = [0; HEADER as usize];
    out[..8].copy_from_slice(&magic);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..].copy_from_slice(&pack.to_le_bytes());
    out
}

fn check(entry: &[u8], pack: u32) -> [u8; 4] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&pack.to_le_bytes());
    hasher.update(&entry[..44]);
    let hash = hasher.finalize();
    let bytes = hash.as_bytes();
    [bytes[0], bytes[1], bytes[2], bytes[3]]
}

pub(super) fn encode(hash: PageHash, at: Location) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    out[..32].copy_from_slice(&hash.0);
    out[32..40].copy_from_slice(&at.offset.to_le_bytes());
    out[40..44].copy_from_slice(&at.len.to_le_bytes());
    let check = check(&out, at.pack);
    out[44..].copy_from_slice(&check);
    out
}

/// `None`: torn or damaged.
pub(super) fn decode(entry: &[u8; ENTRY], pack: u32) -> Option<(PageHash, Location)> {
    if check(entry, pack) != entry[44..] {
        return None;
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(&entry[..32]);
    let mut offset = [0; 8];
    offset.copy_from_slice(&entry[32..40]);
    let mut len = [0; 4];
    len.copy_from_slice(&entry[40..44]);
    let at = Location { pack, offset: u64::from_le_bytes(offset), len: u32::from_le_bytes(len) };
    Some((PageHash(hash), at))
}
