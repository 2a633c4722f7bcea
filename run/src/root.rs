//! Images a machine reads, as the run layer sees them: named by content, opened anew for each machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, PoisonError},
};

use vmm::BlockImage;

use crate::{
    spec::ImageSpec,
    store::{PAGE_SIZE, PageHash, PageStore},
};

/// Opens an image for one machine.
pub type OpenImage = Arc<dyn Fn() -> io::Result<Box<dyn BlockImage>> + Send + Sync>;

/// Whether a logged image would still give these blocks; the bytes are its run's `origin`.
pub type StillGives = Arc<dyn Fn(&[u8], &Blocks) -> bool + Send + Sync>;

/// One image.
#[derive(Clone)]
pub struct Root {
    /// By content.
    pub spec: ImageSpec,
    /// What the user gave, for people.
    pub source: String,
    /// Opens it.
    pub open: OpenImage,
    /// Its data is not known by content before the run (the host's own files): what the run reads is logged.
    pub logged: bool,
    /// What a fork on this host needs to go on reading a logged image, asked for when the run has ended. Kept
    /// beside the run (file `origin`), in no spec.
    pub origin: Option<Arc<dyn Fn() -> Vec<u8> + Send + Sync>>,
    /// For a logged image: compares with what an earlier run logged, so that the run is found again.
    pub same: Option<StillGives>,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("spec", &self.spec).field("source", &self.source).finish_non_exhaustive()
    }
}

/// Blocks of one image by number.
pub type Blocks = BTreeMap<u64, PageHash>;

/// Shared between a [`Logged`] image inside a machine and the recorder that seals the log.
pub type SharedBlocks = Arc<Mutex<Blocks>>;

/// An image whose blocks are stored as they are first read, and never read twice from below: what a run saw once
/// it sees always.
pub struct Logged {
    inner: Box<dyn BlockImage>,
    store: Arc<PageStore>,
    blocks: SharedBlocks,
}

impl Logged {
    /// Logs what is read from `inner` into `blocks`; what is in there already is answered from the store.
    pub fn new(inner: Box<dyn BlockImage>, store: Arc<PageStore>, blocks: SharedBlocks) -> Self {
        Logged { inner, store, blocks }
    }

    fn block(&mut self, number: u64, out: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let known = self.blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied();
        if let Some(hash) = known {
            return self.store.get(hash, out).map_err(io::Error::other);
        }
        let offset = number * PAGE_SIZE as u64;
        let inside = (self.inner.len() - offset).min(PAGE_SIZE as u64) as usize;
        out.fill(0);
        self.inner.read(offset, &mut out[..inside])?;
        let hash = self.store.put(out).map_err(io::Error::other)?;
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(number, hash);
        Ok(())
    }
}

/// Splits a read into whole blocks.
fn by_blocks(
    offset: u64,
    out: &mut [u8],
    mut block: impl FnMut(u64, &mut [u8; PAGE_SIZE]) -> io::Result<()>,
) -> io::Result<()> {
    let mut page = [0; PAGE_SIZE];
    let mut done = 0;
    while done < out.len() {
        let at = offset + done as u64;
        block(at / PAGE_SIZE as u64, &mut page)?;
        let skip = (at % PAGE_SIZE as u64) as usize;
        let part = (PAGE_SIZE - skip).min(out.len() - done);
        out[done..done + part].copy_from_slice(&page[skip..skip + part]);
        done += part;
    }
    Ok(())
}

impl BlockImage for Logged {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        by_blocks(offset, out, |number, page| self.block(number, page))
    }
}

/// An image of which only the logged blocks are there: a run whose outside is gone, or that was imported.
pub struct Replayed {
    len: u64,
    blocks: Arc<Blocks>,
    store: Arc<PageStore>,
    source: String,
    rest: Option<Box<dyn BlockImage>>,
}

impl Replayed {
    /// `len` bytes of which `blocks` are known; `source` names it in errors.
    pub fn new(len: u64, blocks: Arc<Blocks>, store: Arc<PageStore>, source: String) -> Self {
        Replayed { len, blocks, store, source, rest: None }
    }

    /// Other blocks come from `rest`: what the recorded run did not read a throw-away fork may.
    pub fn beyond(self, rest: Box<dyn BlockImage>) -> Self {
        Replayed { rest: Some(rest), ..self }
    }
}

impl BlockImage for Replayed {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let rest = &mut self.rest;
        by_blocks(offset, out, |number, page| match (self.blocks.get(&number), rest.as_mut()) {
            (Some(hash), _) => self.store.get(*hash, page).map_err(io::Error::other),
            (None, Some(rest)) => {
                let offset = number * PAGE_SIZE as u64;
                let inside = (rest.len().saturating_sub(offset)).min(PAGE_SIZE as u64) as usize;
                page.fill(0);
                rest.read(offset, &mut page[..inside])
            }
            (None, None) => Err(io::Error::other(format!(
                "the recorded run did not read block {number} of {}, and it is not kept with the run",
                self.source
            ))),
        })
    }
}

/// What was read of images of known content.
#[derive(Debug, Default)]
pub struct Reads {
    /// Numbers of the blocks, of each image.
    pub blocks: BTreeMap<u32, BTreeSet<u64>>,
    /// Their contents.
    pub contents: BTreeSet<PageHash>,
}

/// Shared between the [`Noted`] images inside a machine and the recorder.
pub type SharedReads = Arc<Mutex<Reads>>;

/// An image of known content that notes which blocks are read, for export, and what was in them.
pub struct Noted {
    inner: Box<dyn BlockImage>,
    number: u32,
    reads: SharedReads,
}

impl Noted {
    /// Notes what is read of image `number` in `reads`.
    pub fn new(inner: Box<dyn BlockImage>, number: u32, reads: SharedReads) -> Self {
        Noted { inner, number, reads }
    }
}

impl BlockImage for Noted {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.inner.read(offset, out)?;
        if !out.is_empty() {
            let last = (offset + out.len() as u64 - 1) / PAGE_SIZE as u64;
            let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
            reads.blocks.entry(self.number).or_default().extend(offset / PAGE_SIZE as u64..=last);
            let skip = (offset.next_multiple_of(PAGE_SIZE as u64) - offset) as usize;
            let (whole, _) = out.get(skip..).unwrap_or_default().as_chunks::<PAGE_SIZE>();
            reads.contents.extend(whole.iter().map(PageHash::of));
        }
        Ok(())
    }
}
