//! What the machine's block port serves, and the image made from a tree.

use crate::content::Reader;
use crate::format::{BLOCK, BLOCK_LEN};
use crate::layout::{Layout, TooLarge, layout};
use crate::tree::{Kind, Tree};
use std::io;

/// A read-only disk. Reads are whole sectors of 512 bytes inside [`BlockImage::len`].
#[expect(clippy::len_without_is_empty, reason = "a disk is never empty")]
pub trait BlockImage: Send {
    /// Bytes, a multiple of 512.
    fn len(&self) -> u64;

    /// Fills `out` from byte `offset`. An error names what could not be read and ends the run.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()>;
}

/// A tree as an EROFS image: metadata generated in memory, file data read from where it lies when it is asked for.
#[derive(Debug)]
pub struct TreeImage {
    tree: Tree,
    layout: Layout,
    reader: Reader,
}

impl TreeImage {
    /// Lays `tree` out; `uuid` becomes the volume's. The same tree and identity give the same bytes.
    pub fn new(mut tree: Tree, uuid: [u8; 16]) -> Result<TreeImage, TooLarge> {
        let layout = layout(&tree, uuid)?;
        let reader = Reader::new(std::mem::take(&mut tree.backings));
        Ok(TreeImage { tree, layout, reader })
    }

    /// Bytes of generated metadata at the start of the image.
    pub fn meta_len(&self) -> u64 {
        self.layout.meta.len() as u64
    }

    /// The first range of bytes at or after `offset` (a block) that is not known to be zeros, as (start, end) rounded
    /// to blocks; none if only holes follow.
    fn next_data(&mut self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        if offset < self.meta_len() {
            return Ok(Some((offset, self.meta_len())));
        }
        let block = offset / BLOCK;
        let after = self.layout.files.partition_point(|extent| u64::from(extent.first) <= block);
        for extent in &self.layout.files[after.saturating_sub(1)..] {
            let Kind::File { size, content } = &self.tree.nodes[extent.node as usize].kind else {
                unreachable!("only files have extents")
            };
            let first = u64::from(extent.first) * BLOCK;
            let within = offset.saturating_sub(first);
            if within < *size
                && let Some((start, end)) = self.reader.next_data(content, within, *size)?
            {
                return Ok(Some((first + start / BLOCK * BLOCK, first + end.next_multiple_of(BLOCK))));
            }
        }
        Ok(None)
    }

    /// Reads one block or a part of it that lies in the data area.
    fn read_data(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let block = offset / BLOCK;
        let index = self.layout.files.partition_point(|extent| u64::from(extent.first) <= block);
        let extent = self.layout.files[index.checked_sub(1).expect("data starts with a file")];
        let Kind::File { size, content } = &self.tree.nodes[extent.node as usize].kind else {
            unreachable!("only files have extents")
        };
        let within = offset - u64::from(extent.first) * BLOCK;
        let have = size.saturating_sub(within).min(out.len() as u64) as usize;
        let (data, padding) = out.split_at_mut(have);
        padding.fill(0);
        if data.is_empty() { Ok(()) } else { Ok(self.reader.read(content, within, data)?) }
    }

    /// Bytes from `offset` to the end of what holds it: the metadata, or one file's blocks.
    fn run_len(&self, offset: u64) -> u64 {
        if offset < self.meta_len() {
            return self.meta_len() - offset;
        }
        let index = self.layout.files.partition_point(|e| u64::from(e.first) * BLOCK <= offset);
        let end = self.layout.files.get(index).map_or(self.layout.blocks, |e| u64::from(e.first));
        end * BLOCK - offset
    }
}

impl BlockImage for TreeImage {
    fn len(&self) -> u64 {
        self.layout.blocks * BLOCK
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(self.len(), offset, out.len())?;
        let mut at = 0;
        while at < out.len() {
            let here = offset + at as u64;
            let len = self.run_len(here).min((out.len() - at) as u64) as usize;
            let part = &mut out[at..at + len];
            if here < self.meta_len() {
                part.copy_from_slice(&self.layout.meta[here as usize..here as usize + len]);
            } else {
                self.read_data(here, part)?;
            }
            at += len;
        }
        Ok(())
    }
}

/// Refuses a read past the end.
pub(crate) fn check_range(len: u64, offset: u64, bytes: usize) -> io::Result<()> {
    match offset.checked_add(bytes as u64) {
        Some(end) if end <= len => Ok(()),
        _ => Err(io::Error::other(format!(
            "a read of {bytes} bytes at {offset} is past the image's end at {len}"
        ))),
    }
}

/// Copies a whole image into `file` (empty, seekable): holes of files and blocks of zeros become holes. `progress` is
/// told the bytes done, of [`BlockImage::len`], after each piece of at most 1 MiB.
pub fn write_image(
    image: &mut TreeImage,
    file: &std::fs::File,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.set_len(image.len())?;
    let mut buffer = vec![0; 256 * BLOCK_LEN];
    let mut at = 0;
    while let Some((start, end)) = image.next_data(at)? {
        let part = &mut buffer[..(end - start).min(256 * BLOCK) as usize];
        image.read(start, part)?;
        for (index, block) in part.chunks(BLOCK_LEN).enumerate() {
            if block != [0; BLOCK_LEN] {
                file.write_all_at(block, start + index as u64 * BLOCK)?;
            }
        }
        at = start + part.len() as u64;
        progress(at);
    }
    progress(image.len());
    Ok(())
}
