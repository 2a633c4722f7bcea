//! Paths of this machine in texts that are kept.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// An absolute path as text, from which [`read`] has it again. One that is not UTF-8 is written as a shell would take it:
/// `$'/a\xff'`.
pub(crate) fn write(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::from("$'");
            for &byte in path.as_os_str().as_bytes() {
                match byte {
                    b' '..=b'~' if byte != b'\'' && byte != b'\\' => out.push(char::from(byte)),
                    _ => out.push_str(&format!("\\x{byte:02x}")),
                }
            }
            out + "'"
        }
    }
}

/// The path that [`write()`] wrote.
pub(crate) fn read(text: &str) -> PathBuf {
    let Some(inner) = text.strip_prefix("$'").and_then(|rest| rest.strip_suffix('\'')) else {
        return text.into();
    };
    let mut bytes = Vec::new();
    let mut rest = inner;
    while let Some(at) = rest.find("\\x") {
        let byte = rest.get(at + 2..at + 4).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.extend(rest[..at].bytes());
        bytes.extend(byte);
        rest = rest.get(at + 4..).unwrap_or_default();
    }
    bytes.extend(rest.bytes());
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_is_written_and_read() {
        for path in [&b"/a b/\xc3\xa4"[..], b"/\xff", b"/it's\\x41\n\xfe/x", b"/$'x'", b"/x\xff\\"] {
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            assert_eq!(read(&write(&path)), path, "{}", write(&path));
        }
        assert_eq!(write(Path::new("/plain")), "/plain");
        // What a run from elsewhere says is looked at with as much care.
        for odd in ["$'", "$''", "$'\\x'", "$'\\xz\u{e4}'", "$'\\x4"] {
            read(odd);
        }
    }
}
