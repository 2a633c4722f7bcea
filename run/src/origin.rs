//! The file `origin` of a run over the host's own files: what a fork on this host needs, and finding the run again.

use std::{io::Read, path::Path};

use crate::{
    durable::WriteError,
    envelope::{self, Kind},
};

/// The file: a list of zstd frames, one for each image whose data is logged.
pub const FILE: Kind = Kind { magic: *b"RWDORIG\0", version: 2, name: "origin", limit: 1 << 30 };

/// Writes it.
pub(crate) fn write(path: &Path, origins: &[Vec<u8>]) -> Result<(), WriteError> {
    let level = zstd::DEFAULT_COMPRESSION_LEVEL;
    let packed = origins.iter().map(|origin| zstd::bulk::compress(origin, level));
    // Into memory: it fails only for want of that.
    let packed = packed.collect::<Result<Vec<_>, _>>().expect("compresses into memory");
    envelope::write(FILE, path, &packed)
}

/// Undoes the compression of one; none if it is damaged or of an unreasonable size.
pub(crate) fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut origin = Vec::new();
    zstd::Decoder::new(packed).ok()?.take(FILE.limit + 1).read_to_end(&mut origin).ok()?;
    (origin.len() as u64 <= FILE.limit).then_some(origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Scratch;

    #[test]
    fn what_is_written_is_read_and_damage_is_seen() {
        let dir = Scratch::new("origin");
        let path = dir.path().join("origin");
        let origins = vec![b"one".repeat(1000), Vec::new()];
        write(&path, &origins).unwrap();
        let packed: Vec<Vec<u8>> = envelope::read(FILE, &path).unwrap();
        assert!(packed[0].len() < 100);
        assert_eq!(packed.iter().map(|one| unpack(one).unwrap()).collect::<Vec<_>>(), origins);
        assert_eq!(unpack(b"not zstd"), None);
        assert_eq!(unpack(&packed[0][..packed[0].len() - 2]), None);
    }
}
