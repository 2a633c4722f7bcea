//! The EROFS on-disk format, as far as an uncompressed image needs it: superblock, inodes, attributes and
//! directory blocks as bytes. Pure functions; nothing here knows where data comes from.
//!
//! Source of the facts: Linux 6.12 `fs/erofs/erofs_fs.h` (structures), `super.c` (what a mount checks),
//! `inode.c`, `namei.c` (order of names), `data.c` (where inline data may lie) and
//! `Documentation/filesystems/erofs.rst`. All numbers are little-endian.

/// Bytes of one block. The kernel takes 512 to 4096; a page is what the page store keeps.
pub const BLOCK: u64 = 4096;
/// [`BLOCK`] for indexing.
pub(crate) const BLOCK_LEN: usize = 4096;
/// Bytes of one inode slot; an inode number times this is its byte offset (with `meta_blkaddr` 0).
pub(crate) const SLOT: u64 = 32;
/// Bytes of an extended inode, the only kind written: it has 32-bit owners and its own time.
pub(crate) const INODE_LEN: usize = 64;
/// Where the superblock lies.
pub(crate) const SUPER_OFFSET: usize = 1024;
/// Bytes of the superblock without extension slots.
pub(crate) const SUPER_LEN: usize = 128;
/// `EROFS_SUPER_MAGIC_V1`.
pub(crate) const MAGIC: u32 = 0xe0f5_e1e2;
/// Longest name in a directory.
pub const NAME_MAX: usize = 255;
/// Longest target of a symbolic link (`PATH_MAX` less the terminator).
pub const TARGET_MAX: usize = 4095;
/// Blocks a 32-bit block address can name; a larger image cannot be written.
pub(crate) const BLOCKS_MAX: u64 = 0xffff_ffff;

const COMPAT_CHECKSUM: u32 = 1;
const COMPAT_MTIME: u32 = 2;

/// What the superblock says beyond constants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Super {
    /// Inode number of the root directory.
    pub(crate) root_nid: u16,
    /// Inodes in the image.
    pub(crate) inodes: u64,
    /// Blocks in the image, for statfs only.
    pub(crate) blocks: u32,
    /// Volume identity.
    pub(crate) uuid: [u8; 16],
}

impl Super {
    /// Writes the superblock into the first block of the image and checks it in. Must run after everything else
    /// in that block is in place, because the checksum covers the block from the superblock to its end.
    pub(crate) fn write(&self, block: &mut [u8]) {
        let sb = &mut block[SUPER_OFFSET..BLOCK_LEN];
        sb[..SUPER_LEN].fill(0);
        put32(sb, 0, MAGIC);
        put32(sb, 8, COMPAT_CHECKSUM | COMPAT_MTIME);
        sb[12] = BLOCK.trailing_zeros() as u8;
        put16(sb, 14, self.root_nid);
        put64(sb, 16, self.inodes);
        put32(sb, 36, self.blocks);
        sb[48..64].copy_from_slice(&self.uuid);
        let checksum = crc32c(sb);
        put32(sb, 4, checksum);
    }

    /// Changes the volume identity of a written superblock.
    pub(crate) fn set_uuid(block: &mut [u8], uuid: [u8; 16]) {
        let sb = &mut block[SUPER_OFFSET..BLOCK_LEN];
        sb[48..64].copy_from_slice(&uuid);
        put32(sb, 4, 0);
        let checksum = crc32c(sb);
        put32(sb, 4, checksum);
    }
}

/// `i_format` bits 1..3: where an inode's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataLayout {
    /// Whole blocks from `raw_blkaddr`; a partial last block is padded.
    Plain = 0,
    /// Full blocks from `raw_blkaddr`, the rest right behind the inode.
    Inline = 2,
}

/// One extended inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    pub(crate) layout: DataLayout,
    /// Type and permission bits, as `st_mode`.
    pub(crate) mode: u16,
    pub(crate) size: u64,
    /// `raw_blkaddr`, or the device number of a device node.
    pub(crate) data: u32,
    /// 32-bit inode number, for 32-bit stat only.
    pub(crate) ino: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Mtime,
    pub(crate) nlink: u32,
    /// Bytes of the attribute body behind the inode (0 or at least 16).
    pub(crate) xattr_len: usize,
}

impl Inode {
    pub(crate) fn encode(&self) -> [u8; INODE_LEN] {
        let mut out = [0; INODE_LEN];
        put16(&mut out, 0, 1 | ((self.layout as u16) << 1));
        put16(&mut out, 2, xattr_icount(self.xattr_len));
        put16(&mut out, 4, self.mode);
        put64(&mut out, 8, self.size);
        put32(&mut out, 16, self.data);
        put32(&mut out, 20, self.ino);
        put32(&mut out, 24, self.uid);
        put32(&mut out, 28, self.gid);
        put64(&mut out, 32, self.mtime.seconds as u64);
        put32(&mut out, 40, self.mtime.nanos);
        put32(&mut out, 44, self.nlink);
        out
    }
}

/// A modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtime {
    /// Seconds since 1970.
    pub seconds: i64,
    /// 0..1_000_000_000.
    pub nanos: u32,
}

impl Mtime {
    /// 1980-01-01T00:00:00Z, given to everything whose own time is not taken over: the earliest time that every
    /// archive format a guest may use can hold.
    pub const FIXED: Mtime = Mtime { seconds: 315_532_800, nanos: 0 };
}

/// `i_xattr_icount` for a body of `len` bytes: a header of 12 and the rest in fours, the header counted as one.
fn xattr_icount(len: usize) -> u16 {
    if len == 0 { 0 } else { u16::try_from((len - 12) / 4 + 1).expect("checked by xattr_body") }
}

/// One extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Xattr {
    /// Whole name, e.g. `user.comment`.
    pub name: Box<[u8]>,
    /// Value.
    pub value: Box<[u8]>,
}

/// Splits an attribute's name into the format's prefix number and the rest; none if the format has no number for
/// it.
pub(crate) fn xattr_index(name: &[u8]) -> Option<(u8, &[u8])> {
    match name {
        b"system.posix_acl_access" => Some((2, b"")),
        b"system.posix_acl_default" => Some((3, b"")),
        _ => [(1, &b"user."[..]), (4, b"trusted."), (6, b"security.")]
            .into_iter()
            .find_map(|(index, prefix)| Some((index, name.strip_prefix(prefix)?)))
            .filter(|(_, rest)| !rest.is_empty()),
    }
}

/// Encodes attributes (sorted by name by the caller) as the body behind an inode; empty for none. None if one
/// cannot be held: unknown prefix, name over 255 bytes, value over 65535, or more than 262148 bytes in all.
pub(crate) fn xattr_body(xattrs: &[Xattr]) -> Option<Vec<u8>> {
    if xattrs.is_empty() {
        return Some(Vec::new());
    }
    let mut out = vec![0; 12];
    for xattr in xattrs {
        let (index, rest) = xattr_index(&xattr.name)?;
        out.push(u8::try_from(rest.len()).ok()?);
        out.push(index);
        out.extend(u16::try_from(xattr.value.len()).ok()?.to_le_bytes());
        out.extend(rest);
        out.extend(&*xattr.value);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    u16::try_from((out.len() - 12) / 4 + 1).ok()?;
    Some(out)
}

/// `file_type` of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileType {
    Regular = 1,
    Directory = 2,
    Character = 3,
    Block = 4,
    Fifo = 5,
    Symlink = 7,
}

impl FileType {
    /// From its number, for those the host's root shows.
    pub(crate) fn from_byte(byte: u8) -> Option<FileType> {
        [FileType::Regular, FileType::Directory, FileType::Fifo, FileType::Symlink]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) nid: u64,
    pub(crate) kind: FileType,
}

const DIRENT: usize = 12;

/// Splits names (sorted bytewise, `.` and `..` among them) into blocks: how many go into each. A block holds all
/// its fixed-size entries, then their names.
fn dir_split<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> Vec<(usize, usize)> {
    let mut blocks = vec![(0, 0)];
    for name in names {
        let need = DIRENT + name.len();
        let last = blocks.last_mut().expect("never empty");
        if last.1 + need > BLOCK_LEN {
            blocks.push((1, need));
        } else {
            *last = (last.0 + 1, last.1 + need);
        }
    }
    blocks
}

/// Bytes a directory of these names takes: full blocks and what the last one uses.
pub(crate) fn dir_size<'a>(names: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let blocks = dir_split(names);
    (blocks.len() as u64 - 1) * BLOCK + blocks.last().expect("never empty").1 as u64
}

/// Encodes a directory; as long as [`dir_size`] says.
pub(crate) fn dir_encode(entries: &[Entry<'_>]) -> Vec<u8> {
    let blocks = dir_split(entries.iter().map(|e| e.name));
    let mut out = Vec::with_capacity(blocks.len() * BLOCK_LEN);
    let mut rest = entries;
    for (index, &(count, used)) in blocks.iter().enumerate() {
        let (here, after) = rest.split_at(count);
        let mut name_at = count * DIRENT;
        for entry in here {
            out.extend(entry.nid.to_le_bytes());
            out.extend((name_at as u16).to_le_bytes());
            out.push(entry.kind as u8);
            out.push(0);
            name_at += entry.name.len();
        }
        here.iter().for_each(|entry| out.extend(entry.name));
        if index + 1 < blocks.len() {
            out.resize(out.len() + BLOCK_LEN - used, 0);
        }
        rest = after;
    }
    out
}

/// A device number as an inode holds it (`new_encode_dev` in the kernel).
pub(crate) fn device_number(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// CRC-32C as the kernel's `crc32c(~0, ..)` gives it: not inverted at the end.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

fn put16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

fn put32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_standard_one_without_the_last_inversion() {
        // RFC 3720 B.4: 32 bytes of zeros give 8a9136aa.
        assert_eq!(crc32c(&[0; 32]), !0x8a91_36aa);
    }

    #[test]
    fn device_numbers_are_as_the_kernel_packs_them() {
        assert_eq!(device_number(1, 3), 0x103);
        assert_eq!(device_number(8, 0x1ff), 0x0010_08ff);
    }

    #[test]
    fn directory_blocks_hold_entries_then_names_and_fill_up() {
        let names: Vec<Vec<u8>> = (0..100).map(|n| format!("{n:0200}").into_bytes()).collect();
        let entries: Vec<_> =
            names.iter().map(|name| Entry { name, nid: 7, kind: FileType::Regular }).collect();
        let bytes = dir_encode(&entries);
        assert_eq!(bytes.len() as u64, dir_size(names.iter().map(|n| &n[..])));
        // 19 entries of 212 bytes fit a block.
        assert_eq!(u16::from_le_bytes([bytes[8], bytes[9]]), 19 * 12);
        assert_eq!(bytes.len(), 5 * 4096 + 5 * 212);
    }

    #[test]
    fn attributes_that_cannot_be_held_are_refused() {
        let xattr = |name: &str, len| Xattr { name: name.as_bytes().into(), value: vec![1; len].into() };
        assert!(xattr_body(&[xattr("user.a", 65535)]).is_some());
        assert!(xattr_body(&[xattr("user.a", 65536)]).is_none());
        assert!(xattr_body(&[xattr("user.", 1)]).is_none());
        assert!(xattr_body(&[xattr("btrfs.x", 1)]).is_none());
        assert!(xattr_body(&vec![xattr("user.a", 65535); 3]).is_some());
        assert!(xattr_body(&vec![xattr("user.a", 65535); 4]).is_none());
    }
}
