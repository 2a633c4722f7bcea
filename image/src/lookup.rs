//! Files of an image by their path, without a kernel: what a debugger needs of the root a run had.
//!
//! Reads uncompressed EROFS as `format` describes it, compact inodes too (an image made by others may have them).
//! The image may be hostile: every length and address is checked, every walk is bounded.

use crate::block::{BlockImage, check_range};
use crate::format::{BLOCK, BLOCK_LEN, INODE_LEN, MAGIC, NAME_MAX, SLOT, SUPER_OFFSET, TARGET_MAX};
use std::cmp::Ordering;
use std::io;

/// Longest chain of symbolic links followed, as the kernel's (`MAXSYMLINKS`).
const LINKS_MAX: usize = 40;
/// Largest directory read: 64 MiB of entries.
const DIRECTORY_MAX: u64 = 64 << 20;

/// Why a file could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is no such file.
    #[error("there is no such file in the image")]
    Missing,
    /// It is a directory, a device or the like.
    #[error("it is no regular file")]
    NotAFile,
    /// Larger than the caller wants.
    #[error("it has {0} bytes, which is more than is read")]
    TooLarge(u64),
    /// Symbolic links without end.
    #[error("too many symbolic links")]
    Links,
    /// The image cannot be read there.
    #[error(transparent)]
    Read(#[from] io::Error),
    /// Not an image this program reads, or damaged.
    #[error("the image is damaged or compressed: {0}")]
    Damaged(&'static str),
}

/// An inode, found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Type and permission bits.
    mode: u16,
    size: u64,
    /// First data block.
    first: u64,
    /// Where the inline tail begins, for an inode that has one.
    tail: Option<u64>,
}

impl Found {
    fn kind(&self) -> u16 {
        self.mode & 0o170_000
    }

    /// Its data's bytes.
    pub fn size(&self) -> u64 {
        self.size
    }
}

const DIRECTORY: u16 = 0o040_000;
const REGULAR: u16 = 0o100_000;
const LINK: u16 = 0o120_000;

/// An image, looked into.
pub struct Lookup {
    image: Box<dyn BlockImage>,
    root: u64,
    meta: u64,
}

impl std::fmt::Debug for Lookup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lookup({} bytes)", self.image.len())
    }
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from(le16(bytes, at)) | u32::from(le16(bytes, at + 2)) << 16
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}

/// Names and inode numbers of one directory block.
fn entries(block: &[u8]) -> Result<Vec<(Vec<u8>, u64)>, LookupError> {
    if block.len() < 12 {
        return Ok(Vec::new());
    }
    let count = usize::from(le16(block, 8)) / 12;
    if count * 12 > block.len() {
        return Err(LookupError::Damaged("a directory's names lie beyond its block"));
    }
    let start = |i: usize| if i < count { usize::from(le16(block, i * 12 + 8)) } else { block.len() };
    let mut out = Vec::with_capacity(count);
    for i in 0..count {
        let text = block.get(start(i)..start(i + 1));
        let text = text.ok_or(LookupError::Damaged("a directory's names are out of order"))?;
        // The last name of a block ends at its end or at a NUL.
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        out.push((text.to_vec(), le64(block, i * 12)));
    }
    Ok(out)
}

impl Lookup {
    /// Looks into `image`.
    pub fn new(mut image: Box<dyn BlockImage>) -> Result<Lookup, LookupError> {
        let mut block = [0; BLOCK_LEN];
        image.read(0, &mut block)?;
        let sb = &block[SUPER_OFFSET..];
        if le32(sb, 0) != MAGIC || sb[12] != 12 {
            return Err(LookupError::Damaged("it has no superblock of 4 KiB blocks"));
        }
        let (root, meta) = (u64::from(le16(sb, 14)), u64::from(le32(sb, 40)) * BLOCK);
        Ok(Lookup { image, root, meta })
    }

    fn inode(&mut self, nid: u64) -> Result<Found, LookupError> {
        let beyond = LookupError::Damaged("an inode lies beyond its end");
        let at = nid.checked_mul(SLOT).and_then(|at| at.checked_add(self.meta)).ok_or(beyond)?;
        let mut raw = [0; INODE_LEN];
        self.read(at, &mut raw[..32])?;
        let format = le16(&raw, 0);
        let extended = format & 1 != 0;
        if extended {
            self.read(at.saturating_add(32), &mut raw[32..])?;
        }
        let size = if extended { le64(&raw, 8) } else { u64::from(le32(&raw, 8)) };
        let xattrs = match u64::from(le16(&raw, 2)) {
            0 => 0,
            count => 12 + (count - 1) * 4,
        };
        let first = u64::from(le32(&raw, 16));
        let behind = at.saturating_add(if extended { 64 } else { 32 } + xattrs);
        let tail = match (format >> 1) & 7 {
            0 => None,
            2 => Some(behind),
            _ => return Err(LookupError::Damaged("a file is compressed or in chunks")),
        };
        Ok(Found { mode: le16(&raw, 4), size, first, tail })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), LookupError> {
        check_range(self.image.len(), offset, out.len())?;
        Ok(self.image.read(offset, out)?)
    }

    /// Block `index` of an inode's data, as long as the data goes.
    fn block(&mut self, inode: &Found, index: u64) -> Result<Vec<u8>, LookupError> {
        let length = inode.size.saturating_sub(index * BLOCK).min(BLOCK) as usize;
        let mut out = vec![0; length];
        let at = match inode.tail {
            Some(tail) if length < BLOCK_LEN => tail,
            _ => inode.first.saturating_add(index).saturating_mul(BLOCK),
        };
        self.read(at, &mut out)?;
        Ok(out)
    }

    fn content(&mut self, inode: &Found, most: u64) -> Result<Vec<u8>, LookupError> {
        if inode.size > most.min(self.image.len()) {
            return Err(LookupError::TooLarge(inode.size));
        }
        let mut out = Vec::with_capacity(inode.size as usize);
        for index in 0..inode.size.div_ceil(BLOCK) {
            out.extend(self.block(inode, index)?);
        }
        Ok(out)
    }

    /// Inode number of `name` in a directory. Reads the blocks the kernel reads (a search by halves over the first
    /// names, `fs/erofs/namei.c`): of a root that was logged while it was used, no others are there.
    fn entry(&mut self, directory: &Found, name: &[u8]) -> Result<u64, LookupError> {
        if directory.size > DIRECTORY_MAX {
            return Err(LookupError::TooLarge(directory.size));
        }
        let (mut low, mut high) = (0, directory.size.div_ceil(BLOCK));
        let mut candidate = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let entries = entries(&self.block(directory, middle)?)?;
            match entries.first().map(|(first, _)| first.as_slice().cmp(name)) {
                Some(Ordering::Greater) => high = middle,
                Some(Ordering::Less) => {
                    low = middle + 1;
                    candidate = Some(entries);
                }
                Some(Ordering::Equal) => return Ok(entries[0].1),
                None => return Err(LookupError::Damaged("a directory has an empty block")),
            }
        }
        let found = candidate.unwrap_or_default().into_iter().find(|(own, _)| own == name);
        found.map(|(_, nid)| nid).ok_or(LookupError::Missing)
    }

    fn find(&mut self, path: &[u8]) -> Result<Found, LookupError> {
        // Names still to be walked, the next one last.
        let names = |path: &[u8]| {
            let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
            parts.rev().map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let mut todo = names(path);
        let mut above = vec![self.root];
        let mut links = 0;
        let mut here = self.inode(self.root)?;
        while let Some(name) = todo.pop() {
            if here.kind() != DIRECTORY || name.len() > NAME_MAX {
                return Err(LookupError::Missing);
            }
            if name == b".." {
                if above.len() > 1 {
                    above.pop();
                }
                here = self.inode(above[above.len() - 1])?;
                continue;
            }
            let nid = self.entry(&here, &name)?;
            let next = self.inode(nid)?;
            if next.kind() == LINK {
                links += 1;
                if links > LINKS_MAX {
                    return Err(LookupError::Links);
                }
                let target = self.content(&next, TARGET_MAX as u64)?;
                if target.first() == Some(&b'/') {
                    above.truncate(1);
                    here = self.inode(self.root)?;
                }
                todo.extend(names(&target));
                continue;
            }
            if next.kind() == DIRECTORY {
                above.push(nid);
            }
            here = next;
        }
        Ok(here)
    }

    /// The regular file at `path` (from the root; links are followed inside the image).
    pub fn regular(&mut self, path: &[u8]) -> Result<Found, LookupError> {
        let inode = self.find(path)?;
        if inode.kind() == REGULAR { Ok(inode) } else { Err(LookupError::NotAFile) }
    }

    /// Bytes of a file from `offset` on: as many as `out` holds, fewer at the end of the file.
    pub fn read_at(&mut self, inode: &Found, offset: u64, out: &mut [u8]) -> Result<usize, LookupError> {
        let mut done = 0;
        while done < out.len() && offset.saturating_add(done as u64) < inode.size {
            let at = offset + done as u64;
            let block = self.block(inode, at / BLOCK)?;
            let skip = (at % BLOCK) as usize;
            let part = (block.len() - skip).min(out.len() - done);
            out[done..done + part].copy_from_slice(&block[skip..skip + part]);
            done += part;
        }
        Ok(done)
    }

    /// The content of the regular file at `path`, of at most `most` bytes.
    pub fn file(&mut self, path: &[u8], most: u64) -> Result<Vec<u8>, LookupError> {
        let inode = self.regular(path)?;
        self.content(&inode, most)
    }
}
