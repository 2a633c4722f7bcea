//! Reading tars by place: where each entry's data lies, without reading it. A tar is untrusted: every length is
//! checked against the file and memory is bounded by what a tar of that size may say.

mod header;
mod pax;
pub(crate) mod unpack;

use crate::content::Piece;
use crate::format::{Mtime, Xattr};
use crate::stamp::read_fully;
pub use header::HeaderError;
use header::{Header, RECORD, SparsePieces, sparse_pieces};
use pax::{Pax, decimal};
use std::{fs::File, io};

/// Longest path or link target in a tar; no kernel takes a longer one.
const PATH_MAX: usize = 4096;
/// Largest pax header: 64 attributes of the largest size and paths fit.
const PAX_MAX: u64 = 1 << 20;
/// Most pieces of one sparse file.
const SPARSE_MAX: usize = 1 << 20;

/// What is wrong with a tar's entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Its header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// A pax header's record.
    #[error("its pax header is damaged at `{0}`")]
    Pax(String),
    /// More data stated than the file has.
    #[error("the tar ends inside it (truncated, or a false size)")]
    Truncated,
    /// A path or pax header too long.
    #[error("its path or pax header is too long")]
    Long,
    /// A sparse file's map that makes no sense.
    #[error("its sparse map is damaged, or of the oldest kind (GNU.sparse 0.0), which is not read")]
    Sparse,
    /// A type of entry no reader here knows.
    #[error("its type `{0}` is not known")]
    Kind(char),
    /// The host's error.
    #[error("it cannot be read")]
    Read(#[from] io::Error),
}

/// One entry.
#[derive(Debug)]
pub(crate) struct Entry {
    /// As written.
    pub(crate) path: Vec<u8>,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: Mtime,
    pub(crate) xattrs: Vec<Xattr>,
    pub(crate) kind: EntryKind,
}

/// What an entry is.
#[derive(Debug)]
pub(crate) enum EntryKind {
    File { size: u64, pieces: Vec<Piece> },
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    Device { block: bool, major: u32, minor: u32 },
    Fifo,
}

/// The entries between two offsets of a file.
pub(crate) struct Entries<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    global: Pax,
}

/// Names and links given by headers before an entry's own.
#[derive(Default)]
struct Before {
    pax: Option<Pax>,
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<'a> Entries<'a> {
    pub(crate) fn new(file: &'a File, range: std::ops::Range<u64>) -> Entries<'a> {
        Entries { file, at: range.start, end: range.end, global: Pax::default() }
    }

    /// Bytes read so far, for progress.
    pub(crate) fn offset(&self) -> u64 {
        self.at
    }

    /// The next entry; none at the end. On an error the path is what was known of it.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, (Vec<u8>, EntryError)> {
        let mut path = Vec::new();
        self.read_entry(&mut path).map_err(|error| (path, error))
    }

    fn read_entry(&mut self, path: &mut Vec<u8>) -> Result<Option<Entry>, EntryError> {
        let mut before = Before::default();
        loop {
            let mut block = [0; 512];
            if self.end - self.at < RECORD {
                // Some writers leave the two closing blocks out; half a header is a damaged file.
                return if self.at == self.end { Ok(None) } else { Err(EntryError::Truncated) };
            }
            self.read(self.at, &mut block)?;
            let Some(header) = Header::parse(&block)? else { return Ok(None) };
            self.at += RECORD;
            *path = header.name();
            match header.kind() {
                b'x' | b'X' => {
                    let body = self.small(header.size()?, PAX_MAX)?;
                    let mut pax = self.global.clone();
                    pax.take(&body).map_err(|error| EntryError::Pax(error.0))?;
                    before.pax = Some(pax);
                }
                b'g' => {
                    let body = self.small(header.size()?, PAX_MAX)?;
                    self.global.take(&body).map_err(|error| EntryError::Pax(error.0))?;
                }
                b'L' => before.long_name = Some(self.long(&header)?),
                b'K' => before.long_link = Some(self.long(&header)?),
                b'V' => {
                    self.small(header.size()?, 0)?;
                }
                _ => return self.finish(&header, before, path).map(Some),
            }
        }
    }

    /// GNU's long name or link target: data up to a NUL.
    fn long(&mut self, header: &Header<'_>) -> Result<Vec<u8>, EntryError> {
        let mut name = self.small(header.size()?, PATH_MAX as u64 + 1)?;
        name.truncate(name.iter().position(|&byte| byte == 0).unwrap_or(name.len()));
        Ok(name)
    }

    /// A header's own data, into memory.
    fn small(&mut self, size: u64, most: u64) -> Result<Vec<u8>, EntryError> {
        if size > most {
            return Err(EntryError::Long);
        }
        let at = self.skip(size)?;
        let mut body = vec![0; size as usize];
        self.read(at, &mut body)?;
        Ok(body)
    }

    /// Passes `size` bytes of data and the padding to the next record; returns where the data began. The padding of
    /// the last entry may be missing.
    fn skip(&mut self, size: u64) -> Result<u64, EntryError> {
        let at = self.at;
        let end = at.checked_add(size).filter(|&end| end <= self.end).ok_or(EntryError::Truncated)?;
        self.at = end.checked_next_multiple_of(RECORD).map_or(self.end, |at| at.min(self.end));
        Ok(at)
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), EntryError> {
        if read_fully(self.file, out, at)? { Ok(()) } else { Err(EntryError::Truncated) }
    }

    fn finish(
        &mut self,
        header: &Header<'_>,
        before: Before,
        path: &mut Vec<u8>,
    ) -> Result<Entry, EntryError> {
        let pax = before.pax.unwrap_or_else(|| self.global.clone());
        if let Some(name) = pax.sparse_name.or(pax.path).or(before.long_name) {
            *path = name;
        }
        let link = pax.link.or(before.long_link).unwrap_or_else(|| header.link().to_vec());
        if path.len() > PATH_MAX || link.len() > PATH_MAX {
            return Err(EntryError::Long);
        }
        let kind = match header.kind() {
            b'0' | 0 | b'7' if path.ends_with(b"/") => EntryKind::Directory,
            b'0' | 0 | b'7' => {
                let size = pax.size.map_or_else(|| header.size(), Ok)?;
                match pax.sparse {
                    Some(sparse) => self.pax_sparse(sparse, size)?,
                    None => {
                        let pieces = if size > 0 { vec![(0, size)] } else { Vec::new() };
                        self.pieces(pieces, size, size)?
                    }
                }
            }
            b'S' => self.gnu_sparse(header, pax.size)?,
            b'1' => EntryKind::HardLink(link),
            b'2' => EntryKind::Symlink(link),
            kind @ (b'3' | b'4') => {
                let (major, minor) = header.device()?;
                // As many bits as the kernel has for them (`include/linux/kdev_t.h`).
                if major >= 1 << 12 || minor >= 1 << 20 {
                    return Err(HeaderError::Number("device number").into());
                }
                EntryKind::Device { block: kind == b'4', major, minor }
            }
            b'5' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            other => return Err(EntryError::Kind(char::from(other))),
        };
        Ok(Entry {
            path: path.clone(),
            mode: header.mode()?,
            uid: pax.uid.map_or_else(|| header.uid(), Ok)?,
            gid: pax.gid.map_or_else(|| header.gid(), Ok)?,
            mtime: match pax.mtime {
                Some(mtime) => mtime,
                None => Mtime { seconds: header.mtime()?, nanos: 0 },
            },
            xattrs: pax.xattrs,
            kind,
        })
    }

    fn gnu_sparse(&mut self, header: &Header<'_>, size: Option<u64>) -> Result<EntryKind, EntryError> {
        let (mut map, mut more, real) = header.gnu_sparse()?;
        while more {
            let at = self.skip(RECORD)?;
            let mut block = [0; 512];
            self.read(at, &mut block)?;
            map.extend(sparse_pieces(&block[..504])?);
            more = block[504] != 0;
            if map.len() > SPARSE_MAX {
                return Err(EntryError::Sparse);
            }
        }
        let stored = size.map_or_else(|| header.size(), Ok)?;
        self.pieces(map, stored, real)
    }

    fn pax_sparse(&mut self, sparse: pax::PaxSparse, mut stored: u64) -> Result<EntryKind, EntryError> {
        let size = sparse.size.ok_or(EntryError::Sparse)?;
        let map = match (sparse.version, sparse.map) {
            (None | Some((0, 1)), Some(map)) => map,
            (Some((1, 0)), None) => {
                let (map, taken) = self.leading_map(stored)?;
                stored -= taken;
                map
            }
            _ => return Err(EntryError::Sparse),
        };
        self.pieces(map, stored, size)
    }

    /// The map of GNU.sparse 1.0: decimal lines (count, then at and bytes of each piece) at the start of the data,
    /// padded to a record. Returns it and the bytes it took, which are passed.
    fn leading_map(&mut self, stored: u64) -> Result<(SparsePieces, u64), EntryError> {
        let mut text = Vec::new();
        let mut numbers = Vec::new();
        let mut taken = 0;
        loop {
            if numbers.first().is_some_and(|&count: &u64| numbers.len() as u64 > count * 2) {
                let pairs = numbers[1..].as_chunks::<2>().0;
                return Ok((pairs.iter().map(|&[at, len]| (at, len)).collect(), taken));
            }
            if stored - taken < RECORD {
                return Err(EntryError::Sparse);
            }
            let at = self.skip(RECORD)?;
            taken += RECORD;
            let mut block = [0; 512];
            self.read(at, &mut block)?;
            text.extend(block);
            while let Some(line) = text.iter().position(|&byte| byte == b'\n') {
                let done = numbers.first().is_some_and(|&count| numbers.len() as u64 > count * 2);
                if done {
                    break;
                }
                numbers.push(decimal(&text[..line]).ok_or(EntryError::Sparse)?);
                text.drain(..=line);
                if numbers[0] > SPARSE_MAX as u64 {
                    return Err(EntryError::Sparse);
                }
            }
            if text.len() > 1024 {
                return Err(EntryError::Sparse);
            }
        }
    }

    /// A file of these pieces, whose data lies one behind the other here; passes it.
    fn pieces(&mut self, map: SparsePieces, stored: u64, size: u64) -> Result<EntryKind, EntryError> {
        let start = self.skip(stored)?;
        let mut pieces = Vec::with_capacity(map.len());
        let (mut offset, mut end) = (start, 0);
        for (at, len) in map.into_iter().filter(|&(_, len)| len > 0) {
            let piece_end = at.checked_add(len).ok_or(EntryError::Sparse)?;
            if at < end || piece_end > size || len > start + stored - offset {
                return Err(EntryError::Sparse);
            }
            pieces.push(Piece { at, offset, len });
            (offset, end) = (offset + len, piece_end);
        }
        Ok(EntryKind::File { size, pieces })
    }
}
