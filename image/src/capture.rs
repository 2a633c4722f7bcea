//! Logged use of an image: every block a guest reads goes to the content store at first use and into the manifest,
//! from which the same blocks are served later, on any machine. Works on any image; the host's root needs it.

use crate::block::{BlockImage, check_range};
use crate::format::{BLOCK, BLOCK_LEN};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

/// One block.
pub type Block = [u8; BLOCK_LEN];

/// Where blocks are kept, by BLAKE3: the page store of the runs.
pub trait ContentStore: Send {
    /// Keeps a block that is not all zeros and returns its BLAKE3.
    fn put(&mut self, block: &Block) -> io::Result<[u8; 32]>;
    /// Reads a kept block back, checked.
    fn get(&mut self, hash: &[u8; 32], block: &mut Block) -> io::Result<()>;
}

/// Stands for a block of zeros, which is never stored.
const ZEROS: [u8; 32] = [0; 32];
const MAGIC: &[u8; 14] = b"rewind-used-1\n";

/// The blocks of an image a run used. Its encoding is part of the run's logged input; the same use gives the same
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Bytes of the whole image.
    len: u64,
    blocks: BTreeMap<u64, [u8; 32]>,
}

/// On disk: runs of blocks.
#[derive(Serialize, Deserialize)]
struct Encoded {
    len: u64,
    runs: Vec<(u64, Vec<[u8; 32]>)>,
}

/// A manifest that is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Another format or version.
    #[error("the list of used blocks is not of this version (rewind-used-1)")]
    Version,
    /// Not whole.
    #[error("the list of used blocks is damaged")]
    Damaged,
}

impl Manifest {
    /// Fixed bytes for storing and hashing.
    pub fn encode(&self) -> Vec<u8> {
        let mut runs: Vec<(u64, Vec<[u8; 32]>)> = Vec::new();
        for (&block, &hash) in &self.blocks {
            match runs.last_mut() {
                Some((first, hashes)) if *first + hashes.len() as u64 == block => hashes.push(hash),
                _ => runs.push((block, vec![hash])),
            }
        }
        let encoded = postcard::to_allocvec(&Encoded { len: self.len, runs }).expect("plain data encodes");
        [&MAGIC[..], &encoded].concat()
    }

    /// Reads what [`Manifest::encode`] gave; anything else is refused.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let body = bytes.strip_prefix(MAGIC).ok_or(ManifestError::Version)?;
        let encoded: Encoded = postcard::from_bytes(body).map_err(|_| ManifestError::Damaged)?;
        let mut blocks = BTreeMap::new();
        let mut next = 0;
        for (first, hashes) in encoded.runs {
            let end = first.checked_add(hashes.len() as u64).ok_or(ManifestError::Damaged)?;
            if first < next || hashes.is_empty() || end > encoded.len.div_ceil(BLOCK) {
                return Err(ManifestError::Damaged);
            }
            blocks.extend((first..).zip(hashes));
            next = end;
        }
        let manifest = Manifest { len: encoded.len, blocks };
        if encoded.len.is_multiple_of(512) && manifest.encode() == bytes {
            Ok(manifest)
        } else {
            Err(ManifestError::Damaged)
        }
    }

    /// The blocks that must stay in the store for this manifest, for garbage collection and export.
    pub fn stored(&self) -> impl Iterator<Item = &[u8; 32]> {
        self.blocks.values().filter(|hash| **hash != ZEROS)
    }

    /// Blocks used.
    pub fn used_blocks(&self) -> usize {
        self.blocks.len()
    }
}

/// An image whose use is logged. A clone is the same image: one is given to the machine, the other tells at the end
/// what was used.
#[derive(Clone)]
pub struct CapturedImage {
    len: u64,
    inner: Arc<Mutex<Captured>>,
}

struct Captured {
    known: BTreeMap<u64, [u8; 32]>,
    store: Box<dyn ContentStore>,
    live: Option<Box<dyn BlockImage>>,
}

impl fmt::Debug for CapturedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturedImage").field("len", &self.len).finish_non_exhaustive()
    }
}

impl CapturedImage {
    /// Logs the use of `live`.
    pub fn record(live: Box<dyn BlockImage>, store: Box<dyn ContentStore>) -> CapturedImage {
        let captured = Captured { known: BTreeMap::new(), store, live: Some(live) };
        CapturedImage {
            len: captured.live.as_ref().expect("given").len(),
            inner: Arc::new(Mutex::new(captured)),
        }
    }

    /// Serves what `manifest` has from the store. Other blocks come from `live`, where a fork or another schedule may
    /// ask for more, and are logged in turn; without it they are an error.
    pub fn replay(
        manifest: Manifest,
        store: Box<dyn ContentStore>,
        live: Option<Box<dyn BlockImage>>,
    ) -> CapturedImage {
        let captured = Captured { known: manifest.blocks, store, live };
        CapturedImage { len: manifest.len, inner: Arc::new(Mutex::new(captured)) }
    }

    /// What was used so far, with what was known at the start.
    pub fn manifest(&self) -> Manifest {
        Manifest { len: self.len, blocks: self.lock().known.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Captured> {
        // A panic elsewhere leaves the map of blocks whole: each is entered when it is stored.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Captured {
    /// One whole block, from the store or stored now.
    fn block(&mut self, len: u64, block: u64, out: &mut Block) -> io::Result<()> {
        if let Some(hash) = self.known.get(&block) {
            if *hash == ZEROS {
                out.fill(0);
                return Ok(());
            }
            return self.store.get(hash, out);
        }
        let live = self.live.as_mut().ok_or_else(|| {
            io::Error::other(
                "this run needs a part of its root that the recorded run never read, and the root is not at hand; \
                 run it where the root is",
            )
        })?;
        out.fill(0);
        let at = block * BLOCK;
        let have = (len - at).min(BLOCK) as usize;
        live.read(at, &mut out[..have])?;
        let hash = if out.iter().all(|&byte| byte == 0) { ZEROS } else { self.store.put(out)? };
        self.known.insert(block, hash);
        Ok(())
    }
}

impl BlockImage for CapturedImage {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(self.len, offset, out.len())?;
        let mut captured = self.lock();
        let mut at = 0;
        let mut block = [0; BLOCK_LEN];
        while at < out.len() {
            let here = offset + at as u64;
            captured.block(self.len, here / BLOCK, &mut block)?;
            let within = (here % BLOCK) as usize;
            let len = (BLOCK_LEN - within).min(out.len() - at);
            out[at..at + len].copy_from_slice(&block[within..within + len]);
            at += len;
        }
        Ok(())
    }
}
