//! One file that holds a run, to show it or to replay it elsewhere.
//!
//! Magic (8 bytes), version (u32), then one zstd stream of entries: tag (u8), length (u64), bytes. The last entry is
//! the BLAKE3 of all bytes of the stream before it. There are no names in it: what an entry is and where it goes is
//! its tag and its hash, so there is no path that could lead elsewhere. A reader never allocates what an entry
//! claims, only what arrives, and bounds that by what the entries before asked for.

use std::{io, path::PathBuf};

use crate::{durable::WriteError, error::StageError, home::HomeError};

mod read;
mod write;
pub use read::import;
pub use write::{Kind, export};

/// First 8 bytes.
const MAGIC: [u8; 8] = *b"REWINDX\0";
/// The format's version.
const VERSION: u32 = 1;

/// Kinds of entry, in the order they come.
mod tag {
    pub(super) const SPEC: u8 = 1;
    pub(super) const OUTCOME: u8 = 2;
    pub(super) const RECORDING: u8 = 3;
    pub(super) const INPUTS: u8 = 4;
    /// Records of the trace, up to a frame's worth: as in a trace file before compression.
    pub(super) const RECORDS: u8 = 5;
    /// The boot keyframe's key.
    pub(super) const BOOT_KEY: u8 = 6;
    /// The boot keyframe file.
    pub(super) const BOOT: u8 = 7;
    /// Records made while booting.
    pub(super) const BOOT_RECORDS: u8 = 8;
    /// A keyframe file, in ascending order of steps.
    pub(super) const KEYFRAME: u8 = 9;
    /// A piece of the kernel, then of the initramfs.
    pub(super) const KERNEL: u8 = 10;
    pub(super) const INITRAMFS: u8 = 11;
    /// A page named by a keyframe or the input log; each once.
    pub(super) const PAGE: u8 = 12;
    /// BLAKE3 of everything before.
    pub(super) const END: u8 = 13;
}

/// Why a run could not be exported or imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The file.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// Not such a file.
    #[error("{0} is not an exported run")]
    Foreign(PathBuf),
    /// Another version.
    #[error("{path} is an exported run of format version {found}; this program reads version {VERSION}")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Damaged or made to harm. Nothing of it was kept.
    #[error("{path} was refused: {what}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// Why.
        what: String,
    },
    /// A run that is not finished has nothing to export.
    #[error("run {0} is not finished: only finished runs are exported")]
    Unfinished(crate::id::RunId),
    /// The home.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The run or the store.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// Writing.
    #[error(transparent)]
    Write(#[from] WriteError),
}

#[cfg(test)]
mod tests;
