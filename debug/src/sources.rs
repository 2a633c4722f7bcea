//! Source text: the line behind a file name and number.

use std::collections::BTreeMap;

/// Gives the text of a source file by the path the compiler recorded; `None` if it is nowhere.
pub type ReadSource<'a> = Box<dyn FnMut(&str) -> Option<Vec<u8>> + 'a>;

/// An absolute path without `.`, `..` and doubled slashes, as the kernel has names. Links are not followed.
pub fn plain(path: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    [b"/", &*parts.join(&b'/')].concat()
}

/// Longest line shown.
const LONGEST: usize = 200;

/// Source files, each read once.
pub struct Sources<'a> {
    read: ReadSource<'a>,
    files: BTreeMap<String, Option<Vec<String>>>,
}

impl std::fmt::Debug for Sources<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sources({} files)", self.files.len())
    }
}

impl<'a> Sources<'a> {
    /// Over `read`.
    pub fn new(read: ReadSource<'a>) -> Self {
        Sources { read, files: BTreeMap::new() }
    }

    /// Line `line` (from 1) of `file` without surrounding blanks; `None` if the file or the line is not there.
    pub fn line(&mut self, file: &str, line: u32) -> Option<String> {
        if !self.files.contains_key(file) {
            let text = (self.read)(file).map(|bytes| {
                String::from_utf8_lossy(&bytes).lines().map(|line| line.trim().to_owned()).collect()
            });
            self.files.insert(file.to_owned(), text);
        }
        let lines = self.files.get(file)?.as_ref()?;
        let text = lines.get(usize::try_from(line.checked_sub(1)?).ok()?)?;
        Some(text.chars().take(LONGEST).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_path() {
        for path in ["/tmp/b", "//tmp//b", "/tmp/./b", "/tmp/d/../b", "/../tmp/b/"] {
            assert_eq!(plain(path.as_bytes()), b"/tmp/b");
        }
        assert_eq!(plain(b"/.."), b"/");
    }

    #[test]
    fn lines_are_counted_from_one_and_files_read_once() {
        let mut reads = 0;
        let mut sources = Sources::new(Box::new(|name| {
            reads += 1;
            (name == "a.c").then(|| b"one\n\ttwo\n".to_vec())
        }));
        assert_eq!(sources.line("a.c", 1).as_deref(), Some("one"));
        assert_eq!(sources.line("a.c", 2).as_deref(), Some("two"));
        assert_eq!(sources.line("a.c", 3), None);
        assert_eq!(sources.line("a.c", 0), None);
        assert_eq!(sources.line("b.c", 1), None);
        assert_eq!(sources.line("b.c", 1), None);
        drop(sources);
        assert_eq!(reads, 2);
    }
}
