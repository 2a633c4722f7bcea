//! Reading a file as the job sees it.

use crate::{
    InsideError,
    servant::{ROOM, Servant, nr},
};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// Anything else that can be read: a device, a pipe.
    Other,
}

/// What is known of a file that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// What it is.
    pub kind: FileKind,
    /// Bytes, as its inode says (0 for files of /proc).
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Relative to the working directory.
const AT_FDCWD: u64 = -100i64 as u64;
/// O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC: opening a FIFO or a terminal changes nothing and waits for nothing.
const FLAGS: u64 = 0x100 | 0x800 | 0x8_0000;

impl Servant<'_> {
    /// Reads the file at `path` (relative to the working directory of the thread at the position) and hands its content
    /// over piece by piece. `put` returning an error ends it.
    pub fn read_file(
        &mut self,
        path: &[u8],
        put: &mut dyn FnMut(&Metadata, &[u8]) -> std::io::Result<()>,
    ) -> Result<Metadata, InsideError> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let file = self.open(path, FLAGS, &shown)?;
        self.call("look at the file", nr::FSTAT, [file, self.room, 0, 0, 0, 0])?;
        // struct stat, arch/x86/include/uapi/asm/stat.h.
        let mut stat = [0; 144];
        self.get(0, &mut stat)?;
        let word = |at: usize| u32::from_le_bytes([stat[at], stat[at + 1], stat[at + 2], stat[at + 3]]);
        let mode = word(24);
        let kind = match mode >> 12 {
            0o10 => FileKind::Regular,
            0o04 => return Err(InsideError::Kind { path: shown, what: "a directory" }),
            _ => FileKind::Other,
        };
        let size = u64::from(word(48)) | u64::from(word(52)) << 32;
        let metadata = Metadata { kind, size, mode: mode & 0o7777, uid: word(28), gid: word(32) };
        let mut buffer = vec![0; ROOM as usize];
        loop {
            let got = self.call(&format!("read {shown}"), nr::READ, [file, self.room, ROOM, 0, 0, 0])?;
            let Some(bytes) = buffer.get_mut(..got as usize).filter(|bytes| !bytes.is_empty()) else { break };
            self.get(0, bytes)?;
            put(&metadata, bytes)
                .map_err(|source| InsideError::Host { what: "write the content", source })?;
        }
        self.call("close the file", nr::CLOSE, [file, 0, 0, 0, 0, 0])?;
        Ok(metadata)
    }

    /// Opens a file.
    pub(crate) fn open(&mut self, path: &[u8], flags: u64, shown: &str) -> Result<u64, InsideError> {
        // PATH_MAX, include/uapi/linux/limits.h, with the NUL.
        if path.len() >= 4096 || path.contains(&0) {
            return Err(InsideError::Kind { path: shown.into(), what: "no path a file can have" });
        }
        self.put(0, &[path, b"\0"].concat())?;
        self.call(&format!("open {shown}"), nr::OPENAT, [AT_FDCWD, self.room, flags, 0, 0, 0])
    }
}
