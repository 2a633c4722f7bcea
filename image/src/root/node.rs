//! One file of the host's root, looked at, and as an inode.

use super::policy::{Policy, Shown};
use crate::content::{ReadError, Reader};
use crate::dir::xattrs_of;
use crate::format::{
    BLOCK, BLOCK_LEN, DataLayout, Entry, FileType, INODE_LEN, Inode, Mtime, SLOT, Xattr, dir_encode,
    xattr_body,
};
use crate::stamp::{Stamp, open_beneath};
use crate::tree::Meta;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, OFlags, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::{io, path::PathBuf};

/// The host's root and what is shown of it.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) dir: OwnedFd,
    pub(super) top: PathBuf,
    pub(super) policy: Policy,
    pub(super) started: Mtime,
    pub(super) reader: Reader,
}

/// A directory's names, in order.
type Names = BTreeMap<Box<[u8]>, FileType>;

/// Why a file cannot be shown.
pub(super) enum Unseen {
    /// It changed at the moment asked for or later, or while it was looked at.
    Later,
    /// It is another kind of file, is gone, or the host says no.
    Failed(io::Error),
}

impl From<io::Error> for Unseen {
    fn from(error: io::Error) -> Unseen {
        Unseen::Failed(error)
    }
}

/// A file as it is shown.
pub(super) enum Node {
    Directory { meta: Meta, xattrs: Box<[Xattr]>, names: Names },
    File { meta: Meta, xattrs: Box<[Xattr]>, stamp: Stamp },
    Symlink { meta: Meta, target: Vec<u8> },
    Fifo { meta: Meta },
}

impl Host {
    /// That `path` is not what it was.
    pub(super) fn changed(&self, path: &[u8]) -> io::Error {
        ReadError::Changed(self.top.join(crate::os(path))).into()
    }

    fn failed(&self, path: &[u8], errno: Errno) -> io::Error {
        match errno {
            Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::XDEV => self.changed(path),
            other => ReadError::Host(self.top.join(crate::os(path)), other.into()).into(),
        }
    }

    /// Looks at `path`, which its directory's listing calls a `kind`, if it has not changed since `moment`. With its
    /// version, unless it is shown without being looked at.
    pub(super) fn look(
        &self,
        path: &[u8],
        kind: FileType,
        moment: Mtime,
    ) -> Result<(Node, Option<Stamp>), Unseen> {
        match (self.policy.shown(path), kind) {
            (Shown::Emptied, FileType::Directory) => return Ok((self.emptied(path), None)),
            // A file mounted over another, from elsewhere.
            (Shown::Emptied, FileType::Regular) => return Ok((shut(kind), None)),
            _ => {}
        }
        let fail = |errno| self.failed(path, errno);
        let fd = match open_beneath(&self.dir, path, OFlags::PATH) {
            // A directory on the way that its owner has shut.
            Err(Errno::ACCESS) => return Ok((shut(kind), None)),
            other => other.map_err(fail)?,
        };
        let stat = rustix::fs::fstat(&fd).map_err(fail)?;
        let stamp = Stamp::of(&stat);
        let same_kind = type_of(rustix::fs::FileType::from_raw_mode(stat.st_mode)) == Some(kind);
        if !same_kind || !self.mount_is(&fd, path).map_err(fail)? {
            return Err(self.changed(path).into());
        }
        if stamp.ctime >= moment {
            return Err(Unseen::Later);
        }
        let mut meta = Meta {
            mode: (stat.st_mode & 0o7777) as u16,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: stamp.mtime,
        };
        let xattrs = match kind {
            FileType::Directory | FileType::Regular => self.xattrs(&fd, path)?,
            _ => Box::default(),
        };
        let node = match kind {
            FileType::Directory => {
                meta.mtime = Mtime::FIXED;
                match self.names(path, &stamp)? {
                    Some(names) => Node::Directory { meta, xattrs, names },
                    None => shut(kind),
                }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&fd, "", Vec::new()).map_err(fail)?;
                Node::Symlink { meta, target: target.into_bytes() }
            }
            FileType::Fifo => Node::Fifo { meta },
            _ => {
                let readable = match open_beneath(&self.dir, path, OFlags::RDONLY) {
                    Ok(file) => {
                        let now = Stamp::of(&rustix::fs::fstat(&file).map_err(fail)?);
                        if now != stamp {
                            return Err(Unseen::Later);
                        }
                        true
                    }
                    Err(Errno::ACCESS | Errno::PERM) => false,
                    Err(errno) => return Err(fail(errno).into()),
                };
                let node = Node::File { meta, xattrs, stamp };
                if readable { node } else { node.unreadable() }
            }
        };
        Ok((node, Some(stamp)))
    }

    /// A directory shown with nothing of its own in it: no time of the host's either.
    fn emptied(&self, path: &[u8]) -> Node {
        let mode = if path.ends_with(b"tmp") { 0o1777 } else { 0o755 };
        let step = self.policy.step_to_cwd(path).map(|name| (name.into(), FileType::Directory));
        let meta = Meta { mode, ..Meta::DIRECTORY };
        Node::Directory { meta, xattrs: Box::default(), names: step.into_iter().collect() }
    }

    /// Whether an open file lies in the mount its path did when the table of mounts was read.
    fn mount_is(&self, fd: &OwnedFd, path: &[u8]) -> Result<bool, Errno> {
        let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
        let known = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        Ok(!known || self.policy.mount_of(path).is_none_or(|mount| mount == stat.stx_mnt_id))
    }

    fn xattrs(&self, fd: &OwnedFd, path: &[u8]) -> io::Result<Box<[Xattr]>> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let found = match xattrs_of(link.as_bytes(), true) {
            Ok(found) => found,
            Err(Errno::ACCESS | Errno::PERM) => Box::default(),
            Err(errno) => return Err(self.failed(path, errno)),
        };
        // More than the inode's block holds is left out.
        let fits = xattr_body(&found).is_some_and(|body| INODE_LEN + body.len() <= BLOCK_LEN);
        Ok(if fits { found } else { Box::default() })
    }

    /// The names of a directory that are shown; none if it may not be listed.
    fn names(&self, path: &[u8], stamp: &Stamp) -> Result<Option<Names>, Unseen> {
        let fail = |errno| self.failed(path, errno);
        let fd = match open_beneath(&self.dir, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::ACCESS | Errno::PERM) => return Ok(None),
            other => other.map_err(fail)?,
        };
        let mut names = Names::new();
        for entry in rustix::fs::Dir::read_from(fd.as_fd()).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().to_bytes();
            let child = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
            let hidden = name == b"." || name == b".." || self.policy.shown(&child) == Shown::Hidden;
            if hidden || name.len() > crate::format::NAME_MAX {
                continue;
            }
            let mut kind = entry.file_type();
            if kind == rustix::fs::FileType::Unknown {
                let stat =
                    rustix::fs::statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
                kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            }
            if let Some(kind) = type_of(kind) {
                names.insert(name.into(), kind);
            }
        }
        let now = Stamp::of(&rustix::fs::fstat(&fd).map_err(fail)?);
        if now == *stamp { Ok(Some(names)) } else { Err(Unseen::Later) }
    }
}

/// The kinds that are shown; sockets and devices are not.
fn type_of(kind: rustix::fs::FileType) -> Option<FileType> {
    match kind {
        rustix::fs::FileType::Directory => Some(FileType::Directory),
        rustix::fs::FileType::RegularFile => Some(FileType::Regular),
        rustix::fs::FileType::Symlink => Some(FileType::Symlink),
        rustix::fs::FileType::Fifo => Some(FileType::Fifo),
        _ => None,
    }
}

/// What may not even be looked at: empty, and nobody's to read.
fn shut(kind: FileType) -> Node {
    let meta = Meta { mode: 0, ..Meta::DIRECTORY };
    match kind {
        FileType::Directory => Node::Directory { meta, xattrs: Box::default(), names: BTreeMap::new() },
        FileType::Fifo => Node::Fifo { meta },
        _ => {
            let stamp = Stamp { dev: 0, ino: 0, size: 0, mtime: Mtime::FIXED, ctime: Mtime::FIXED };
            Node::File { meta, xattrs: Box::default(), stamp }
        }
    }
}

impl Node {
    /// A file that cannot be read: empty, with no permissions.
    pub(super) fn unreadable(self) -> Node {
        match self {
            Node::File { meta, xattrs, stamp } => {
                let (meta, stamp) = (Meta { mode: 0, ..meta }, Stamp { size: 0, ..stamp });
                Node::File { meta, xattrs, stamp }
            }
            other => other,
        }
    }

    fn parts(&self) -> (Meta, &[Xattr]) {
        match self {
            Node::Directory { meta, xattrs, .. } | Node::File { meta, xattrs, .. } => (*meta, xattrs),
            Node::Symlink { meta, .. } | Node::Fifo { meta } => (*meta, &[]),
        }
    }

    /// Bytes behind the inode: what of a listing or target (`body` bytes) fits its block.
    fn inline(&self, body: usize) -> usize {
        let (_, xattrs) = self.parts();
        let room = BLOCK_LEN - INODE_LEN - xattr_body(xattrs).map_or(0, |body| body.len());
        let tail = body % BLOCK_LEN;
        if tail <= room { tail } else { 0 }
    }

    /// Blocks of data that do not lie behind the inode.
    pub(super) fn data_blocks(&self, body: usize) -> u64 {
        match self {
            Node::File { stamp, .. } => stamp.size.div_ceil(BLOCK),
            _ => ((body - self.inline(body)) as u64).div_ceil(BLOCK),
        }
    }

    /// The inode's block, with data from block `first`; `body` is a directory's listing or a link's target.
    pub(super) fn encode(&self, body: &[u8], first: u64, block: u64) -> Vec<u8> {
        let (meta, xattrs) = self.parts();
        let xattrs = xattr_body(xattrs).unwrap_or_default();
        let inline = self.inline(body.len());
        let subdirectories = |names: &BTreeMap<_, FileType>| {
            names.values().filter(|kind| **kind == FileType::Directory).count() as u32
        };
        let (kind, size, nlink) = match self {
            Node::Directory { names, .. } => (0o040_000, body.len() as u64, 2 + subdirectories(names)),
            Node::File { stamp, .. } => (0o100_000, stamp.size, 1),
            Node::Symlink { .. } => (0o120_000, body.len() as u64, 1),
            Node::Fifo { .. } => (0o010_000, 0, 1),
        };
        let inode = Inode {
            layout: if inline > 0 { DataLayout::Inline } else { DataLayout::Plain },
            mode: kind | meta.mode,
            size,
            data: first as u32,
            ino: (block * BLOCK / SLOT) as u32,
            uid: meta.uid,
            gid: meta.gid,
            mtime: meta.mtime,
            nlink,
            xattr_len: xattrs.len(),
        };
        [&inode.encode()[..], &xattrs, &body[body.len() - inline..]].concat()
    }
}

/// Encodes a listing of names with their inode blocks.
pub(super) fn encode_listing(names: &BTreeMap<&[u8], (u64, FileType)>) -> Vec<u8> {
    let entries: Vec<_> = names
        .iter()
        .map(|(name, &(block, kind))| Entry { name, nid: block * (BLOCK / SLOT), kind })
        .collect();
    dir_encode(&entries)
}
