//! The content id of a tree's image: the same tree gives the same id on every machine, and an unchanged one is
//! recognised without reading its data again.
//!
//! ```text
//! id             = BLAKE3-derive("rewind image 1", metadata blocks (volume id zero), digest of each file in order)
//! digest of file = BLAKE3 over (chunk number u64, BLAKE3 of the chunk) of each MiB that is not all zeros
//! ```
//!
//! Zeros do not count, so that a hole and a run of zeros are the same and a large hole costs nothing.

use crate::block::TreeImage;
use crate::content::{Backing, Content, ReadError, Reader};
use crate::existing::FileImage;
use crate::hashes::{HashCache, cached_digest, keep_digest};
use crate::stamp::{Stamp, coarse_now};
use crate::{OnProgress, Phase, Progress};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// BLAKE3 of everything a guest can see of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageId(pub [u8; 32]);

impl std::fmt::Display for ImageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

/// Bytes hashed and skipped as one.
const CHUNK: usize = 1 << 20;
/// Threads that hash; the work is mostly waiting for small files to open.
const HASHERS: usize = 2;

/// Finds the id of `image` and makes it the volume's. Digests are kept below `cache`, which may be deleted at any time.
pub(crate) fn identify(
    image: &mut TreeImage,
    cache: &Path,
    progress: OnProgress<'_>,
) -> Result<ImageId, ReadError> {
    let meta = *blake3::hash(image.meta()).as_bytes();
    let whole = whole_key(image, &meta);
    let content = match whole.and_then(|key| cached_digest(cache, &key)) {
        Some(digest) => digest,
        None => {
            let started = coarse_now();
            let digest = digest_files(image, cache, progress)?;
            let settled = |stamp: &Stamp| stamp.ctime < started;
            if let Some(key) = whole.filter(|_| file_stamps(image).is_some_and(|mut s| s.all(settled))) {
                keep_digest(cache, &key, &digest);
            }
            digest
        }
    };
    let mut hasher = blake3::Hasher::new_derive_key("rewind image 1");
    hasher.update(&meta).update(&content);
    let id = ImageId(*hasher.finalize().as_bytes());
    image.set_uuid(id.0[..16].try_into().expect("16 of 32"));
    Ok(id)
}

/// The id of a file used as an image as it is.
pub(crate) fn identify_file(
    image: &FileImage,
    cache: &Path,
    progress: OnProgress<'_>,
) -> Result<ImageId, ReadError> {
    let (reader, content, size) = image.parts();
    let [Backing::File { stamp, .. }] = reader.backings() else { unreachable!("an image is one file") };
    let mut hasher = blake3::Hasher::new_derive_key("rewind image file data 1");
    let key = *hasher.update(&stamp.encode()).finalize().as_bytes();
    let digest = match cached_digest(cache, &key) {
        Some(digest) => digest,
        None => {
            let started = coarse_now();
            progress(Progress { phase: Phase::Hash, done: 0, total: Some(size) });
            let digest = digest_file(&mut reader.clone(), content, size, &mut vec![0; CHUNK])?;
            if stamp.ctime < started {
                keep_digest(cache, &key, &digest);
            }
            digest
        }
    };
    let mut hasher = blake3::Hasher::new_derive_key("rewind image file 1");
    Ok(ImageId(*hasher.update(&size.to_le_bytes()).update(&digest).finalize().as_bytes()))
}

/// The versions of the files all data lies in, unless some lies in a directory.
fn file_stamps(image: &TreeImage) -> Option<impl Iterator<Item = &Stamp>> {
    let all_files = image.reader().backings().iter().all(|b| matches!(b, Backing::File { .. }));
    all_files.then(|| {
        image.reader().backings().iter().filter_map(|backing| match backing {
            Backing::File { stamp, .. } => Some(stamp),
            Backing::Directory { .. } => None,
        })
    })
}

/// Under what the digest of all of a tar's data is kept: the tar's version and the layout made of it.
fn whole_key(image: &TreeImage, meta: &[u8; 32]) -> Option<[u8; 32]> {
    let mut hasher = blake3::Hasher::new_derive_key("rewind image data 1");
    hasher.update(meta);
    for stamp in file_stamps(image)? {
        hasher.update(&stamp.encode());
    }
    Some(*hasher.finalize().as_bytes())
}

/// Hash over the digests of all files with data, in the image's order.
fn digest_files(image: &TreeImage, cache: &Path, progress: OnProgress<'_>) -> Result<[u8; 32], ReadError> {
    let files: Vec<(&Content, u64)> = image.files().collect();
    let total: u64 = files.iter().map(|(_, size)| size).sum();
    let known = HashCache::open(cache, image.reader().backings());
    let started = coarse_now();
    let (next, done, stop) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let mut reader = image.reader().clone();
        let mut buffer = vec![0; CHUNK];
        let mut digests = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&(content, size)) = files.get(index) else { break };
            let found = match content {
                Content::Host { stamp, .. } => known.get(stamp),
                Content::Pieces { .. } => None,
            };
            let digest = match found {
                Some(digest) => digest,
                None => digest_file(&mut reader, content, size, &mut buffer)
                    .inspect_err(|_| stop.store(true, Ordering::Relaxed))?,
            };
            digests.push((index, digest));
            let done = done.fetch_add(size, Ordering::Relaxed) + size;
            progress(Progress { phase: Phase::Hash, done, total: Some(total) });
        }
        Ok(digests)
    };
    let mut digests = vec![[0; 32]; files.len()];
    let results: Vec<Result<Vec<_>, ReadError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..HASHERS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().expect("hashing does not panic")).collect()
    });
    for result in results {
        for (index, digest) in result? {
            digests[index] = digest;
        }
    }
    let fresh = files.iter().zip(&digests).filter_map(|(&(content, _), digest)| match content {
        Content::Host { stamp, .. } if stamp.ctime < started => Some((*stamp, *digest)),
        _ => None,
    });
    known.replace(fresh.collect());
    let mut hasher = blake3::Hasher::new();
    digests.iter().for_each(|digest| {
        hasher.update(digest);
    });
    Ok(*hasher.finalize().as_bytes())
}

fn digest_file(
    reader: &mut Reader,
    content: &Content,
    size: u64,
    buffer: &mut [u8],
) -> Result<[u8; 32], ReadError> {
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while let Some((start, _)) = reader.next_data(content, at, size)? {
        let number = start / CHUNK as u64;
        let begin = number * CHUNK as u64;
        let chunk = &mut buffer[..(size - begin).min(CHUNK as u64) as usize];
        reader.read(content, begin, chunk)?;
        if chunk.iter().any(|&byte| byte != 0) {
            hasher.update(&number.to_le_bytes()).update(blake3::hash(chunk).as_bytes());
        }
        at = begin + CHUNK as u64;
        if at >= size {
            break;
        }
    }
    Ok(*hasher.finalize().as_bytes())
}
