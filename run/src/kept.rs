//! Image blocks kept with a run (file `images`): what it read of images known by content, so that it replays when they
//! are no longer what they were, and of every image what a debugger will want. Older runs only list the blocks they
//! read (file `used`).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use vmm::BlockImage;

use crate::{
    envelope::Kind,
    home::{Home, RunDir},
    root::{Blocks, Replayed, Root},
    spec::ImageSpec,
    store::PageHash,
};

/// The file `used` of a run.
pub const USED: Kind =
    Kind { magic: *b"RWDUSED\0", version: 1, name: "list of used blocks", limit: 256 << 20 };
/// The file `images` of a run.
pub const FILE: Kind = Kind { magic: *b"RWDIMGB\0", version: 1, name: "image blocks", limit: 1 << 30 };

/// Blocks a run read of each image known by content, by the image's number: first block and how many, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used(pub BTreeMap<u32, Vec<(u64, u64)>>);

impl Used {
    /// Adds these blocks of an image.
    pub fn add(&mut self, image: u32, blocks: &BTreeSet<u64>) {
        let mut all: BTreeSet<u64> = self.blocks(image).collect();
        all.extend(blocks);
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for block in all {
            match ranges.last_mut() {
                Some((first, len)) if *first + *len == block => *len += 1,
                _ => ranges.push((block, 1)),
            }
        }
        self.0.insert(image, ranges);
    }

    /// The blocks of an image, ascending.
    pub fn blocks(&self, image: u32) -> impl Iterator<Item = u64> + '_ {
        self.0.get(&image).into_iter().flatten().flat_map(|(first, len)| *first..first.saturating_add(*len))
    }
}

/// Image blocks kept with a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// All of the images: what is not listed is zeros.
    pub whole: bool,
    /// By the image's number.
    pub images: BTreeMap<u32, Blocks>,
}

impl Kept {
    /// These too.
    pub fn add(&mut self, image: u32, blocks: Blocks) {
        if !blocks.is_empty() {
            self.images.entry(image).or_default().extend(blocks);
        }
    }

    /// The blocks of an image that was logged, with those kept beside the log.
    pub fn beside(&self, image: u32, mut logged: Blocks) -> Blocks {
        for (number, hash) in self.images.get(&image).into_iter().flatten() {
            logged.entry(*number).or_insert(*hash);
        }
        logged
    }

    /// Pages it names.
    pub fn pages(&self) -> impl Iterator<Item = PageHash> + '_ {
        self.images.values().flat_map(|blocks| blocks.values().copied())
    }

    /// An image as a root, if its blocks are kept.
    pub fn root(&self, home: &Home, run: &RunDir, image: usize, spec: &ImageSpec) -> Option<Root> {
        let whole = self.whole;
        let blocks = Arc::new(self.images.get(&(image as u32))?.clone());
        let (store, len) = (home.pages().clone(), spec.len);
        let source = format!("the image of run {}", run.id());
        let named = source.clone();
        let open = move || {
            let mut image = Replayed::new(len, blocks.clone(), store.clone(), named.clone());
            if whole {
                image = image.beyond(Box::new(Zeros(len)));
            }
            Ok(Box::new(image) as Box<dyn BlockImage>)
        };
        Some(Root {
            spec: spec.clone(),
            source,
            open: Arc::new(open),
            logged: false,
            origin: None,
            same: None,
            files: None,
        })
    }
}

/// What is not listed of a whole image.
struct Zeros(u64);

impl BlockImage for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn read(&mut self, _: u64, out: &mut [u8]) -> std::io::Result<()> {
        out.fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_blocks_are_joined() {
        let mut used = Used::default();
        used.add(0, &[5, 1, 2].into());
        used.add(0, &[3, 9].into());
        used.add(2, &[7].into());
        assert_eq!(used.0[&0], [(1, 3), (5, 1), (9, 1)]);
        assert_eq!(used.blocks(0).collect::<Vec<_>>(), [1, 2, 3, 5, 9]);
        assert_eq!(used.blocks(1).count(), 0);
    }
}
