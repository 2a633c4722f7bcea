//! The page store: every page of every keyframe once, by BLAKE3, compressed, in append-only packs.
//!
//! A pack `NNNNNN.pack` is headed and holds stored pages back to back; `NNNNNN.idx` beside it says where each
//! lies. A process that writes holds the lock of one pack, so several processes write at once without waiting:
//! each to its own. Order of durability: pack data, then its index entries, then (by the caller) the keyframe
//! that names the pages. Whatever a dying process leaves after the last whole index entry is dropped by the
//! next writer of that pack and never seen by readers.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::durable::{self, WriteError};

mod compact;
mod copies;
mod index;
mod packs;
mod page;

pub use compact::Compacted;
use copies::Doubted;
use index::Location;
use packs::Packs;
pub use page::{PAGE_SIZE, PageHash, is_zero};

/// Why a page could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// No pack has it.
    #[error("page {hash} is not in the page store {store}")]
    Missing {
        /// Which page.
        hash: PageHash,
        /// Where it was looked for.
        store: PathBuf,
    },
    /// What the pack holds is not the page.
    #[error(
        "page {hash} is corrupt in {pack} at byte {offset}; `rewind gc --verify` drops the bad copy, then record again"
    )]
    Corrupt {
        /// Which page.
        hash: PageHash,
        /// The pack.
        pack: PathBuf,
        /// Where in it.
        offset: u64,
    },
    /// The host refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// A pack or index of another version.
    #[error("{path}: page store format version {found}; this program reads version {known}")]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Writing pages had failed before, whose caller may have gone on.
    #[error("not all pages came to {store}: {why}")]
    Lost {
        /// The store.
        store: PathBuf,
        /// The error then.
        why: String,
    },
}

/// The page store of one home. Cheap to open: nothing is read before the first page is asked for or put.
pub struct PageStore {
    dir: PathBuf,
    inner: Mutex<Packs>,
    doubted: Mutex<Option<Doubted>>,
}

impl std::fmt::Debug for PageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageStore({})", self.dir.display())
    }
}

impl PageStore {
    /// The store in `dir`, which is made on the first write.
    pub fn open(dir: &Path) -> Self {
        PageStore { dir: dir.to_owned(), inner: Mutex::new(Packs::new(dir)), doubted: Mutex::default() }
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn lock(&self) -> MutexGuard<'_, Packs> {
        // A panic elsewhere cannot leave the maps half changed: every change is one insert after its write.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a page unless it is there; durable after [`PageStore::sync`].
    pub fn put(&self, page: &[u8; PAGE_SIZE]) -> Result<PageHash, PageError> {
        let hash = PageHash::of(page);
        self.put_named(hash, page)?;
        Ok(hash)
    }

    /// As [`PageStore::put`] for a caller that has the hash already.
    pub fn put_named(&self, hash: PageHash, page: &[u8; PAGE_SIZE]) -> Result<(), PageError> {
        if hash.is_zero() {
            return Ok(());
        }
        let mut packs = self.lock();
        packs.load_once()?;
        match packs.find(hash) {
            None => return packs.append(hash, page),
            Some(at) => packs.rely_on(at),
        }
        drop(packs);
        self.mend_if_doubted(hash, page)
    }

    /// Is the page there (as far as the index says)?
    pub fn contains(&self, hash: PageHash) -> Result<bool, PageError> {
        if hash.is_zero() {
            return Ok(true);
        }
        Ok(self.lookup(hash)?.is_some())
    }

    /// As [`PageStore::contains`], but does not look for what other processes added meanwhile.
    pub fn seems_known(&self, hash: PageHash) -> Result<bool, PageError> {
        let mut packs = self.lock();
        packs.load_once()?;
        Ok(hash.is_zero() || packs.find(hash).is_some())
    }

    fn lookup(&self, hash: PageHash) -> Result<Option<Location>, PageError> {
        let mut packs = self.lock();
        packs.load_once()?;
        if let Some(at) = packs.find(hash) {
            return Ok(Some(at));
        }
        // Another process may have added it since.
        packs.load()?;
        Ok(packs.find(hash))
    }

    /// Reads a page and checks its hash.
    pub fn get(&self, hash: PageHash, out: &mut [u8; PAGE_SIZE]) -> Result<(), PageError> {
        if hash.is_zero() {
            out.fill(0);
            return Ok(());
        }
        let missing = || PageError::Missing { hash, store: self.dir.clone() };
        let at = self.lookup(hash)?.ok_or_else(missing)?;
        match self.read(hash, at, out) {
            Err(PageError::Corrupt { .. }) => self.read_other_copy(hash, at, out),
            other => other,
        }
    }

    /// Reads the copy of a page that lies there.
    fn read(&self, hash: PageHash, at: Location, out: &mut [u8; PAGE_SIZE]) -> Result<(), PageError> {
        let mut stored = [0; PAGE_SIZE];
        let stored = &mut stored[..at.len as usize];
        let file = {
            let mut packs = self.lock();
            if packs.read_pending(at, stored) { None } else { Some(packs.file(at.pack)?) }
        };
        if let Some(file) = file {
            self.read_stored(&file, at, hash, stored)?;
        }
        if unpack(stored, out).is_err() || PageHash::of(out) != hash {
            return Err(self.corrupt(hash, at));
        }
        Ok(())
    }

    fn corrupt(&self, hash: PageHash, at: Location) -> PageError {
        PageError::Corrupt { hash, pack: packs::pack_path(&self.dir, at.pack), offset: at.offset }
    }

    fn read_stored(
        &self,
        file: &Arc<File>,
        at: Location,
        hash: PageHash,
        out: &mut [u8],
    ) -> Result<(), PageError> {
        match file.read_exact_at(out, at.offset) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(self.corrupt(hash, at)),
            Err(source) => Err(PageError::Io { path: packs::pack_path(&self.dir, at.pack), source }),
        }
    }

    /// Makes everything put so far last. Only then may a keyframe name the pages. An error is one of any page put since the
    /// last call.
    pub fn sync(&self) -> Result<(), PageError> {
        self.lock().sync()
    }

    /// Bytes the store takes on disk.
    pub fn disk_bytes(&self) -> u64 {
        packs::list(&self.dir)
            .into_iter()
            .flat_map(|n| [packs::pack_path(&self.dir, n), packs::index_path(&self.dir, n)])
            .filter_map(|path| std::fs::metadata(path).ok())
            .map(|meta| meta.len())
            .sum()
    }

    /// Stored bytes of a page (0 for the page of zeros or one that is missing).
    pub fn stored_len(&self, hash: PageHash) -> Result<u64, PageError> {
        Ok(if hash.is_zero() { 0 } else { self.lookup(hash)?.map_or(0, |at| u64::from(at.len)) })
    }
}

/// Undoes the compression of one stored page.
fn unpack(stored: &[u8], out: &mut [u8; PAGE_SIZE]) -> Result<(), io::Error> {
    if stored.len() == PAGE_SIZE {
        out.copy_from_slice(stored);
        return Ok(());
    }
    thread_local! {
        static DECOMPRESSOR: std::cell::RefCell<Option<zstd::bulk::Decompressor<'static>>> =
            const { std::cell::RefCell::new(None) };
    }
    DECOMPRESSOR.with_borrow_mut(|slot| {
        let decompressor = match slot {
            Some(decompressor) => decompressor,
            None => slot.insert(zstd::bulk::Decompressor::new()?),
        };
        // The destination is the bound: a frame that claims more fails instead of growing.
        match decompressor.decompress_to_buffer(stored, &mut out[..])? {
            PAGE_SIZE => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    })
}

#[cfg(test)]
mod tests;
