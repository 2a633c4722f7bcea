//! Debug information that lies in a file of its own.

/// Where it may lie, as gdb looks for it (gdb manual, "Debugging Information in Separate Files").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file.
    pub path: Vec<u8>,
    /// CRC-32 it must have: it is found by a name, which may be another program's.
    pub crc: Option<u32>,
}

/// Files in which the debug information of `path` may lie, likeliest first, by its build id and by the name and CRC-32 of
/// its `.gnu_debuglink`.
pub fn candidates(path: &[u8], build_id: Option<&[u8]>, link: Option<(&[u8], u32)>) -> Vec<Candidate> {
    let mut found = Vec::new();
    if let Some((first, rest)) = build_id.and_then(<[u8]>::split_first).filter(|(_, rest)| !rest.is_empty()) {
        let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug").into_bytes();
        found.push(Candidate { path, crc: None });
    }
    let directory = path.rsplitn(2, |byte| *byte == b'/').nth(1);
    if let (Some((name, crc)), Some(directory)) = (link, directory) {
        for parts in [
            [&b""[..], directory, b"/"],
            [&b""[..], directory, b"/.debug/"],
            [&b"/usr/lib/debug"[..], directory, b"/"],
        ] {
            let path = [&parts.concat()[..], name].concat();
            found.push(Candidate { path, crc: Some(crc) });
        }
    }
    // A link that names the file itself leads nowhere.
    found.retain(|candidate| candidate.path != path);
    found
}

impl Candidate {
    /// Whether the file with this content is the one that is meant.
    pub fn fits(&self, content: &[u8]) -> bool {
        self.crc.is_none_or(|crc| crc32fast::hash(content) == crc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_gdbs() {
        let found = candidates(b"/opt/x/prog", Some(&[0xab, 0x0c, 0xd0]), Some((b"prog.debug", 7)));
        let paths: Vec<_> = found.iter().map(|found| String::from_utf8_lossy(&found.path)).collect();
        assert_eq!(
            paths,
            [
                "/usr/lib/debug/.build-id/ab/0cd0.debug",
                "/opt/x/prog.debug",
                "/opt/x/.debug/prog.debug",
                "/usr/lib/debug/opt/x/prog.debug"
            ]
        );
        assert!(candidates(b"/prog", Some(&[]), None).is_empty());
        assert_eq!(candidates(b"/prog", None, Some((b"prog", 7))).len(), 2);
        // The check value of CRC-32 (ISO-HDLC).
        let wanted = Candidate { path: b"/x".to_vec(), crc: Some(0xcbf4_3926) };
        assert!(wanted.fits(b"123456789") && !wanted.fits(b"123456780"));
    }
}
