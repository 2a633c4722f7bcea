//! The records of a pax header: what they say instead of a header's fields.

use super::header::SparsePieces;
use crate::format::{Mtime, Xattr};

/// Fields a pax header set. A later one (the file's own over a global one) wins.
#[derive(Clone, Debug, Default)]
pub(super) struct Pax {
    pub(super) path: Option<Vec<u8>>,
    /// A sparse file's name, which counts before `path` whichever came first: that is a made-up one for other programs.
    pub(super) sparse_name: Option<Vec<u8>>,
    pub(super) link: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) mtime: Option<Mtime>,
    pub(super) xattrs: Vec<Xattr>,
    pub(super) sparse: Option<PaxSparse>,
}

/// GNU's sparse files in pax archives.
#[derive(Clone, Debug, Default)]
pub(super) struct PaxSparse {
    /// (1, 0): the map leads the data. (0, 1): it is `map`.
    pub(super) version: Option<(u32, u32)>,
    pub(super) map: Option<SparsePieces>,
    /// Bytes of the file with its holes.
    pub(super) size: Option<u64>,
}

/// A record that is none, or whose value makes no sense: its keyword, or empty.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PaxError(pub(super) String);

impl Pax {
    /// Takes over the records in `bytes`: `LENGTH KEYWORD=VALUE\n`, the length counting itself.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<(), PaxError> {
        let none = || PaxError(String::new());
        while !bytes.is_empty() {
            let space = bytes.iter().position(|&byte| byte == b' ').ok_or_else(none)?;
            let len: usize = decimal(&bytes[..space]).ok_or_else(none)?;
            if len <= space + 1 || len > bytes.len() || bytes[len - 1] != b'\n' {
                return Err(none());
            }
            let record = &bytes[space + 1..len - 1];
            let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(none)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            self.field(key, value).ok_or_else(|| PaxError(String::from_utf8_lossy(key).into_owned()))?;
            bytes = &bytes[len..];
        }
        Ok(())
    }

    fn field(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.path = Some(no_nul(value)?),
            b"linkpath" => self.link = Some(no_nul(value)?),
            b"size" => self.size = Some(decimal(value)?),
            b"uid" => self.uid = Some(decimal(value)?),
            b"gid" => self.gid = Some(decimal(value)?),
            b"mtime" => self.mtime = Some(time(value)?),
            b"GNU.sparse.name" => self.sparse_name = Some(no_nul(value)?),
            b"GNU.sparse.major" => self.version(|v| &mut v.0, value)?,
            b"GNU.sparse.minor" => self.version(|v| &mut v.1, value)?,
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => {
                self.sparse.get_or_insert_default().size = Some(decimal(value)?);
            }
            b"GNU.sparse.map" => {
                let numbers: Vec<u64> = value.split(|&b| b == b',').map(decimal).collect::<Option<_>>()?;
                let (pairs, []) = numbers.as_chunks::<2>() else { return None };
                self.sparse.get_or_insert_default().map = Some(pairs.iter().map(|&[a, b]| (a, b)).collect());
            }
            // Written before the map of the oldest variant, whose repeated keywords no reader can keep apart.
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => return None,
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.retain(|xattr| *xattr.name != *name);
                    self.xattrs.push(Xattr { name: name.into(), value: value.into() });
                }
            }
        }
        Some(())
    }

    fn version(&mut self, part: impl Fn(&mut (u32, u32)) -> &mut u32, value: &[u8]) -> Option<()> {
        let version = self.sparse.get_or_insert_default().version.get_or_insert_default();
        *part(version) = decimal(value)?;
        Some(())
    }
}

fn no_nul(value: &[u8]) -> Option<Vec<u8>> {
    (!value.contains(&0)).then(|| value.to_vec())
}

pub(super) fn decimal<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    let digits = bytes.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(bytes).ok().filter(|_| digits)?.parse().ok()
}

/// Seconds with an optional fraction, perhaps negative; digits past nanoseconds are cut off.
fn time(value: &[u8]) -> Option<Mtime> {
    let (negative, value) = match value {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, value),
    };
    let mut parts = value.splitn(2, |&byte| byte == b'.');
    let seconds: i64 = decimal(parts.next()?)?;
    let mut nanos = 0;
    if let Some(fraction) = parts.next() {
        if !fraction.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let digit = |at: usize| fraction.get(at).map_or(0, |digit| u32::from(digit - b'0'));
        nanos = (0..9).fold(0, |value, at| value * 10 + digit(at));
    }
    Some(match (negative, nanos) {
        (false, _) => Mtime { seconds, nanos },
        (true, 0) => Mtime { seconds: -seconds, nanos },
        (true, _) => Mtime { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_taken_over() {
        let mut pax = Pax::default();
        pax.take(b"19 path=some/\xffname\n20 mtime=123.456789\n34 SCHILY.xattr.user.binary=\0\n=\nx\n")
            .unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"some/\xffname"[..]));
        assert_eq!(pax.mtime, Some(Mtime { seconds: 123, nanos: 456_789_000 }));
        assert_eq!(*pax.xattrs[0].value, *b"\0\n=\nx");
        pax.take(b"13 path=else\n").unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"else"[..]));
    }

    #[test]
    fn times_before_1970_round_down() {
        assert_eq!(time(b"-1.25"), Some(Mtime { seconds: -2, nanos: 750_000_000 }));
        assert_eq!(time(b"-3"), Some(Mtime { seconds: -3, nanos: 0 }));
        assert_eq!(time(b"1.2x"), None);
        assert_eq!(time(b""), None);
    }

    #[test]
    fn broken_records_are_refused() {
        let broken: [&[u8]; 9] = [
            b"x path=a\n",
            b"9 path=a",
            b"99 path=a\n",
            b"2 \n",
            b"0 a=b\n",
            b"7 patha\n",
            b"11 size=-1\n",
            b"31 size=99999999999999999999999\n",
            b"11 path=\0a\n",
        ];
        for bytes in broken {
            assert!(Pax::default().take(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
