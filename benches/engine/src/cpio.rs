//! Cpio archives as the kernel unpacks them (newc of `Documentation/driver-api/early-userspace/buffer-format.rst`).

/// An archive being written. Owners, times and inode numbers are the same everywhere.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    inode: u32,
}

impl Archive {
    /// Adds a folder.
    pub(crate) fn folder(&mut self, name: &str) {
        self.entry(name, 0o040_755, &[]);
    }

    /// Adds a file anybody may run.
    pub(crate) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, 0o100_755, content);
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.inode += 1;
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        self.bytes.extend_from_slice(b"070701");
        for field in [self.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_to_words() {
        let mut archive = Archive::default();
        archive.folder("a");
        archive.file("a/bc", b"12345");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        // Header and name of the folder take 112 bytes.
        assert_eq!(&bytes[112..118], b"070701");
        let name = bytes.windows(4).position(|w| w == b"a/bc").unwrap();
        let content = bytes.windows(5).position(|w| w == b"12345").unwrap();
        assert_eq!(content, (name + 5).next_multiple_of(4));
    }
}
