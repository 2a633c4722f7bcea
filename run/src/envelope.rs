//! The frame of every file that is written once and whole: spec, outcome, recording, keyframe, input log.
//!
//! Magic (8 bytes), version (u32), length of the body (u64), body, BLAKE3 of everything before (32 bytes), all
//! little-endian: in every version. A file of another version is refused by name, never misread.

use std::path::{Path, PathBuf};

use serde::{Serialize, de::DeserializeOwned};

use crate::durable::{self, WriteError};

/// A kind of file: its magic, the version this program writes and reads, and the largest body it may have.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// First 8 bytes.
    pub magic: [u8; 8],
    /// Version written; the only one read.
    pub version: u32,
    /// What a person calls it.
    pub name: &'static str,
    /// Refuse longer bodies (bytes): they would only be read into memory to be refused later.
    pub limit: u64,
}

const HEADER: usize = 20;
const HASH: usize = 32;

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The host refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The host's error.
        source: std::io::Error,
    },
    /// Not such a file at all.
    #[error(
        "{path} is not a Rewind {name} file: it was emptied or overwritten; the run it belongs to can be recorded \
         again or removed with `rewind rm`"
    )]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// Which kind was expected.
        name: &'static str,
    },
    /// Written by another version.
    #[error("{path}: {name} format version {found}; this program reads version {known}. {}", advice(*.found, *.known))]
    Version {
        /// Which file.
        path: PathBuf,
        /// Which kind.
        name: &'static str,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// The checksum or the structure is wrong.
    #[error(
        "{path} is damaged ({what}); the run it belongs to can be recorded again or removed with `rewind rm`"
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
}

fn advice(found: u32, known: u32) -> &'static str {
    if found < known {
        "It was made by an older version: record the run again, or read it with that version"
    } else {
        "It was made by a newer version: update this program"
    }
}

/// Encodes `value` as a file's content.
pub fn encode<T: Serialize>(kind: Kind, value: &T) -> Vec<u8> {
    // The plain data types of this crate always encode: no maps with unknown length, no foreign errors.
    let body = postcard::to_allocvec(value).expect("plain data encodes");
    let mut out = Vec::with_capacity(HEADER + body.len() + HASH);
    out.extend_from_slice(&kind.magic);
    out.extend_from_slice(&kind.version.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(&body);
    let hash = blake3::hash(&out);
    out.extend_from_slice(hash.as_bytes());
    out
}

/// Decodes a file's content; `path` is only for the error.
pub fn decode<T: DeserializeOwned>(kind: Kind, bytes: &[u8], path: &Path) -> Result<T, ReadError> {
    let damaged = |what| ReadError::Damaged { path: path.to_owned(), what };
    if bytes.len() < HEADER || bytes[..8] != kind.magic {
        return Err(ReadError::Foreign { path: path.to_owned(), name: kind.name });
    }
    let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    // The checksum comes first: a flipped bit is no other version. Every version has this frame.
    if bytes.len() < HEADER + HASH {
        return Err(damaged("it is cut short"));
    }
    let (content, hash) = bytes.split_at(bytes.len() - HASH);
    if blake3::hash(content).as_bytes() != hash {
        return Err(damaged("its checksum does not match"));
    }
    if version != kind.version {
        return Err(ReadError::Version {
            path: path.to_owned(),
            name: kind.name,
            found: version,
            known: kind.version,
        });
    }
    let body = &content[HEADER..];
    if content[12..20] != (body.len() as u64).to_le_bytes() {
        return Err(damaged("its length does not match"));
    }
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(damaged("it has bytes after its end")),
        Err(_) => Err(damaged("its content does not decode")),
    }
}

/// Writes `value` to `path`, all at once.
pub fn write<T: Serialize>(kind: Kind, path: &Path, value: &T) -> Result<(), WriteError> {
    durable::replace(path, &encode(kind, value))
}

/// Reads `path`.
pub fn read<T: DeserializeOwned>(kind: Kind, path: &Path) -> Result<T, ReadError> {
    let io = |source| ReadError::Io { path: path.to_owned(), source };
    let size = std::fs::metadata(path).map_err(io)?.len();
    if size > kind.limit.saturating_add((HEADER + HASH) as u64) {
        return Err(ReadError::Damaged {
            path: path.to_owned(),
            what: "it is larger than such a file can be",
        });
    }
    decode(kind, &std::fs::read(path).map_err(io)?, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { magic: *b"RWDTEST\0", version: 3, name: "test", limit: 1 << 20 };

    #[test]
    fn every_flipped_bit_and_every_cut_is_refused() {
        let whole = encode(KIND, &(7u64, "text"));
        let path = Path::new("x");
        assert_eq!(decode::<(u64, String)>(KIND, &whole, path).unwrap(), (7, "text".into()));
        for cut in 0..whole.len() {
            assert!(decode::<(u64, String)>(KIND, &whole[..cut], path).is_err(), "cut at {cut}");
        }
        for bit in 0..whole.len() * 8 {
            let mut bad = whole.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<(u64, String)>(KIND, &bad, path).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn other_versions_are_named() {
        let old = encode(Kind { version: 2, ..KIND }, &1u64);
        let text = decode::<u64>(KIND, &old, Path::new("x")).unwrap_err().to_string();
        assert!(text.contains("version 2") && text.contains("older"), "{text}");
        let mut flipped = encode(KIND, &1u64);
        flipped[8] ^= 4;
        assert!(matches!(decode::<u64>(KIND, &flipped, Path::new("x")), Err(ReadError::Damaged { .. })));
    }
}
