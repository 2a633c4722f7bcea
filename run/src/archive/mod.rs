//! One file that holds a run, to show it or to replay it elsewhere.
//!
//! Magic (8 bytes), version (u32), then one zstd stream of entries: tag (u8), length (u64), bytes. The last entry is
//! the BLAKE3 of all bytes of the stream before it. There are no names in it: what an entry is and where it goes is
//! its tag and its hash, so there is no path that could lead elsewhere. A reader never allocates what an entry
//! claims, only what arrives, and bounds that by what the entries before asked for.

use std::{io, path::PathBuf};

use crate::{durable::WriteError, error::StageError, home::HomeError};

mod images;
mod read;
mod target;
mod write;
pub use read::{Imported, import};
pub use write::{Kind, export};

/// First 8 bytes.
const MAGIC: [u8; 8] = *b"REWINDX\0";
/// The format's version.
const VERSION: u32 = 2;

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
    /// Which blocks of the images known by content are in it.
    pub(super) const IMAGES: u8 = 12;
    /// A page named by a keyframe, the input log or the images; each once.
    pub(super) const PAGE: u8 = 13;
    /// BLAKE3 of everything before.
    pub(super) const END: u8 = 14;
}

/// Largest machine state or list of pages (some 3 million pages) in one entry, and largest spec, outcome or log.
const ENTRY_LIMIT: u64 = 128 << 20;
/// Different pages of one run, 16 GiB: a reader must hold their hashes. (Less in tests, which are to be quick.)
const PAGES_LIMIT: usize = if cfg!(test) { 1 << 18 } else { 4 << 20 };
/// More keyframes than a run has in a day.
const KEYFRAMES_LIMIT: usize = 1 << 20;
/// And bytes of them: a hundred million pages written, where an exported run has four million different ones at most.
const KEYFRAME_BYTES_LIMIT: u64 = 4 << 30;

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
    /// Something that is not replaced by a file.
    #[error("cannot write {path}: it is {what}; name a new file, or one to be replaced")]
    Target {
        /// What was named.
        path: PathBuf,
        /// What it is.
        what: &'static str,
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
    #[error("run {0} was not finished: only finished runs are exported")]
    Unfinished(crate::id::RunId),
    /// Nobody noted what it read of its root.
    #[error(
        "run {0} cannot be exported to be replayed: it was recorded by an older version, or imported to look at \
         only. `rewind export --view` exports what there is; `rewind run --again` records it anew"
    )]
    NoImages(crate::id::RunId),
    /// `--whole` of a root that has no end.
    #[error(
        "run {0} was recorded over this machine's own root, which cannot be taken whole: without --whole the export holds \
         what the run read, its programs and their sources"
    )]
    OwnRoot(crate::id::RunId),
    /// The boot keyframe it was recorded over is gone, and is not one that this program makes.
    #[error("the boot keyframe that run {0} builds on is gone: record it again with `rewind run --again`")]
    BootGone(crate::id::RunId),
    /// More than a reader takes.
    #[error("run {id} is too large to be exported: {what}")]
    TooLarge {
        /// The run.
        id: crate::id::RunId,
        /// What of it.
        what: &'static str,
    },
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
