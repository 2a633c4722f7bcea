//! What init is asked to do and what it answers. Encoded with postcard.

use alloc::{string::String, vec::Vec};
use serde::{Deserialize, Serialize};

/// The job, as handed to guest init.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments; the program is looked up in the environment's PATH unless it has a slash.
    pub argv: Vec<Vec<u8>>,
    /// Environment, `KEY=value` each, in order.
    pub env: Vec<Vec<u8>>,
    /// Working directory inside the root.
    pub cwd: Vec<u8>,
    /// `user`, `uid`, `user:group` or `uid:gid`, looked up in the root's /etc/passwd; empty = root.
    pub user: String,
    /// Host name of the machine.
    pub hostname: String,
    /// Cores reported; one runs.
    pub cores: u32,
    /// Added to the kernel's generator, then a reseed is forced.
    pub seed: [u8; 32],
    /// Wall clock at job start, seconds since 1970.
    pub epoch: i64,
    /// Number of images: 0 = the initramfs is the root (tests of the machine itself); 1 = image 0 under an overlay.
    pub images: u32,
    /// Give the job a pseudo-terminal.
    pub tty: bool,
    /// Paths whose BLAKE3 is reported at the end.
    pub outputs: Vec<Vec<u8>>,
    /// Size limit of the writable overlay in bytes; 0 = half of memory.
    pub overlay_bytes: u64,
}

/// How the job ended ([`crate::record::REPORT_ENDED`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// Wait status as wait(2) has it.
    pub status: i32,
}

/// One declared output ([`crate::record::REPORT_OUTPUT`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputHash {
    /// The path as declared.
    pub path: Vec<u8>,
    /// BLAKE3 of a file's content, or of a directory's sorted listing with content hashes; none if it does not exist.
    pub hash: Option<[u8; 32]>,
}
