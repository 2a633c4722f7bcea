//! File data by reference: read from the host file or tar it lies in when it is asked for, and only from the
//! version that was there when the tree was made.

use crate::stamp::{Stamp, open_beneath, read_fully, stamp_of};
use rustix::fd::OwnedFd;
use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;
use std::{collections::VecDeque, fs::File, io, path::PathBuf, sync::Arc};

/// Where the data of one file is.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// A file of a directory backing.
    Host { backing: u32, path: Box<[u8]>, stamp: Stamp },
    /// Pieces of a file backing, sorted and without overlap; zeros between them.
    Pieces { backing: u32, pieces: Box<[Piece]> },
}

/// Data at `offset` of the backing which is data at `at` of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// What content refers to.
#[derive(Debug)]
pub(crate) enum Backing {
    /// A directory, open, and its path for messages.
    Directory { dir: OwnedFd, path: PathBuf },
    /// One file, open, in the version it had when it was scanned.
    File { file: File, path: PathBuf, stamp: Stamp },
}

/// What a tree's contents refer to, by number.
pub(crate) type Backings = Arc<Vec<Backing>>;

/// Why data could not be had. Reaches the run as an [`io::Error`] with this text.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not what it was.
    #[error("{} changed since the run's root was read; run again, or keep the root still while it is used", .0.display())]
    Changed(PathBuf),
    /// The host says no.
    #[error("cannot read {}", .0.display())]
    Host(PathBuf, #[source] io::Error),
}

impl From<ReadError> for io::Error {
    fn from(error: ReadError) -> io::Error {
        io::Error::other(error)
    }
}

/// Host files kept open; more are closed, oldest use first.
const OPEN_FILES: usize = 64;

/// Reads content; keeps a few host files open.
#[derive(Debug)]
pub(crate) struct Reader {
    backings: Backings,
    open: VecDeque<(u32, Box<[u8]>, File)>,
}

impl Clone for Reader {
    fn clone(&self) -> Reader {
        Reader::shared(self.backings.clone())
    }
}

impl Reader {
    pub(crate) fn new(backings: Vec<Backing>) -> Reader {
        Reader::shared(Arc::new(backings))
    }

    pub(crate) fn shared(backings: Backings) -> Reader {
        Reader { backings, open: VecDeque::new() }
    }

    pub(crate) fn backings(&self) -> &[Backing] {
        &self.backings
    }

    /// The open file, and its path, of content that is a host file, in the version it must have.
    pub(crate) fn host(&mut self, content: &Content) -> Result<(&File, PathBuf), ReadError> {
        let Content::Host { backing, path, stamp } = content else {
            unreachable!("asked for host files only")
        };
        let shown = self.shown(*backing, path);
        let file = self.host_file(*backing, path)?;
        match stamp_of(file) {
            Ok(now) if now == *stamp => Ok((file, shown)),
            Ok(_) => Err(ReadError::Changed(shown)),
            Err(error) => Err(ReadError::Host(shown, error)),
        }
    }

    /// Fills `out` with the file's bytes from `offset`; all of it must lie inside the file.
    pub(crate) fn read(&mut self, content: &Content, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        match content {
            Content::Host { backing, path, stamp } => self.read_host(*backing, path, stamp, offset, out),
            Content::Pieces { backing, pieces } => self.read_pieces(*backing, pieces, offset, out),
        }
    }

    fn read_host(
        &mut self,
        backing: u32,
        path: &[u8],
        stamp: &Stamp,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        let shown = self.shown(backing, path);
        read_version(self.host_file(backing, path)?, stamp, offset, out, || shown.clone())
    }

    fn shown(&self, backing: u32, path: &[u8]) -> PathBuf {
        match &self.backings[backing as usize] {
            Backing::Directory { path: top, .. } => top.join(crate::os(path)),
            Backing::File { path, .. } => path.clone(),
        }
    }

    /// The open host file, in whatever version it is.
    fn host_file(&mut self, backing: u32, path: &[u8]) -> Result<&File, ReadError> {
        let held = self.open.iter().position(|(b, p, _)| *b == backing && **p == *path);
        let entry = match held {
            Some(at) => self.open.remove(at).expect("position is inside"),
            None => {
                let Backing::Directory { dir, .. } = &self.backings[backing as usize] else {
                    unreachable!("a tree's host content refers to a directory");
                };
                let fd = open_beneath(dir, path, OFlags::RDONLY).map_err(|errno| match errno {
                    Errno::NOENT | Errno::LOOP | Errno::NOTDIR => {
                        ReadError::Changed(self.shown(backing, path))
                    }
                    other => ReadError::Host(self.shown(backing, path), other.into()),
                })?;
                (backing, path.into(), File::from(fd))
            }
        };
        if self.open.len() >= OPEN_FILES {
            self.open.pop_front();
        }
        self.open.push_back(entry);
        Ok(&self.open.back().expect("just pushed").2)
    }

    /// The first range at or after `offset` (below `size`, the file's bytes) that is not known to be a hole, as
    /// (start, end); none if only holes follow. For copying; what is a hole reads as zeros.
    pub(crate) fn next_data(
        &mut self,
        content: &Content,
        offset: u64,
        size: u64,
    ) -> Result<Option<(u64, u64)>, ReadError> {
        match content {
            Content::Host { backing, path, .. } => {
                let file = self.host_file(*backing, path)?;
                let found = match seek(file, SeekFrom::Data(offset)) {
                    Ok(start) => {
                        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(size).min(size);
                        (start < end).then_some((start, end))
                    }
                    Err(Errno::NXIO) => None,
                    // A file system that knows no holes.
                    Err(_) => (offset < size).then_some((offset, size)),
                };
                // Holes of another version are none of this one's: a file that was cut is nothing but one.
                self.host(content)?;
                Ok(found)
            }
            Content::Pieces { pieces, .. } => {
                let index = pieces.partition_point(|piece| piece.at + piece.len <= offset);
                Ok(pieces.get(index).map(|piece| (piece.at.max(offset), piece.at + piece.len)))
            }
        }
    }

    fn read_pieces(
        &mut self,
        backing: u32,
        pieces: &[Piece],
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        let Backing::File { file, path, stamp } = &self.backings[backing as usize] else {
            unreachable!("a tree's pieces refer to a file");
        };
        out.fill(0);
        let end = offset + out.len() as u64;
        let first = pieces.partition_point(|piece| piece.at + piece.len <= offset);
        for piece in pieces[first..].iter().take_while(|piece| piece.at < end) {
            let from = piece.at.max(offset);
            let to = (piece.at + piece.len).min(end);
            let part = &mut out[(from - offset) as usize..(to - offset) as usize];
            read_version(file, stamp, piece.offset + (from - piece.at), part, || path.clone())?;
        }
        Ok(())
    }
}

/// Reads from a file that must be in the given version before and after.
fn read_version(
    file: &File,
    stamp: &Stamp,
    offset: u64,
    out: &mut [u8],
    path: impl Fn() -> PathBuf,
) -> Result<(), ReadError> {
    let host = |error| ReadError::Host(path(), error);
    let same = || Ok::<_, ReadError>(stamp_of(file).map_err(host)? == *stamp);
    if same()? && read_fully(file, out, offset).map_err(host)? && same()? {
        Ok(())
    } else {
        Err(ReadError::Changed(path()))
    }
}
