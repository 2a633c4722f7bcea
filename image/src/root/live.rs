//! The host's root as one machine reads it.

use super::node::{self, Host, Node, Unseen};
use super::place::{self, BLOCKS, ROOT};
use super::{Known, Origin, Registry};
use crate::block::{BlockImage, check_range};
use crate::content::{Content, Reader};
use crate::format::{BLOCK, BLOCK_LEN, FileType, Mtime, Super};
use crate::stamp::{Stamp, settled_now};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The host's root for one machine. A clone is the same image.
#[derive(Clone, Debug)]
pub struct HostImage {
    pub(super) host: Arc<Host>,
    pub(super) base: Arc<Registry>,
    /// As [`HostRoot`] has it.
    pub(super) moving: bool,
    pub(super) state: Arc<Mutex<Live>>,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) registry: Registry,
    pub(super) reader: Reader,
    /// Listings (and the longest link targets) with blocks of their own that were looked at last.
    pub(super) recent: BTreeMap<u64, Vec<u8>>,
    /// What changed at this time or later is refused, or with `moving` looked at under a later moment.
    pub(super) moment: Mtime,
    pub(super) moving: bool,
    pub(super) files: Option<Mtime>,
}

/// Looks at a file that changes all the time before it is refused; each waits for a tick.
const LOOKS: usize = 20;

/// Most of [`Live::recent`]; others are looked at again.
const RECENT: usize = 256;

impl HostImage {
    /// For a run that begins (again): what an earlier one looked at is forgotten where files may change between.
    pub fn begin(&self) {
        if self.moving {
            let mut live = self.lock();
            live.registry = Registry::clone(&self.base);
            live.recent.clear();
            live.moving = true;
            live.files = None;
        }
    }

    /// The run has ended: what it did not look at is from now on only had as it was when the run began. Directories are
    /// listed as they are.
    pub fn hold(&self) {
        if self.moving {
            let mut live = self.lock();
            live.moving = false;
            live.files = Some(self.host.started);
            live.moment = settled_now();
        }
    }

    /// Absolute paths of the files whose data lies in one of these blocks.
    pub fn files_at(&self, blocks: &mut dyn Iterator<Item = u64>) -> Vec<Vec<u8>> {
        let live = self.lock();
        let owners: BTreeSet<u64> =
            blocks.filter_map(|block| live.registry.data.owner(block)).map(|(_, owner)| owner).collect();
        let nodes = owners.iter().filter_map(|owner| live.registry.nodes.get(owner));
        nodes
            .filter(|known| known.kind == FileType::Regular)
            .map(|known| [b"/", &known.path[..]].concat())
            .collect()
    }

    /// What a later fork needs.
    pub fn origin(&self) -> Origin {
        let live = self.lock();
        let nodes = &live.registry.nodes;
        let time = |time: Mtime| (time.seconds, time.nanos);
        Origin {
            started: time(live.moment),
            nodes: nodes
                .iter()
                .map(|(&block, known)| (block, known.path.to_vec(), known.kind as u8))
                .collect(),
            data: nodes
                .iter()
                .filter_map(|(&block, known)| {
                    let (first, blocks) = known.placed?;
                    let version = known.stamp.map(|s| (s.dev, s.ino, s.size, time(s.mtime), time(s.ctime)));
                    Some((first, blocks, block, version))
                })
                .collect(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Live> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BlockImage for HostImage {
    fn len(&self) -> u64 {
        BLOCKS * BLOCK
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(BLOCKS * BLOCK, offset, out.len())?;
        let mut live = self.lock();
        let mut at = 0;
        let mut block = [0; BLOCK_LEN];
        while at < out.len() {
            let here = offset + at as u64;
            block.fill(0);
            live.block(&self.host, here / BLOCK, &mut block)?;
            let within = (here % BLOCK) as usize;
            let len = (BLOCK_LEN - within).min(out.len() - at);
            out[at..at + len].copy_from_slice(&block[within..within + len]);
            at += len;
        }
        Ok(())
    }
}

impl Live {
    /// Fills one block of zeros. What nobody told the guest of stays zeros.
    pub(super) fn block(&mut self, host: &Host, block: u64, out: &mut [u8; BLOCK_LEN]) -> io::Result<()> {
        if block == 0 {
            Super {
                root_nid: (ROOT * BLOCK / 32) as u16,
                inodes: 1,
                blocks: u32::MAX,
                uuid: *b"rewind host root",
            }
            .write(out);
            return Ok(());
        }
        if let Some((first, owner)) = self.registry.data.owner(block) {
            return self.data(host, owner, block - first, out);
        }
        if self.registry.nodes.contains_key(&block) {
            let inode = self.look(host, block)?;
            out[..inode.len()].copy_from_slice(&inode);
        }
        Ok(())
    }

    /// Block `index` of the data of the inode at `owner`.
    fn data(&mut self, host: &Host, owner: u64, index: u64, out: &mut [u8; BLOCK_LEN]) -> io::Result<()> {
        if self.registry.nodes[&owner].kind == FileType::Regular
            && self.registry.nodes[&owner].stamp.is_none()
        {
            // Placed for another run: what is there now has not been looked at yet.
            self.look(host, owner)?;
        }
        let known = &self.registry.nodes[&owner];
        if known.kind == FileType::Regular {
            let Some(stamp) = known.stamp else { return Err(host.changed(&known.path)) };
            let content = Content::Host { backing: 0, path: known.path.clone(), stamp };
            let at = index * BLOCK;
            let len = stamp.size.saturating_sub(at).min(BLOCK) as usize;
            return Ok(self.reader.read(&content, at, &mut out[..len])?);
        }
        if !self.recent.contains_key(&owner) {
            self.look(host, owner)?;
        }
        let body = &self.recent[&owner];
        let part = &body[(index as usize * BLOCK_LEN).min(body.len())..];
        let len = part.len().min(BLOCK_LEN);
        out[..len].copy_from_slice(&part[..len]);
        Ok(())
    }

    /// Looks at the host and makes the inode's block. The names in a directory become known; its listing, or a link's
    /// target, is at hand for [`Live::data`].
    fn look(&mut self, host: &Host, block: u64) -> io::Result<Vec<u8>> {
        let known = self.registry.nodes[&block].clone();
        let (node, stamp) = self.version(host, &known)?;
        let body = match &node {
            Node::Directory { names, .. } => self.list(&known.path, block, names),
            Node::Symlink { target, .. } => target.clone(),
            _ => Vec::new(),
        };
        let wanted = node.data_blocks(body.len());
        let first = match (wanted, known.placed) {
            (0, None) => Some(0),
            (wanted, Some((first, blocks))) if wanted == blocks => Some(first),
            (_, Some(_)) => return Err(host.changed(&known.path)),
            (wanted, None) => self.registry.data.place(&known.path, wanted, block),
        };
        // No room is left only for a file of terabytes: it is shown, and cannot be read.
        let node = if first.is_some() { node } else { node.unreadable() };
        let first = first.unwrap_or(0);
        let entry = self.registry.nodes.get_mut(&block).expect("looked up above");
        entry.stamp = stamp;
        if wanted > 0 && first > 0 {
            entry.placed = Some((first, wanted));
        }
        let inode = node.encode(&body, first, block);
        if wanted > 0 && known.kind != FileType::Regular {
            if self.recent.len() >= RECENT {
                self.recent.pop_first();
            }
            self.recent.insert(block, body);
        }
        Ok(inode)
    }

    /// The file in one version, which is that of the last look if there was one.
    fn version(&mut self, host: &Host, known: &Known) -> io::Result<(Node, Option<Stamp>)> {
        for looks in 1.. {
            let moment = self.files.filter(|_| known.kind != FileType::Directory).unwrap_or(self.moment);
            match host.look(&known.path, known.kind, moment) {
                Ok((_, now)) if known.stamp.is_some() && now != known.stamp => break,
                Err(Unseen::Later) if self.moving && looks < LOOKS => self.moment = settled_now(),
                Err(Unseen::Later) => break,
                Err(Unseen::Failed(error)) => return Err(error),
                Ok(found) => return Ok(found),
            }
        }
        Err(host.changed(&known.path))
    }

    /// A directory's bytes. Its names get their places.
    fn list(&mut self, path: &[u8], block: u64, names: &BTreeMap<Box<[u8]>, FileType>) -> Vec<u8> {
        let parent = path.iter().rposition(|&byte| byte == b'/').map_or(&[][..], |at| &path[..at]);
        let mut nids = BTreeMap::new();
        for (name, &kind) in names {
            let child = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
            let nodes = &mut self.registry.nodes;
            let at = place::inode_block(&child, |b| nodes.get(&b).is_some_and(|known| *known.path != *child));
            nodes.entry(at).or_insert_with(|| Known::new(&child, kind));
            nids.insert(&**name, (at, kind));
        }
        let parent = self.block_of(parent);
        nids.insert(b".", (block, FileType::Directory));
        nids.insert(b"..", (parent, FileType::Directory));
        node::encode_listing(&nids)
    }

    fn block_of(&self, path: &[u8]) -> u64 {
        let nodes = &self.registry.nodes;
        place::inode_block(path, |b| nodes.get(&b).is_some_and(|known| *known.path != *path))
    }
}
