//! Images a machine reads, as the run layer sees them: named by content, opened anew for each machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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

/// Absolute paths of the files of an image whose data lies in one of these blocks; asked when a run has ended.
pub type FilesAt = Arc<dyn Fn(&mut dyn Iterator<Item = u64>) -> Vec<Vec<u8>> + Send + Sync>;

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
    /// Which files blocks belong to, where that is known.
    pub files: Option<FilesAt>,
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

/// An open image, shared by the machine that reads it and the recorder that reads more when the machine has ended.
pub type SharedImage = Arc<Mutex<Box<dyn BlockImage>>>;

/// An image whose blocks are stored as they are first read, and never read twice from below: what a run saw once
/// it sees always.
pub struct Logged {
    len: u64,
    inner: SharedImage,
    store: Arc<PageStore>,
    blocks: SharedBlocks,
}

impl Logged {
    /// Logs what is read from `inner` into `blocks`; what is in there already is answered from the store.
    pub fn new(inner: SharedImage, store: Arc<PageStore>, blocks: SharedBlocks) -> Self {
        let len = lock(&inner).len();
        Logged { len, inner, store, blocks }
    }

    fn block(&mut self, number: u64, out: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let known = lock(&self.blocks).get(&number).copied();
        if let Some(hash) = known {
            return self.store.get(hash, out).map_err(io::Error::other);
        }
        whole_block(&mut **lock(&self.inner), number, out)?;
        let hash = self.store.put(out).map_err(io::Error::other)?;
        lock(&self.blocks).insert(number, hash);
        Ok(())
    }
}

/// Reads one block; what lies beyond the image is zeros.
pub(crate) fn whole_block(
    image: &mut dyn BlockImage,
    number: u64,
    out: &mut [u8; PAGE_SIZE],
) -> io::Result<()> {
    let offset = number * PAGE_SIZE as u64;
    let inside = image.len().saturating_sub(offset).min(PAGE_SIZE as u64) as usize;
    out.fill(0);
    image.read(offset, &mut out[..inside])
}

/// Locks even if another thread panicked while it held the lock: no block is ever half there.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.len
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
            (None, Some(rest)) => whole_block(&mut **rest, number, page),
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
    /// The blocks of each image, by its number. They are in the store.
    pub blocks: BTreeMap<u32, Blocks>,
    /// Their contents.
    pub contents: BTreeSet<PageHash>,
}

/// Shared between the [`Keeping`] images inside a machine and the recorder.
pub type SharedReads = Arc<Mutex<Reads>>;

/// An image of known content whose blocks are stored as they are first read, so that the run replays when the image is
/// no longer what it was.
pub struct Keeping {
    len: u64,
    inner: SharedImage,
    number: u32,
    store: Arc<PageStore>,
    reads: SharedReads,
}

impl Keeping {
    /// Keeps what is read of image `number` in `store` and `reads`.
    pub fn new(inner: SharedImage, number: u32, store: Arc<PageStore>, reads: SharedReads) -> Self {
        let len = lock(&inner).len();
        Keeping { len, inner, number, store, reads }
    }

    fn keep(&self, number: u64, content: &[u8; PAGE_SIZE]) -> io::Result<()> {
        let known =
            lock(&self.reads).blocks.get(&self.number).is_some_and(|blocks| blocks.contains_key(&number));
        if !known {
            let hash = self.store.put(content).map_err(io::Error::other)?;
            let mut reads = lock(&self.reads);
            reads.blocks.entry(self.number).or_default().insert(number, hash);
            reads.contents.insert(hash);
        }
        Ok(())
    }
}

impl BlockImage for Keeping {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut inner = lock(&self.inner);
        inner.read(offset, out)?;
        let mut at = offset;
        let end = offset + out.len() as u64;
        while at < end {
            let (number, skip) = (at / PAGE_SIZE as u64, at % PAGE_SIZE as u64);
            let here = &out[(at - offset) as usize..];
            match here.first_chunk() {
                Some(content) if skip == 0 => self.keep(number, content)?,
                _ => {
                    let mut content = [0; PAGE_SIZE];
                    whole_block(&mut **inner, number, &mut content)?;
                    self.keep(number, &content)?;
                }
            }
            at = (number + 1) * PAGE_SIZE as u64;
        }
        Ok(())
    }
}

/// An image after its machine has ended: what is read of it now, and was not before, is kept in `more`.
pub struct Afterwards {
    inner: SharedImage,
    store: Arc<PageStore>,
    before: Blocks,
    more: SharedBlocks,
}

impl Afterwards {
    /// Reads `before` from the store and the rest from `inner`.
    pub fn new(inner: SharedImage, store: Arc<PageStore>, before: Blocks, more: SharedBlocks) -> Self {
        Afterwards { inner, store, before, more }
    }
}

impl BlockImage for Afterwards {
    fn len(&self) -> u64 {
        lock(&self.inner).len()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        by_blocks(offset, out, |number, page| {
            let mut more = lock(&self.more);
            if let Some(hash) = self.before.get(&number).or_else(|| more.get(&number)) {
                return self.store.get(*hash, page).map_err(io::Error::other);
            }
            whole_block(&mut **lock(&self.inner), number, page)?;
            more.insert(number, self.store.put(page).map_err(io::Error::other)?);
            Ok(())
        })
    }
}
