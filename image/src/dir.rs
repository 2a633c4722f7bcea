//! A host directory as a tree.
//!
//! The same content must be the same image on every machine and at every time, so by default nothing of the host's
//! owners and times is taken over; see `docs/decisions/images.md`.

use crate::content::{Backing, Content};
use crate::format::{Mtime, Xattr, xattr_index};
use crate::stamp::{Stamp, open_beneath, open_top};
use crate::tree::{Kind, Meta, Names, Node, NodeId, Tree, TreeError, check_name};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, FileType, OFlags};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a directory's image takes over from the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirOptions {
    /// Owners as on the host; else everything is root's.
    pub keep_owners: bool,
    /// Modification times as on the host; else [`Mtime::FIXED`].
    pub keep_times: bool,
}

/// A directory could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The host says no.
    #[error("cannot read {}", .0.display())]
    Host(PathBuf, #[source] std::io::Error),
    /// Something in it does not fit an image.
    #[error("cannot put {} into an image", .0.display())]
    Tree(PathBuf, #[source] TreeError),
}

/// Something left out of an image, for a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Path below the directory.
    pub path: Vec<u8>,
    /// What it is.
    pub what: &'static str,
}

/// Scans directories; reads no file data.
struct Scan {
    options: DirOptions,
    top: PathBuf,
    dir: OwnedFd,
    tree: Tree,
    /// Nodes of files with several names, by device and inode number.
    linked: BTreeMap<(u64, u64), NodeId>,
    left_out: Vec<LeftOut>,
}

/// Reads the tree below `top`. Sockets are left out and listed.
pub fn read_dir(top: &Path, options: DirOptions) -> Result<(Tree, Vec<LeftOut>), DirError> {
    let host = |errno: rustix::io::Errno| DirError::Host(top.to_owned(), errno.into());
    let dir = open_top(top).map_err(host)?;
    let backing = rustix::io::dup(&dir).map_err(host)?;
    let mut scan = Scan {
        options,
        top: top.to_owned(),
        dir,
        tree: Tree::new(),
        linked: BTreeMap::new(),
        left_out: Vec::new(),
    };
    scan.tree.add_backing(Backing::Directory { dir: backing, path: top.to_owned() });
    scan.root()?;
    let mut waiting = vec![(0, Vec::new())];
    while let Some((id, path)) = waiting.pop() {
        scan.directory(id, &path, &mut waiting)?;
    }
    Ok((scan.tree, scan.left_out))
}

impl Scan {
    fn host(&self, path: &[u8], errno: rustix::io::Errno) -> DirError {
        DirError::Host(self.top.join(crate::os(path)), errno.into())
    }

    fn root(&mut self) -> Result<(), DirError> {
        let stat = rustix::fs::fstat(&self.dir).map_err(|errno| self.host(b"", errno))?;
        self.tree.nodes[0].meta = self.meta(&stat);
        let path = format!("/proc/self/fd/{}", self.dir.as_raw_fd());
        let xattrs = xattrs_of(path.as_bytes(), true).map_err(|errno| self.host(b"", errno))?;
        self.tree.nodes[0].xattrs = xattrs;
        Ok(())
    }

    fn meta(&self, stat: &rustix::fs::Stat) -> Meta {
        let keep = self.options.keep_owners;
        let mtime = if self.options.keep_times { Stamp::of(stat).mtime } else { Mtime::FIXED };
        Meta {
            mode: (stat.st_mode & 0o7777) as u16,
            uid: if keep { stat.st_uid } else { 0 },
            gid: if keep { stat.st_gid } else { 0 },
            mtime,
        }
    }

    /// Reads one directory's names into its node; directories in it are put on `waiting`.
    fn directory(
        &mut self,
        id: NodeId,
        path: &[u8],
        waiting: &mut Vec<(NodeId, Vec<u8>)>,
    ) -> Result<(), DirError> {
        let fail = |scan: &Scan, errno| scan.host(path, errno);
        let fd = open_beneath(&self.dir, path, OFlags::RDONLY | OFlags::DIRECTORY)
            .map_err(|errno| fail(self, errno))?;
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&fd).map_err(|errno| fail(self, errno))? {
            let entry = entry.map_err(|errno| fail(self, errno))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(Box::<[u8]>::from(name));
            }
        }
        names.sort();
        let mut listed = Names::new();
        for name in names {
            let child = if path.is_empty() { name.to_vec() } else { [path, b"/", &name].concat() };
            if let Some(child_id) = self.entry(&fd, &name, &child)? {
                if self.tree.names(child_id).is_some() {
                    waiting.push((child_id, child));
                }
                listed.insert(name, child_id);
            }
        }
        *self.tree.names_mut(id).expect("only directories wait") = listed;
        Ok(())
    }

    /// The node of one name; none if it is left out.
    fn entry(&mut self, dir: &OwnedFd, name: &[u8], path: &[u8]) -> Result<Option<NodeId>, DirError> {
        let host = |scan: &Scan, errno| scan.host(path, errno);
        let stat = rustix::fs::statat(dir, crate::os(name), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| host(self, errno))?;
        let key = (stat.st_dev, stat.st_ino);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if let Some(&id) = self.linked.get(&key)
            && kind != FileType::Directory
        {
            return Ok(Some(id));
        }
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let kind = match kind {
            FileType::Directory => Kind::Directory(Names::new()),
            FileType::RegularFile => {
                let content = Content::Host { backing: 0, path: path.into(), stamp: Stamp::of(&stat) };
                Kind::File { size: stat.st_size as u64, content }
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(dir, crate::os(name), Vec::new())
                    .map_err(|errno| host(self, errno))?;
                Kind::Symlink(target.to_bytes().into())
            }
            FileType::CharacterDevice => Kind::Device { block: false, major, minor },
            FileType::BlockDevice => Kind::Device { block: true, major, minor },
            FileType::Fifo => Kind::Fifo,
            FileType::Socket | FileType::Unknown => {
                self.left_out.push(LeftOut { path: path.to_vec(), what: "socket" });
                return Ok(None);
            }
        };
        let mut xattr_path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
        xattr_path.extend(name);
        let xattrs = xattrs_of(&xattr_path, false).map_err(|errno| host(self, errno))?;
        let tree_error = |scan: &Scan, error| DirError::Tree(scan.top.join(crate::os(path)), error);
        check_name(name).map_err(|error| tree_error(self, error))?;
        let links = !matches!(kind, Kind::Directory(_)) && stat.st_nlink > 1;
        let node = Node { meta: self.meta(&stat), xattrs, kind };
        let id = self.tree.add(node).map_err(|error| tree_error(self, error))?;
        if links {
            self.linked.insert(key, id);
        }
        Ok(Some(id))
    }
}

/// The attributes an image takes over: what programs store (`user.`), access lists and file capabilities. Labels of
/// the host's security module and an overlay's own marks say something about the host, not about the tree.
pub(crate) fn xattrs_of(path: &[u8], follow: bool) -> rustix::io::Result<Box<[Xattr]>> {
    use rustix::io::Errno;
    let path = crate::os(path);
    let list = |buffer: &mut Vec<u8>| {
        if follow { rustix::fs::listxattr(path, buffer) } else { rustix::fs::llistxattr(path, buffer) }
    };
    let names = match grow(256, list) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Box::default()),
        Err(errno) => return Err(errno),
    };
    let mut found = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| taken(name)) {
        let get = |buffer: &mut Vec<u8>| {
            let name = crate::os(name);
            if follow {
                rustix::fs::getxattr(path, name, buffer)
            } else {
                rustix::fs::lgetxattr(path, name, buffer)
            }
        };
        found.push(Xattr { name: name.into(), value: grow(256, get)?.into() });
    }
    found.sort();
    Ok(found.into())
}

/// Whether an image takes the attribute over, see [`xattrs_of`].
pub(crate) fn taken(name: &[u8]) -> bool {
    let kept = name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_")
        || name == b"security.capability";
    kept && xattr_index(name).is_some()
}

/// Calls `get` with ever larger buffers until what it asks for fits. The kernel bounds both lists and values by
/// 64 KiB.
fn grow(
    first: usize,
    mut get: impl FnMut(&mut Vec<u8>) -> rustix::io::Result<usize>,
) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    let mut size = first;
    loop {
        buffer.resize(size, 0);
        match get(&mut buffer) {
            Err(rustix::io::Errno::RANGE) if size < 1 << 17 => size *= 4,
            Err(errno) => return Err(errno),
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
        }
    }
}
