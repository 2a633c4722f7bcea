//! What the machine's block port serves, and the image made from a tree.

use crate::content::{Content, Reader};
use crate::format::{BLOCK, BLOCK_LEN, Super};
use crate::layout::{Layout, TooLarge, layout};
use crate::tree::{Kind, Tree};
use std::os::unix::fs::FileExt;
use std::{collections::BTreeSet, fs::File, io, sync::Arc};

pub use vmm::BlockImage;

/// A tree as an EROFS image: metadata generated in memory, file data read from where it lies when it is asked for.
/// A clone shares everything but the files it keeps open.
#[derive(Clone, Debug)]
pub struct TreeImage {
    tree: Arc<Tree>,
    layout: Arc<Layout>,
    reader: Reader,
}

impl TreeImage {
    /// Lays `tree` out, with a volume id of zeros. The same tree gives the same bytes.
    pub fn new(mut tree: Tree) -> Result<TreeImage, TooLarge> {
        let layout = layout(&tree)?;
        let reader = Reader::shared(std::mem::take(&mut tree.backings));
        Ok(TreeImage { tree: Arc::new(tree), layout: Arc::new(layout), reader })
    }

    /// Sets the volume id; before the image is cloned.
    pub(crate) fn set_uuid(&mut self, uuid: [u8; 16]) {
        let layout = Arc::get_mut(&mut self.layout).expect("not cloned yet");
        Super::set_uuid(&mut layout.meta[..BLOCK_LEN], uuid);
    }

    /// The generated metadata at the start of the image.
    pub(crate) fn meta(&self) -> &[u8] {
        &self.layout.meta
    }

    fn meta_len(&self) -> u64 {
        self.layout.meta.len() as u64
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Data and bytes of each file with data, in the image's order.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Content, u64)> {
        self.layout.files.iter().map(|extent| match &self.tree.node(extent.node).kind {
            Kind::File { size, content } => (content, *size),
            _ => unreachable!("only files have extents"),
        })
    }

    /// Absolute paths of the files whose data lies in one of these blocks.
    pub(crate) fn files_at(&self, blocks: &mut dyn Iterator<Item = u64>) -> Vec<Vec<u8>> {
        let files = &self.layout.files;
        let mut wanted = BTreeSet::new();
        for block in blocks.filter(|block| block * BLOCK >= self.meta_len()) {
            let index = files.partition_point(|extent| u64::from(extent.first) <= block);
            wanted.extend(index.checked_sub(1).map(|index| files[index].node));
        }
        self.tree.paths_of(wanted)
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
pub fn write_image(image: &mut TreeImage, file: &File, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    file.set_len(image.len())?;
    let mut at = 0;
    while let Some((start, end)) = image.next_data(at)? {
        at = end.min(start + PART);
        copy_part(image, file, start, at)?;
        progress(at);
    }
    progress(image.len());
    Ok(())
}

/// Bytes copied at a time.
const PART: u64 = 256 * BLOCK;

/// As [`write_image`], for an image nothing is known of.
pub(crate) fn copy_image(
    image: &mut dyn BlockImage,
    file: &File,
    progress: &mut dyn FnMut(u64),
) -> io::Result<()> {
    file.set_len(image.len())?;
    for start in (0..image.len()).step_by(PART as usize) {
        let end = image.len().min(start + PART);
        copy_part(image, file, start, end)?;
        progress(end);
    }
    Ok(())
}

fn copy_part(image: &mut dyn BlockImage, file: &File, start: u64, end: u64) -> io::Result<()> {
    let mut part = vec![0; (end - start) as usize];
    image.read(start, &mut part)?;
    for (index, block) in part.chunks(BLOCK_LEN).enumerate() {
        if block != &[0; BLOCK_LEN][..block.len()] {
            file.write_all_at(block, start + (index * BLOCK_LEN) as u64)?;
        }
    }
    Ok(())
}
