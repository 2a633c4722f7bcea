//! A file tree as an image holds it: names, metadata, and for file data where it is to be found.

use crate::content::{Backing, Backings, Content};
use crate::format::{FileType, Mtime, NAME_MAX, TARGET_MAX, Xattr};
use std::collections::{BTreeMap, BTreeSet};

/// Most nodes in one tree: inode numbers and the memory they take stay bounded whatever a tar claims.
pub const NODES_MAX: usize = 4 << 20;

/// Index of a node in its tree; 0 is the root directory.
pub(crate) type NodeId = u32;

/// Names of one directory, in the order the image lists them.
pub(crate) type Names = BTreeMap<Box<[u8]>, NodeId>;

/// Owner, permissions and time of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Permission bits with set-uid, set-gid and sticky: `st_mode & 0o7777`.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time.
    pub mtime: Mtime,
}

impl Meta {
    /// A directory nothing describes: root's, 0755, the fixed time.
    pub(crate) const DIRECTORY: Meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: Mtime::FIXED };
}

/// What a node is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory(Names),
    File { size: u64, content: Content },
    Symlink(Box<[u8]>),
    Device { block: bool, major: u32, minor: u32 },
    Fifo,
}

impl Kind {
    pub(crate) fn file_type(&self) -> FileType {
        match self {
            Kind::Directory(_) => FileType::Directory,
            Kind::File { .. } => FileType::Regular,
            Kind::Symlink(_) => FileType::Symlink,
            Kind::Device { block: true, .. } => FileType::Block,
            Kind::Device { block: false, .. } => FileType::Character,
            Kind::Fifo => FileType::Fifo,
        }
    }

    /// The type bits of `st_mode`.
    pub(crate) fn mode_bits(&self) -> u16 {
        match self.file_type() {
            FileType::Regular => 0o100_000,
            FileType::Directory => 0o040_000,
            FileType::Character => 0o020_000,
            FileType::Block => 0o060_000,
            FileType::Fifo => 0o010_000,
            FileType::Symlink => 0o120_000,
        }
    }
}

/// One inode-to-be. Several names may lead to one node, unless it is a directory.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) meta: Meta,
    /// Sorted by name, each name once.
    pub(crate) xattrs: Box<[Xattr]>,
    pub(crate) kind: Kind,
}

/// A whole tree. Built by the readers of directories and tars.
#[derive(Debug)]
pub struct Tree {
    pub(crate) nodes: Vec<Node>,
    pub(crate) backings: Backings,
}

/// Why something cannot be put into a tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A name that no directory can hold.
    #[error("a name is empty, `.`, `..`, longer than {NAME_MAX} bytes, or holds a slash or a NUL")]
    Name,
    /// A symbolic link's target that no kernel takes.
    #[error("a symbolic link's target is empty, longer than {TARGET_MAX} bytes, or holds a NUL")]
    Target,
    /// Attributes the image format cannot hold.
    #[error(
        "its extended attributes do not fit (a value over 65535 bytes, a name over 255, or 256 KiB in all)"
    )]
    Xattrs,
    /// Too many nodes.
    #[error("there are more than {NODES_MAX} files")]
    Count,
}

impl Tree {
    /// Absolute paths of these nodes, one name of each.
    pub(crate) fn paths_of(&self, mut wanted: BTreeSet<NodeId>) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut waiting = vec![(0, Vec::new())];
        while let Some((id, path)) = waiting.pop().filter(|_| !wanted.is_empty()) {
            for (name, child) in self.names(id).into_iter().flatten() {
                let path = [&path[..], b"/", name].concat();
                if wanted.remove(child) {
                    found.push(path);
                } else if self.names(*child).is_some() {
                    waiting.push((*child, path));
                }
            }
        }
        found
    }

    /// A tree of one empty root directory.
    pub(crate) fn new() -> Tree {
        let root = Node { meta: Meta::DIRECTORY, xattrs: Box::new([]), kind: Kind::Directory(Names::new()) };
        Tree { nodes: vec![root], backings: Backings::default() }
    }

    /// Adds what contents will refer to; returns its number.
    pub(crate) fn add_backing(&mut self, backing: Backing) -> u32 {
        let backings = std::sync::Arc::get_mut(&mut self.backings).expect("a tree being made is not shared");
        backings.push(backing);
        (backings.len() - 1) as u32
    }

    pub(crate) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id as usize]
    }

    /// The names in directory `id`; none if it is no directory.
    pub(crate) fn names(&self, id: NodeId) -> Option<&Names> {
        match &self.node(id).kind {
            Kind::Directory(names) => Some(names),
            _ => None,
        }
    }

    pub(crate) fn names_mut(&mut self, id: NodeId) -> Option<&mut Names> {
        match &mut self.nodes[id as usize].kind {
            Kind::Directory(names) => Some(names),
            _ => None,
        }
    }

    /// Adds a node no name leads to yet.
    pub(crate) fn add(&mut self, mut node: Node) -> Result<NodeId, TreeError> {
        node.xattrs = checked_xattrs(node.xattrs)?;
        if let Kind::Symlink(target) = &node.kind
            && (target.is_empty() || target.len() > TARGET_MAX || target.contains(&0))
        {
            return Err(TreeError::Target);
        }
        if self.nodes.len() >= NODES_MAX {
            return Err(TreeError::Count);
        }
        self.nodes.push(node);
        Ok((self.nodes.len() - 1) as NodeId)
    }

    /// Gives a node other metadata.
    pub(crate) fn describe(&mut self, id: NodeId, meta: Meta, xattrs: Box<[Xattr]>) -> Result<(), TreeError> {
        let node = &mut self.nodes[id as usize];
        node.xattrs = checked_xattrs(xattrs)?;
        node.meta = meta;
        Ok(())
    }

    /// Nodes reachable from the root, in the order they are laid out: a directory's children one behind the other,
    /// then each child directory's. Nodes with several names come once. Depth costs no stack.
    pub(crate) fn order(&self) -> Vec<NodeId> {
        let mut seen = vec![false; self.nodes.len()];
        seen[0] = true;
        let mut order = vec![0];
        let mut directories = vec![0];
        while let Some(directory) = directories.pop() {
            let names = self.names(directory).expect("only directories are pushed");
            let first = directories.len();
            for &child in names.values() {
                if !std::mem::replace(&mut seen[child as usize], true) {
                    order.push(child);
                    if self.names(child).is_some() {
                        directories.push(child);
                    }
                }
            }
            directories[first..].reverse();
        }
        order
    }
}

/// The attributes in order, if an image can hold them.
fn checked_xattrs(mut xattrs: Box<[Xattr]>) -> Result<Box<[Xattr]>, TreeError> {
    xattrs.sort();
    let distinct = xattrs.windows(2).all(|pair| pair[0].name != pair[1].name);
    if distinct && crate::format::xattr_body(&xattrs).is_some() { Ok(xattrs) } else { Err(TreeError::Xattrs) }
}

/// Whether a directory can hold this name.
pub(crate) fn check_name(name: &[u8]) -> Result<(), TreeError> {
    let bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.len() > NAME_MAX
        || name.iter().any(|&byte| byte == 0 || byte == b'/');
    if bad { Err(TreeError::Name) } else { Ok(()) }
}
