//! An EROFS image given as it is. Only the guest's kernel parses it; here its superblock is checked, so that a wrong
//! file is refused with a reason and not by a mount that fails inside.

use crate::block::{BlockImage, check_range};
use crate::content::{Backing, Content, Piece, Reader};
use crate::format::{BLOCK, MAGIC, SUPER_LEN, SUPER_OFFSET, crc32c};
use crate::stamp::{read_fully, stamp_of};
use std::{fs::File, io, path::Path};

/// `EROFS_FEATURE_INCOMPAT_*` the guest's kernel (6.12) mounts without its compression: chunked files and long
/// attribute prefixes, and the padding rule, which matters to compressed data only.
const INCOMPAT_KNOWN: u32 = 0x01 | 0x04 | 0x40;
/// `EROFS_FEATURE_COMPAT_SB_CHKSUM`.
const COMPAT_CHECKSUM: u32 = 1;

/// Why a file is no usable EROFS image.
#[derive(Debug, thiserror::Error)]
pub enum ExistingError {
    /// The host says no.
    #[error(transparent)]
    Host(#[from] io::Error),
    /// Too short for its own superblock's claims.
    #[error("it is truncated: {have} bytes, its superblock says {need}")]
    Truncated {
        /// Bytes of the file.
        have: u64,
        /// Bytes stated.
        need: u64,
    },
    /// The superblock's checksum does not match.
    #[error("its superblock is damaged (wrong checksum)")]
    Checksum,
    /// A block size the kernel does not take.
    #[error("its block size (2^{0} bytes) is not one of 512 to 4096")]
    BlockSize(u8),
    /// Compressed, spread over several devices, or newer than the guest's kernel.
    #[error(
        "it needs features (0x{0:x}) that the guest's kernel is not built with: make it without compression \
         (`mkfs.erofs OUT DIR`), or give the directory itself"
    )]
    Features(u32),
    /// The root directory lies outside.
    #[error("its root directory lies outside it")]
    Root,
}

/// Whether the file begins like an EROFS image.
pub(crate) fn is_erofs(file: &File) -> io::Result<bool> {
    let mut magic = [0; 4];
    Ok(read_fully(file, &mut magic, SUPER_OFFSET as u64)? && u32::from_le_bytes(magic) == MAGIC)
}

/// The file as an image, padded with zeros to whole blocks.
#[derive(Clone, Debug)]
pub struct FileImage {
    reader: Reader,
    content: Content,
    size: u64,
}

impl FileImage {
    /// Checks the superblock of `file`, known to begin like one; `path` is for messages.
    pub(crate) fn new(file: File, path: &Path) -> Result<FileImage, ExistingError> {
        let stamp = stamp_of(&file)?;
        check_super(&file, stamp.size)?;
        let size = stamp.size;
        let pieces = Box::new([Piece { at: 0, offset: 0, len: size }]);
        let backing = Backing::File { file, path: path.to_owned(), stamp };
        Ok(FileImage {
            reader: Reader::new(vec![backing]),
            content: Content::Pieces { backing: 0, pieces },
            size,
        })
    }

    /// The file's bytes, for the content id.
    pub(crate) fn parts(&self) -> (&Reader, &Content, u64) {
        (&self.reader, &self.content, self.size)
    }
}

fn check_super(file: &File, have: u64) -> Result<(), ExistingError> {
    let mut block = [0; 4096];
    let got = have.min(4096) as usize;
    if got < SUPER_OFFSET + SUPER_LEN || !read_fully(file, &mut block[..got], 0)? {
        return Err(ExistingError::Truncated { have, need: (SUPER_OFFSET + SUPER_LEN) as u64 });
    }
    let sb = &mut block[SUPER_OFFSET..];
    let word = |sb: &[u8], at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().expect("4"));
    let bits = sb[12];
    if !(9..=12).contains(&bits) {
        return Err(ExistingError::BlockSize(bits));
    }
    let block_len = 1u64 << bits;
    let need = (u64::from(word(sb, 36)) * block_len).max((SUPER_OFFSET + SUPER_LEN) as u64);
    if have < need {
        return Err(ExistingError::Truncated { have, need });
    }
    if word(sb, 8) & COMPAT_CHECKSUM != 0 {
        // As `erofs_superblock_csum_verify`: one block, less what lies before the superblock if it fits.
        let len = if block_len > SUPER_OFFSET as u64 { block_len - SUPER_OFFSET as u64 } else { block_len };
        let stated = word(sb, 4);
        let mut covered = sb[..len as usize].to_vec();
        covered[4..8].fill(0);
        if crc32c(&covered) != stated {
            return Err(ExistingError::Checksum);
        }
    }
    let features = word(sb, 80);
    let compressions = u16::from_le_bytes([sb[84], sb[85]]);
    let devices = u16::from_le_bytes([sb[86], sb[87]]);
    if features & !INCOMPAT_KNOWN != 0 || compressions != 0 || devices != 0 {
        return Err(ExistingError::Features(features));
    }
    let root = u64::from(word(sb, 40)) * block_len + u64::from(u16::from_le_bytes([sb[14], sb[15]])) * 32;
    if root + 32 > have { Err(ExistingError::Root) } else { Ok(()) }
}

impl BlockImage for FileImage {
    fn len(&self) -> u64 {
        self.size.next_multiple_of(BLOCK)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(self.len(), offset, out.len())?;
        let have = self.size.saturating_sub(offset).min(out.len() as u64) as usize;
        let (data, padding) = out.split_at_mut(have);
        padding.fill(0);
        if data.is_empty() { Ok(()) } else { Ok(self.reader.read(&self.content, offset, data)?) }
    }
}
