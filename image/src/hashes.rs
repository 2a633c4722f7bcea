//! Digests kept between runs. A cache: a missing, damaged or foreign file means the work is done again, and a failure
//! to write is no failure of the run.

use crate::content::Backing;
use crate::format::Mtime;
use crate::stamp::Stamp;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 16] = b"rewind-hashes-1\n";
const STAMP_LEN: usize = 48;
const RECORD_LEN: usize = STAMP_LEN + 32;

/// The digests of one directory's files.
pub(crate) struct HashCache {
    /// Where they are kept; none for a tar.
    file: Option<PathBuf>,
    known: BTreeMap<Stamp, [u8; 32]>,
}

impl HashCache {
    /// Loads what is known of the directory in `backings`; nothing if there is none.
    pub(crate) fn open(cache: &Path, backings: &[Backing]) -> HashCache {
        let path = backings.iter().find_map(|backing| match backing {
            Backing::Directory { path, .. } => Some(path),
            Backing::File { .. } => None,
        });
        let file = path.map(|path| {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            cache.join("hashes").join(&*blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex())
        });
        let known = file.as_ref().and_then(|file| std::fs::read(file).ok()).and_then(|bytes| decode(&bytes));
        HashCache { file, known: known.unwrap_or_default() }
    }

    pub(crate) fn get(&self, stamp: &Stamp) -> Option<[u8; 32]> {
        self.known.get(stamp).copied()
    }

    /// Keeps `digests` instead of what was known, if they differ.
    pub(crate) fn replace(&self, digests: BTreeMap<Stamp, [u8; 32]>) {
        if let Some(file) = self.file.as_ref().filter(|_| digests != self.known) {
            let records = digests.iter().flat_map(|(stamp, digest)| [&stamp.encode()[..], digest].concat());
            write(file, MAGIC.iter().copied().chain(records).collect());
        }
    }
}

fn decode(bytes: &[u8]) -> Option<BTreeMap<Stamp, [u8; 32]>> {
    let (records, []) = checked(bytes)?.strip_prefix(MAGIC)?.as_chunks::<RECORD_LEN>() else { return None };
    let one = |record: &[u8; RECORD_LEN]| {
        let (stamp, digest) = record.split_first_chunk::<STAMP_LEN>().expect("longer");
        (Stamp::decode(stamp), digest.try_into().expect("32 left"))
    };
    Some(records.iter().map(one).collect())
}

/// The bytes before the closing hash, if it is right.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (rest, hash) = bytes.split_last_chunk::<32>()?;
    (blake3::hash(rest) == *hash).then_some(rest)
}

/// Writes the bytes and their hash in one step, as another process may read or write the same file.
fn write(file: &Path, mut bytes: Vec<u8>) {
    bytes.extend(*blake3::hash(&bytes).as_bytes());
    let keep = || -> std::io::Result<()> {
        let directory = file.parent().expect("a file in a directory");
        std::fs::create_dir_all(directory)?;
        let temporary = crate::temporary_beside(file);
        let mut out = std::fs::File::create(&temporary)?;
        out.write_all(&bytes)?;
        std::fs::rename(&temporary, file)
    };
    // A full or read-only disk costs time at the next start, nothing else.
    let _: std::io::Result<()> = keep();
}

/// A digest kept under `key`.
pub(crate) fn cached_digest(cache: &Path, key: &[u8; 32]) -> Option<[u8; 32]> {
    let bytes = std::fs::read(digest_file(cache, key)).ok()?;
    checked(&bytes)?.strip_prefix(MAGIC)?.try_into().ok()
}

/// Keeps a digest under `key`.
pub(crate) fn keep_digest(cache: &Path, key: &[u8; 32], digest: &[u8; 32]) {
    write(&digest_file(cache, key), [&MAGIC[..], digest].concat());
}

fn digest_file(cache: &Path, key: &[u8; 32]) -> PathBuf {
    cache.join("hashes").join(&*blake3::Hash::from_bytes(*key).to_hex())
}

impl Stamp {
    /// Fixed form for keeping: device, inode, size, then both times as seconds and nanoseconds.
    pub(crate) fn encode(&self) -> [u8; STAMP_LEN] {
        let mut out = [0; STAMP_LEN];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        [self.dev, self.ino, self.size].iter().for_each(|n| put(&n.to_le_bytes()));
        for time in [self.mtime, self.ctime] {
            put(&time.seconds.to_le_bytes());
            put(&time.nanos.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; STAMP_LEN]) -> Stamp {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8"));
        let time = |at: usize| Mtime {
            seconds: word(at) as i64,
            nanos: u32::from_le_bytes(bytes[at + 8..at + 12].try_into().expect("4")),
        };
        Stamp { dev: word(0), ino: word(8), size: word(16), mtime: time(24), ctime: time(36) }
    }
}
