//! Run ids: the BLAKE3 of a spec, shown as 16 hex digits, usable by any unique prefix.

use serde::{Deserialize, Serialize};

/// The full hash of a spec.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SpecHash(pub [u8; 32]);

/// What a run is called: the first 8 bytes of its [`SpecHash`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId(pub [u8; 8]);

impl SpecHash {
    /// The run's name.
    pub fn id(&self) -> RunId {
        let mut id = [0; 8];
        id.copy_from_slice(&self.0[..8]);
        RunId(id)
    }
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        use std::fmt::Write;
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// The bytes of exactly `N` lower-case hex pairs.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || !text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(out)
}

macro_rules! shown_as_hex {
    ($name:ident) => {
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&hex(&self.0))
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }
    };
}
shown_as_hex!(SpecHash);
shown_as_hex!(RunId);

/// Why a prefix names no single run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// Not hex, or too long.
    #[error("\"{0}\" is not a run id: up to 16 hex digits, as `rewind ls` shows them")]
    NotAnId(String),
    /// No run begins like that.
    #[error("no run is called {0}; `rewind ls` shows the runs of this home")]
    Unknown(String),
    /// Several do.
    #[error("{prefix} is the beginning of {} runs: {}; give more digits", .matches.len(), shown(.matches))]
    Ambiguous {
        /// What was typed.
        prefix: String,
        /// All runs it fits, ascending.
        matches: Vec<RunId>,
    },
}

fn shown(matches: &[RunId]) -> String {
    let mut text: Vec<String> = matches.iter().take(5).map(RunId::to_string).collect();
    if matches.len() > 5 {
        text.push("…".into());
    }
    text.join(", ")
}

/// The one id in `ids` that begins with `prefix`.
pub fn find(prefix: &str, ids: &[RunId]) -> Result<RunId, LookupError> {
    let wanted = prefix.to_ascii_lowercase();
    if wanted.is_empty() || wanted.len() > 16 || !wanted.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(LookupError::NotAnId(prefix.into()));
    }
    let mut matches: Vec<RunId> =
        ids.iter().filter(|id| id.to_string().starts_with(&wanted)).copied().collect();
    matches.sort_unstable();
    match matches[..] {
        [] => Err(LookupError::Unknown(prefix.into())),
        [one] => Ok(one),
        _ => Err(LookupError::Ambiguous { prefix: prefix.into(), matches }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes() {
        let ids = [RunId([0xb1, 0xd6, 0, 0, 0, 0, 0, 1]), RunId([0xb1, 0xd7, 0, 0, 0, 0, 0, 2])];
        assert_eq!(find("b1d6", &ids), Ok(ids[0]));
        assert_eq!(find("B1D700", &ids), Ok(ids[1]));
        assert!(matches!(find("b1d", &ids), Err(LookupError::Ambiguous { .. })));
        assert!(matches!(find("c", &ids), Err(LookupError::Unknown(_))));
        for bad in ["", "xyz", "0123456789abcdef0", "../x"] {
            assert!(matches!(find(bad, &ids), Err(LookupError::NotAnId(_))), "{bad}");
        }
        assert_eq!(from_hex::<2>("0aff"), Some([0x0a, 0xff]));
        assert_eq!(from_hex::<2>("0afg"), None);
    }
}
