//! Entries of a tar put into a tree, as unpacking it into an empty root would, with nothing leading out of it:
//! absolute names and link targets are meant from the root, `..` in an entry's name is refused, and a symbolic link
//! on the way to a name is followed inside the tree.

use super::{Entries, Entry, EntryError, EntryKind};
use crate::content::{Backing, Content};
use crate::dir::taken;
use crate::tree::{Kind, Meta, Names, Node, NodeId, Tree, TreeError, check_name};
use std::path::PathBuf;

/// Most symbolic links on the way to one name, as in the kernel.
const LINKS_MAX: usize = 40;

/// A tar could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: entry `{entry}`", .tar.display())]
pub struct TarError {
    /// The file.
    pub tar: PathBuf,
    /// The entry's path, as far as it is known.
    pub entry: String,
    /// What is wrong with it.
    #[source]
    pub cause: TarCause,
}

/// What is wrong with a tar's entry.
#[derive(Debug, thiserror::Error)]
pub enum TarCause {
    /// It cannot be read.
    #[error(transparent)]
    Entry(#[from] EntryError),
    /// It cannot be held.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// It leads upwards.
    #[error("its path has a `..`, which is refused")]
    Upwards,
    /// Part of its path is a file, or links in a circle.
    #[error("its path leads through something that is not a directory")]
    NotDirectory,
    /// A hard link to nothing.
    #[error("it is a hard link to `{0}`, which is not in the tar before it, or is a directory")]
    HardLink(String),
    /// The tar's own root as something else.
    #[error("it replaces the root directory by something else")]
    Root,
}

/// Puts the entries of `range` of backing `backing` (a file) into `tree`. With `layer`, names of the form `.wh.NAME`
/// remove what lower layers had, as image layers use them. `progress` is told the offset from time to time.
pub(crate) fn unpack(
    tree: &mut Tree,
    backing: u32,
    range: std::ops::Range<u64>,
    layer: bool,
    progress: &dyn Fn(u64),
) -> Result<(), TarError> {
    let Backing::File { file, path, .. } = &tree.backings[backing as usize] else {
        unreachable!("a tar is a file")
    };
    let (file, tar) = (file.try_clone(), path.clone());
    let fail = |entry: &[u8], cause| TarError {
        tar: tar.clone(),
        entry: String::from_utf8_lossy(entry).into_owned(),
        cause,
    };
    let file = file.map_err(|error| fail(b"", EntryError::Read(error).into()))?;
    // Whiteouts act on lower layers only, wherever in the layer they stand: they go first.
    let passes: &[bool] = if layer { &[true, false] } else { &[false] };
    for &whiteouts in passes {
        let mut entries = Entries::new(&file, range.clone());
        let mut count = 0u64;
        while let Some(entry) = entries.next().map_err(|(path, error)| fail(&path, error.into()))? {
            let path = entry.path.clone();
            let done = match (layer && is_whiteout(&path), whiteouts) {
                (true, true) => whiteout(tree, &path),
                (false, false) => put(tree, backing, entry),
                _ => Ok(()),
            };
            done.map_err(|cause| fail(&path, cause))?;
            count += 1;
            if count.is_multiple_of(1024) {
                progress(entries.offset());
            }
        }
    }
    Ok(())
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// The directory an entry is in, by components, and its name there.
type Split<'a> = (Vec<&'a [u8]>, Option<&'a [u8]>);

/// Directory and name of an entry's path; no name for the root itself.
fn split(path: &[u8]) -> Result<Split<'_>, TarCause> {
    let mut parts: Vec<_> = components(path).collect();
    if parts.contains(&&b".."[..]) {
        return Err(TarCause::Upwards);
    }
    let name = parts.pop();
    Ok((parts, name))
}

fn is_whiteout(path: &[u8]) -> bool {
    components(path).next_back().is_some_and(|name| name.starts_with(b".wh."))
}

/// Removes what a whiteout names. A name that is not there is nothing to remove.
fn whiteout(tree: &mut Tree, path: &[u8]) -> Result<(), TarCause> {
    let (parent, name) = split(path)?;
    let hidden = name.and_then(|name| name.strip_prefix(b".wh.")).expect("checked by is_whiteout");
    let directory = match walk(tree, &parent, false) {
        Ok(Some(id)) => id,
        Ok(None) | Err(TarCause::NotDirectory) => return Ok(()),
        Err(error) => return Err(error),
    };
    let names = tree.names_mut(directory).expect("walk ends at a directory");
    if hidden == b".wh..opq" {
        names.clear();
    } else if !hidden.starts_with(b".wh.") {
        check_name(hidden)?;
        names.remove(hidden);
    }
    Ok(())
}

/// Follows `parts` from the root. A missing directory is made with `create`, else the answer is none.
fn walk(tree: &mut Tree, parts: &[&[u8]], create: bool) -> Result<Option<NodeId>, TarCause> {
    let mut stack: Vec<NodeId> = vec![0];
    let mut waiting: Vec<Box<[u8]>> = parts.iter().rev().map(|&part| part.into()).collect();
    let mut links = 0;
    while let Some(part) = waiting.pop() {
        let here = *stack.last().expect("the root stays");
        if *part == *b".." {
            if stack.len() > 1 {
                stack.pop();
            }
            continue;
        }
        let names = tree.names(here).expect("only directories are stacked");
        let Some(&child) = names.get(&part) else {
            if !create {
                return Ok(None);
            }
            check_name(&part)?;
            let node =
                Node { meta: Meta::DIRECTORY, xattrs: Box::default(), kind: Kind::Directory(Names::new()) };
            let made = tree.add(node)?;
            tree.names_mut(here).expect("a directory").insert(part, made);
            stack.push(made);
            continue;
        };
        match &tree.node(child).kind {
            Kind::Directory(_) => stack.push(child),
            Kind::Symlink(target) => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(TarCause::NotDirectory);
                }
                if target.starts_with(b"/") {
                    stack.truncate(1);
                }
                waiting.extend(components(target).rev().map(Box::from));
            }
            _ => return Err(TarCause::NotDirectory),
        }
    }
    Ok(stack.pop())
}

/// Puts one entry in; whatever had its name before is replaced, only a directory keeps what is in it.
fn put(tree: &mut Tree, backing: u32, entry: Entry) -> Result<(), TarCause> {
    let (parent, name) = split(&entry.path)?;
    let meta = Meta { mode: entry.mode, uid: entry.uid, gid: entry.gid, mtime: entry.mtime };
    let mut xattrs = entry.xattrs;
    xattrs.retain(|xattr| taken(&xattr.name));
    let kind = match entry.kind {
        EntryKind::HardLink(target) => return hard_link(tree, &parent, name, &target),
        EntryKind::File { size, pieces } => {
            Kind::File { size, content: Content::Pieces { backing, pieces: pieces.into() } }
        }
        EntryKind::Directory => Kind::Directory(Names::new()),
        EntryKind::Symlink(target) => Kind::Symlink(target.into()),
        EntryKind::Device { block, major, minor } => Kind::Device { block, major, minor },
        EntryKind::Fifo => Kind::Fifo,
    };
    let is_directory = matches!(kind, Kind::Directory(_));
    if name.is_none() && !is_directory {
        return Err(TarCause::Root);
    }
    let directory = walk(tree, &parent, true)?.expect("made where missing");
    let existing = match name {
        None => Some(0),
        Some(name) => tree.names(directory).expect("a directory").get(name).copied(),
    };
    let node = Node { meta, xattrs: xattrs.into(), kind };
    if let Some(id) = existing.filter(|&id| is_directory && tree.names(id).is_some()) {
        tree.describe(id, node.meta, node.xattrs)?;
    } else {
        let name = name.expect("the root is a directory and was described");
        check_name(name)?;
        let id = tree.add(node)?;
        tree.names_mut(directory).expect("a directory").insert(name.into(), id);
    }
    Ok(())
}

fn hard_link(tree: &mut Tree, parent: &[&[u8]], name: Option<&[u8]>, target: &[u8]) -> Result<(), TarCause> {
    let missing = || TarCause::HardLink(String::from_utf8_lossy(target).into_owned());
    let name = name.ok_or(TarCause::Root)?;
    check_name(name)?;
    let (target_parent, target_name) = split(target)?;
    let target_directory = walk(tree, &target_parent, false)?.ok_or_else(missing)?;
    let names = tree.names(target_directory).expect("walk ends at a directory");
    let id = *target_name.and_then(|name| names.get(name)).ok_or_else(missing)?;
    if tree.names(id).is_some() {
        return Err(missing());
    }
    let directory = walk(tree, parent, true)?.expect("made where missing");
    tree.names_mut(directory).expect("a directory").insert(name.into(), id);
    Ok(())
}
