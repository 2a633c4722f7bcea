//! The test root as a disk.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use vmm::BlockImage;

/// A file served as it is; what lacks to whole sectors reads as zeros.
pub struct FileImage {
    file: File,
    len: u64,
}

impl FileImage {
    /// `build/test-root.erofs`.
    pub fn test_root() -> FileImage {
        FileImage::open(&crate::top().join("build/test-root.erofs"))
    }

    /// Any EROFS file.
    pub fn open(path: &Path) -> FileImage {
        let file =
            File::open(path).unwrap_or_else(|e| panic!("{}: {e}; run tests/guest/build.sh", path.display()));
        let len = file.metadata().unwrap().len();
        FileImage { file, len }
    }
}

impl BlockImage for FileImage {
    fn len(&self) -> u64 {
        self.len.next_multiple_of(512)
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inside = self.len.saturating_sub(offset).min(out.len() as u64) as usize;
        out[inside..].fill(0);
        self.file.read_exact_at(&mut out[..inside], offset)
    }
}
