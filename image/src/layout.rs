//! Where everything of a tree lies in a packed image: metadata as generated blocks, file data as addresses.
//!
//! ```text
//! block 0        superblock at 1024, then inodes from slot 36 on, in the order of Tree::order
//! behind them    full blocks of directories, targets of links too long to lie behind their inode
//! behind those   file data, each file from a block of its own, in the same order
//! ```

use crate::format::{
    BLOCK, BLOCK_LEN, BLOCKS_MAX, DataLayout, Entry, INODE_LEN, Inode, SLOT, SUPER_LEN, SUPER_OFFSET, Super,
    device_number, dir_encode, dir_size, xattr_body,
};
use crate::tree::{Kind, Names, NodeId, Tree};
use std::ops::Bound;

/// A packed image without its file data.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The image's first blocks.
    pub(crate) meta: Vec<u8>,
    /// Files with data, by their first block.
    pub(crate) files: Vec<Extent>,
    /// Blocks in all.
    pub(crate) blocks: u64,
}

/// One file's data: whole blocks from `first`, the last one padded with zeros.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) first: u32,
    pub(crate) node: NodeId,
}

/// The tree does not fit an image.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the root is larger than 16 TiB (the sum of its files' sizes, holes included), the most an image can hold"
)]
pub struct TooLarge;

/// Where one node lies. Indexed by node.
#[derive(Clone, Copy, Default)]
struct Place {
    nid: u64,
    /// Bytes of the data, if it is metadata (a directory or a link's target) or a file's.
    size: u64,
    /// Bytes behind the inode.
    inline: usize,
    /// First block of the data that is not inline.
    data: u64,
    xattr_len: usize,
    nlink: u32,
    parent: NodeId,
}

/// Lays the tree out. The same tree (as [`Tree::order`] sees it) gives the same bytes.
pub(crate) fn layout(tree: &Tree) -> Result<Layout, TooLarge> {
    let order = tree.order();
    let mut places = vec![Place::default(); tree.nodes.len()];
    count_links(tree, &order, &mut places);

    let mut at = (SUPER_OFFSET + SUPER_LEN) as u64;
    for &id in &order {
        at = place_inode(tree, id, at, &mut places[id as usize]);
    }
    let mut next = at.div_ceil(BLOCK);
    for &id in &order {
        let place = &mut places[id as usize];
        if !matches!(tree.node(id).kind, Kind::File { .. }) {
            place.data = next;
            next += (place.size - place.inline as u64).div_ceil(BLOCK);
        }
    }
    let meta_blocks = next;
    let mut files = Vec::new();
    for &id in &order {
        if let Kind::File { size, .. } = tree.node(id).kind
            && size > 0
        {
            places[id as usize].data = next;
            files.push(Extent { first: u32::try_from(next).map_err(|_| TooLarge)?, node: id });
            next = next.checked_add(size.div_ceil(BLOCK)).ok_or(TooLarge)?;
        }
    }
    if next > BLOCKS_MAX {
        return Err(TooLarge);
    }

    let mut meta = vec![0; meta_blocks as usize * BLOCK_LEN];
    for &id in &order {
        write_node(tree, id, &places, &mut meta);
    }
    let root_nid = u16::try_from(places[0].nid).expect("the root is placed first");
    let inodes = order.len() as u64;
    Super { root_nid, inodes, blocks: next as u32, uuid: [0; 16] }.write(&mut meta[..BLOCK_LEN]);
    Ok(Layout { meta, files, blocks: next })
}

/// Link counts and parents: a name each for files; for directories two and one for each directory inside.
fn count_links(tree: &Tree, order: &[NodeId], places: &mut [Place]) {
    for &id in order {
        let Some(names) = tree.names(id) else { continue };
        places[id as usize].nlink += 2;
        for &child in names.values() {
            if tree.names(child).is_some() {
                places[id as usize].nlink += 1;
                places[child as usize].parent = id;
            } else {
                places[child as usize].nlink += 1;
            }
        }
    }
}

/// Gives the node an inode at or after byte `at`; returns where the next may begin.
fn place_inode(tree: &Tree, id: NodeId, at: u64, place: &mut Place) -> u64 {
    let node = tree.node(id);
    let xattr_len = xattr_body(&node.xattrs).expect("checked by Tree::add").len();
    let (size, inline) = match &node.kind {
        Kind::Directory(names) => {
            let size = dir_size(with_dots(names));
            (size, (size % BLOCK) as usize)
        }
        Kind::Symlink(target) => (target.len() as u64, target.len()),
        Kind::File { size, .. } => (*size, 0),
        Kind::Device { .. } | Kind::Fifo => (0, 0),
    };
    let start = inode_start(at, xattr_len, inline);
    let (start, inline) = match start {
        Some(start) => (start, inline),
        None => (inode_start(at, xattr_len, 0).expect("nothing inline always fits"), 0),
    };
    *place = Place { nid: start / SLOT, size, inline, xattr_len, ..*place };
    (start + (INODE_LEN + xattr_len + inline) as u64).next_multiple_of(SLOT)
}

/// First slot from `at` (a slot) on where an inode does not cross a block's end and its inline data lies in one
/// block, as the kernel asks (`erofs_map_blocks_flatmode`); none if the inline data never can.
fn inode_start(at: u64, xattr_len: usize, inline: usize) -> Option<u64> {
    let fits = |start: u64| {
        let inode = (start % BLOCK) as usize;
        let tail = (inode + INODE_LEN + xattr_len) % BLOCK_LEN;
        inode + INODE_LEN <= BLOCK_LEN && (inline == 0 || tail + inline <= BLOCK_LEN)
    };
    (0..BLOCK / SLOT).map(|slot| at + slot * SLOT).find(|&start| fits(start))
}

/// A directory's names with `.` and `..` where bytewise order puts them.
fn with_dots(names: &Names) -> impl Iterator<Item = &[u8]> {
    let range =
        |from: Bound<&[u8]>, to: Bound<&[u8]>| names.range::<[u8], _>((from, to)).map(|(name, _)| &**name);
    let (dot, dots) = (&b"."[..], &b".."[..]);
    range(Bound::Unbounded, Bound::Excluded(dot))
        .chain([dot])
        .chain(range(Bound::Excluded(dot), Bound::Excluded(dots)))
        .chain([dots])
        .chain(range(Bound::Excluded(dots), Bound::Unbounded))
}

fn write_node(tree: &Tree, id: NodeId, places: &[Place], meta: &mut [u8]) {
    let node = tree.node(id);
    let place = &places[id as usize];
    let data = match &node.kind {
        Kind::Directory(names) => {
            let entries: Vec<_> = with_dots(names)
                .map(|name| {
                    let target = match name {
                        b"." => id,
                        b".." => place.parent,
                        name => names[name],
                    };
                    Entry { name, nid: places[target as usize].nid, kind: tree.node(target).kind.file_type() }
                })
                .collect();
            dir_encode(&entries)
        }
        Kind::Symlink(target) => target.to_vec(),
        _ => Vec::new(),
    };
    let inode = Inode {
        layout: if place.inline > 0 { DataLayout::Inline } else { DataLayout::Plain },
        mode: node.kind.mode_bits() | node.meta.mode,
        size: place.size,
        data: match node.kind {
            Kind::Device { major, minor, .. } => device_number(major, minor),
            Kind::Fifo => 0,
            _ => place.data as u32,
        },
        ino: place.nid as u32,
        uid: node.meta.uid,
        gid: node.meta.gid,
        mtime: node.meta.mtime,
        nlink: place.nlink,
        xattr_len: place.xattr_len,
    };
    let mut at = (place.nid * SLOT) as usize;
    let mut put = |bytes: &[u8], at: usize| meta[at..at + bytes.len()].copy_from_slice(bytes);
    put(&inode.encode(), at);
    at += INODE_LEN;
    put(&xattr_body(&node.xattrs).expect("checked by Tree::add"), at);
    at += place.xattr_len;
    let (blocks, tail) = data.split_at(data.len() - place.inline);
    put(tail, at);
    if !blocks.is_empty() {
        put(blocks, place.data as usize * BLOCK_LEN);
    }
}
