//! Contents of an ELF file's sections, which may be compressed.

use std::{borrow::Cow, cell::Cell};

use object::{CompressionFormat, ObjectSection};

/// Bytes that the compressed sections of one file may become: a small file can claim, and hold, a thousand times its size.
const MOST: u64 = 1 << 30;

/// What is left of that for one file.
#[derive(Debug)]
pub(crate) struct Sections(Cell<u64>);

impl Sections {
    /// Of a file that nothing was read of yet.
    pub(crate) fn new() -> Sections {
        Sections(Cell::new(MOST))
    }

    /// The content of a section; `None` if it is damaged, or more than is left.
    pub(crate) fn content<'data>(&self, section: &impl ObjectSection<'data>) -> Option<Cow<'data, [u8]>> {
        let packed = section.compressed_data().ok()?;
        if packed.format != CompressionFormat::None {
            self.0.set(self.0.get().checked_sub(packed.uncompressed_size)?);
        }
        packed.decompress().ok()
    }
}

#[cfg(test)]
mod tests {
    use object::Object;

    use super::*;

    #[test]
    fn a_compressed_section_is_read_within_bounds() {
        let dir = std::env::temp_dir().join(format!("rewind-sections-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let (source, made) = (dir.join("a.c"), dir.join("a.o"));
        std::fs::write(&source, format!("int x;\nconst char *text = \"{}\";\n", "a".repeat(4000))).unwrap();
        let arguments = ["-g3", "-gz", "-c", "-o"];
        let built =
            std::process::Command::new("gcc").args(arguments).arg(&made).arg(&source).status().unwrap();
        let data = std::fs::read(&made).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(built.success());
        let file = object::File::parse(&*data).unwrap();
        let packed = |section: &object::Section<'_, '_>| {
            section.compressed_data().is_ok_and(|data| data.format != CompressionFormat::None)
        };
        let section = file.sections().find(packed).expect("gcc compressed one");
        let size = section.compressed_data().unwrap().uncompressed_size;
        assert_eq!(Sections::new().content(&section).expect("read").len() as u64, size);
        let scarce = Sections(Cell::new(2 * size - 1));
        assert!(scarce.content(&section).is_some() && scarce.content(&section).is_none());
        // What is there as it is takes nothing.
        let plain = file.section_by_name(".symtab").expect("symbols");
        assert!(Sections(Cell::new(0)).content(&plain).is_some());
    }
}
