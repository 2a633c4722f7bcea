//! One 512-byte tar header: ustar (POSIX.1-1988), pax (POSIX.1-2001) and GNU fields.

/// Bytes of a header and unit of everything in a tar.
pub(super) const RECORD: u64 = 512;

/// A header block whose checksum is right.
pub(super) struct Header<'a>(&'a [u8; 512]);

/// What is wrong with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a header at all, or a damaged one.
    #[error("its header's checksum is wrong (not a tar, or damaged)")]
    Checksum,
    /// A number that is not one, or too large for its use.
    #[error("the field `{0}` of its header is not a number, or too large")]
    Number(&'static str),
}

impl<'a> Header<'a> {
    /// Checks the checksum; none for a block of zeros, which ends a tar.
    pub(super) fn parse(block: &'a [u8; 512]) -> Result<Option<Header<'a>>, HeaderError> {
        if block.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let header = Header(block);
        let stated = header.number(148..156, "checksum").map_err(|_| HeaderError::Checksum)?;
        let byte = |at: usize| if (148..156).contains(&at) { b' ' } else { block[at] };
        let unsigned: i64 = (0..512).map(|at| i64::from(byte(at))).sum();
        // Some old writers summed signed characters.
        let signed: i64 = (0..512).map(|at| i64::from(byte(at) as i8)).sum();
        if stated == unsigned || stated == signed { Ok(Some(header)) } else { Err(HeaderError::Checksum) }
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[156]
    }

    /// The name, with the prefix where the format has one.
    pub(super) fn name(&self) -> Vec<u8> {
        let name = text(&self.0[..100]);
        let prefix = text(&self.0[345..500]);
        let posix = &self.0[257..263] == b"ustar\0";
        if posix && !prefix.is_empty() { [prefix, b"/", name].concat() } else { name.to_vec() }
    }

    pub(super) fn link(&self) -> &[u8] {
        text(&self.0[157..257])
    }

    pub(super) fn size(&self) -> Result<u64, HeaderError> {
        u64::try_from(self.number(124..136, "size")?).map_err(|_| HeaderError::Number("size"))
    }

    pub(super) fn mode(&self) -> Result<u16, HeaderError> {
        Ok((self.number(100..108, "mode")? & 0o7777) as u16)
    }

    pub(super) fn mtime(&self) -> Result<i64, HeaderError> {
        self.number(136..148, "mtime")
    }

    pub(super) fn uid(&self) -> Result<u32, HeaderError> {
        self.number32(108..116, "uid")
    }

    pub(super) fn gid(&self) -> Result<u32, HeaderError> {
        self.number32(116..124, "gid")
    }

    /// Major and minor number.
    pub(super) fn device(&self) -> Result<(u32, u32), HeaderError> {
        Ok((self.number32(329..337, "devmajor")?, self.number32(337..345, "devminor")?))
    }

    /// The sparse map of GNU's own format: pieces as (at, bytes), whether a block of more follows, and the file's
    /// size.
    pub(super) fn gnu_sparse(&self) -> Result<(SparsePieces, bool, u64), HeaderError> {
        let size = self.number(483..495, "realsize")?;
        let size = u64::try_from(size).map_err(|_| HeaderError::Number("realsize"))?;
        Ok((sparse_pieces(&self.0[386..482])?, self.0[482] != 0, size))
    }

    fn number32(&self, range: std::ops::Range<usize>, field: &'static str) -> Result<u32, HeaderError> {
        u32::try_from(self.number(range, field)?).map_err(|_| HeaderError::Number(field))
    }

    fn number(&self, range: std::ops::Range<usize>, field: &'static str) -> Result<i64, HeaderError> {
        number(&self.0[range]).ok_or(HeaderError::Number(field))
    }
}

/// Pieces of a sparse file as (at, bytes).
pub(super) type SparsePieces = Vec<(u64, u64)>;

/// The entries of a GNU sparse map: pairs of 12-byte numbers; an empty one ends it.
pub(super) fn sparse_pieces(bytes: &[u8]) -> Result<SparsePieces, HeaderError> {
    let one =
        |bytes| number(bytes).and_then(|n| u64::try_from(n).ok()).ok_or(HeaderError::Number("sparse map"));
    bytes
        .chunks_exact(24)
        .take_while(|pair| pair[0] != 0)
        .map(|pair| Ok((one(&pair[..12])?, one(&pair[12..])?)))
        .collect()
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Octal digits among blanks, nothing (0), or, with the top bit set, a big-endian two's complement number.
fn number(bytes: &[u8]) -> Option<i64> {
    if bytes[0] & 0x80 != 0 {
        let negative = bytes[0] & 0x40 != 0;
        let first = if negative { i64::from(bytes[0] as i8) } else { i64::from(bytes[0] & 0x7f) };
        return bytes[1..]
            .iter()
            .try_fold(first, |value, &byte| value.checked_mul(256).map(|value| value | i64::from(byte)));
    }
    let digits = bytes.split(|&byte| byte == 0).next()?.trim_ascii();
    digits.iter().try_fold(0i64, |value, &digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(digit - b'0')),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_in_every_notation() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"77777777777"), Some(0o77_777_777_777));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]), Some((2 << 32) + 1));
        assert_eq!(number(&[0xff; 12]), Some(-1));
        assert_eq!(number(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(number(b"12x4"), None);
        assert_eq!(number(b"-1"), None);
    }
}
