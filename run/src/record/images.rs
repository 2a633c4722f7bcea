//! The images of a recording: what is logged and kept of them.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
};

use super::lock;
use crate::{
    error::StageError,
    home::Home,
    input::InputLog,
    kept::Kept,
    root::{
        Afterwards, Blocks, FilesAt, Keeping, Logged, Reads, Root, SharedBlocks, SharedImage, SharedReads,
    },
};

/// Reads files of the job's root (its first image) that are to be kept with the run, beside what the run read. Told the
/// programs that were run, by the names they were started with, and the files that were read, where that is known.
pub type Gather<'a> = &'a dyn Fn(&Programs, Vec<Vec<u8>>, Box<dyn vmm::BlockImage>);

/// Programs run, by the names they were started with.
pub type Programs = BTreeSet<Vec<u8>>;

/// Most of [`Programs`]: a longer job runs the same ones again and again, or made them itself.
pub(super) const PROGRAMS: usize = 1000;

/// Images for a machine.
type Images = Vec<Box<dyn vmm::BlockImage>>;

/// The images of a recording.
pub(super) struct Opened {
    /// By their number.
    images: Vec<SharedImage>,
    /// What is logged of them; none of one that is known by content.
    logs: Vec<Option<SharedBlocks>>,
    /// What is read of the others.
    reads: SharedReads,
    /// What a fork's parent keeps.
    before: Kept,
    /// Which files blocks of the first image belong to.
    files: Option<FilesAt>,
}

impl Opened {
    /// Opens the images: those that are not known by content are logged, of the others what is read is kept.
    pub(super) fn new(
        home: &Home,
        roots: &[Root],
        known: &InputLog,
        before: Option<Arc<Kept>>,
    ) -> Result<(Images, Opened), StageError> {
        let before = before.map_or_else(Kept::default, Arc::unwrap_or_clone);
        let files = roots.first().and_then(|root| root.files.clone());
        let mut opened =
            Opened { images: Vec::new(), logs: Vec::new(), reads: SharedReads::default(), before, files };
        let mut images: Images = Vec::new();
        for (image, root) in (0u32..).zip(roots) {
            let inner = (root.open)().map_err(|source| StageError::Image {
                image: image as usize,
                of: root.source.clone(),
                source,
            })?;
            let inner: SharedImage = Arc::new(Mutex::new(inner));
            opened.images.push(inner.clone());
            let store = home.pages().clone();
            if root.logged {
                let before = known.blocks.get(&image).cloned().unwrap_or_default();
                let blocks: SharedBlocks = Arc::new(Mutex::new(before));
                images.push(Box::new(Logged::new(inner, store, blocks.clone())));
                opened.logs.push(Some(blocks));
            } else {
                images.push(Box::new(Keeping::new(inner, image, store, opened.reads.clone())));
                opened.logs.push(None);
            }
        }
        Ok((images, opened))
    }

    /// What was read so far of images known by content.
    pub(super) fn reads(&self) -> MutexGuard<'_, Reads> {
        lock(&self.reads)
    }

    /// Of [`Opened::keep`] what the run needs.
    pub(super) fn read(&self) -> Kept {
        let mut kept = self.before.clone();
        for (image, blocks) in &lock(&self.reads).blocks {
            kept.add(*image, blocks.clone());
        }
        kept
    }

    /// What is kept of the images beside the log: what was read of those that have none, and what `gather` wants. A fork
    /// begins with what its parent keeps.
    pub(super) fn keep(&self, home: &Home, programs: &Programs, gather: Gather<'_>) -> Kept {
        let mut kept = self.read();
        if let Some(inner) = self.images.first() {
            let logged = self.logs[0].as_ref().map_or_else(Blocks::new, |blocks| lock(blocks).clone());
            let more = SharedBlocks::default();
            let read = logged.keys().chain(kept.images.get(&0).into_iter().flat_map(Blocks::keys));
            let files = self.files.as_ref().map_or_else(Vec::new, |files| files(&mut read.copied()));
            let store = home.pages().clone();
            let image = Afterwards::new(inner.clone(), store, kept.beside(0, logged), more.clone());
            gather(programs, files, Box::new(image));
            kept.add(0, std::mem::take(&mut *lock(&more)));
        }
        kept
    }

    /// The input log.
    pub(super) fn seal(&self) -> InputLog {
        let mut log = InputLog::default();
        for (image, blocks) in (0u32..).zip(&self.logs) {
            if let Some(blocks) = blocks {
                let blocks = lock(blocks).clone();
                log.blocks.insert(image, blocks);
            }
        }
        log
    }
}
