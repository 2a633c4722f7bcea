//! The plain hash of one host file, kept until the file changes.

use crate::hashes::{cached_digest, keep_digest};
use crate::stamp::{coarse_now, stamp_of};
use std::io::{self, Read};
use std::path::Path;

/// BLAKE3 and length of a file. Read only if it changed since it was asked last; `cache` may be deleted at any time.
pub fn file_digest(cache: &Path, path: &Path) -> io::Result<([u8; 32], u64)> {
    let started = coarse_now();
    let mut file = std::fs::File::open(path)?;
    let stamp = stamp_of(&file)?;
    let mut hasher = blake3::Hasher::new_derive_key("rewind file 1");
    let key = *hasher.update(&stamp.encode()).finalize().as_bytes();
    if let Some(digest) = cached_digest(cache, &key) {
        return Ok((digest, stamp.size));
    }
    let mut bytes = Vec::with_capacity(stamp.size.min(1 << 28) as usize);
    file.read_to_end(&mut bytes)?;
    let digest = *blake3::hash(&bytes).as_bytes();
    // Not if it was written meanwhile, or so shortly before that a write now would leave no mark.
    if stamp.ctime < started && stamp_of(&file)? == stamp {
        keep_digest(cache, &key, &digest);
    }
    Ok((digest, bytes.len() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_hashed_again_when_it_changed_and_not_otherwise() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, path) = (dir.path().join("cache"), dir.path().join("file"));
        std::fs::write(&path, b"one").unwrap();
        let hash = |bytes: &[u8]| (*blake3::hash(bytes).as_bytes(), bytes.len() as u64);
        assert_eq!(file_digest(&cache, &path).unwrap(), hash(b"one"));
        crate::stamp::settled_now();
        assert_eq!(file_digest(&cache, &path).unwrap(), hash(b"one"));
        let kept = std::fs::read_dir(cache.join("hashes")).unwrap().next().unwrap().unwrap().path();
        // What is kept is believed: it can be told from the file's own.
        let stamp = stamp_of(std::fs::File::open(&path).unwrap()).unwrap();
        let mut hasher = blake3::Hasher::new_derive_key("rewind file 1");
        let key = *hasher.update(&stamp.encode()).finalize().as_bytes();
        keep_digest(&cache, &key, &[7; 32]);
        assert_eq!(file_digest(&cache, &path).unwrap(), ([7; 32], 3));
        std::fs::write(&kept, b"damaged").unwrap();
        assert_eq!(file_digest(&cache, &path).unwrap(), hash(b"one"));
        std::fs::write(&path, b"two").unwrap();
        assert_eq!(file_digest(&cache, &path).unwrap(), hash(b"two"));
        assert!(file_digest(&cache, &dir.path().join("none")).is_err());
    }
}
