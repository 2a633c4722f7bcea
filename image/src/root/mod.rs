//! The host's own root as an image, when no `--root` is given: nothing is scanned beforehand. A directory is listed,
//! a file looked at, when the guest first reads its inode; its place in the image follows from its path
//! (`place`), so the guest can only ask for what a directory it has read names.
//!
//! The root is seen as it was when [`HostRoot::new`] returned. Whatever changed since (its `ctime` is not older) is
//! refused by name, so all runs of one family see one root. A run of its own ([`HostRoot::moving`]) sees what changed
//! since too, each file in one version. The run layer logs what is read.

mod node;
mod place;
mod policy;
mod same;

use crate::block::{BlockImage, check_range};
use crate::content::{Backing, Content, Reader};
use crate::format::{BLOCK, BLOCK_LEN, FileType, Mtime, Super};
use crate::stamp::{Stamp, open_top, settled_now};
use node::{Host, Node, Unseen};
use place::{BLOCKS, Data, ROOT};
use policy::Policy;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which root, and from where it is looked at.
#[derive(Clone, Debug)]
pub struct RootOptions {
    /// The root; `/` but in tests.
    pub top: PathBuf,
    /// Working directory, below `top` by its real path: its tree is always shown.
    pub cwd: PathBuf,
    /// The user's home directory, where secrets are looked for besides `/root` and `/home/*`.
    pub home: Option<PathBuf>,
    /// Never shown: Rewind's own home.
    pub hidden: Vec<PathBuf>,
}

/// The host's root cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The host says no.
    #[error("cannot use {} as the root", .0.display())]
    Host(PathBuf, #[source] io::Error),
    /// A directory that is not below the root.
    #[error("{} is not below the root; give its real path", .0.display())]
    Outside(PathBuf),
    /// A working directory the guest cannot see.
    #[error("the working directory {} holds secrets or Rewind's own files and is not shown to programs; work elsewhere, or give --root", .0.display())]
    Hidden(PathBuf),
}

/// The host's root as it was at one moment.
#[derive(Clone, Debug)]
pub struct HostRoot {
    host: Arc<Host>,
    base: Registry,
    /// Its images' moment moves on to the look at a file that changed since.
    moving: bool,
    /// An earlier moment for all but directories.
    files: Option<Mtime>,
}

/// What a fork of a stored run needs to go on reading the same root on this host. Not part of any spec: it holds host
/// times and inode numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    started: (i64, u32),
    /// Inode block, path, type.
    nodes: Vec<(u64, Vec<u8>, u8)>,
    /// First data block, blocks, inode block, and the version read.
    data: Vec<(u64, u64, u64, Option<Version>)>,
}

type Version = (u64, u64, u64, (i64, u32), (i64, u32));

/// Paths the guest may ask for, and where their data is.
#[derive(Clone, Debug, Default)]
struct Registry {
    /// By inode block.
    nodes: BTreeMap<u64, Known>,
    data: Data,
}

#[derive(Clone, Debug)]
struct Known {
    path: Box<[u8]>,
    kind: FileType,
    /// First block and number of blocks of its data, once it has a place.
    placed: Option<(u64, u64)>,
    /// The version it was looked at in.
    stamp: Option<Stamp>,
}

impl HostRoot {
    /// Fixes the moment. Takes at most one tick of the host's clock (10 ms), so that whatever is written from now on
    /// has a later time.
    pub fn new(options: &RootOptions) -> Result<HostRoot, RootError> {
        HostRoot::at(options, settled_now())
    }

    /// For one run and no other: what changes while it runs is seen as it is when the run first looks at it, as natively.
    /// A file is still never a mix of two versions: one that changes after that look is refused.
    pub fn moving(options: &RootOptions) -> Result<HostRoot, RootError> {
        Ok(HostRoot { moving: true, ..HostRoot::new(options)? })
    }

    fn at(options: &RootOptions, started: Mtime) -> Result<HostRoot, RootError> {
        let fail = |errno: rustix::io::Errno| RootError::Host(options.top.clone(), errno.into());
        let below = |path: &Path| {
            let rest = path.strip_prefix(&options.top).map_err(|_| RootError::Outside(path.to_owned()))?;
            Ok(rest.as_os_str().as_encoded_bytes().to_vec())
        };
        let cwd = below(&options.cwd)?;
        let home = options.home.as_deref().and_then(|home| below(home).ok());
        let hidden = options.hidden.iter().filter_map(|path| below(path).ok()).collect();
        let policy = Policy::new(cwd.clone(), home, hidden, &options.top);
        if policy.hides(&cwd) {
            return Err(RootError::Hidden(options.cwd.clone()));
        }
        let dir = open_top(&options.top).map_err(fail)?;
        let backing =
            Backing::Directory { dir: rustix::io::dup(&dir).map_err(fail)?, path: options.top.clone() };
        let host =
            Host { dir, top: options.top.clone(), policy, started, reader: Reader::new(vec![backing]) };
        let mut base = Registry::default();
        base.nodes.insert(ROOT, Known::new(b"", FileType::Directory));
        Ok(HostRoot { host: Arc::new(host), base, moving: false, files: None })
    }

    /// As it was for an earlier run: what changed since *that* run began is refused.
    pub fn resume(options: &RootOptions, origin: &Origin) -> Result<HostRoot, RootError> {
        let started = Mtime { seconds: origin.started.0, nanos: origin.started.1 };
        HostRoot::resume_at(options, origin, started)
    }

    /// For a look into an earlier run that is thrown away: directories that it did not look at are listed as they are now, so
    /// that something can be found in them; files and links that changed since that run began are refused.
    pub fn resume_now(options: &RootOptions, origin: &Origin) -> Result<HostRoot, RootError> {
        let files = Some(Mtime { seconds: origin.started.0, nanos: origin.started.1 });
        Ok(HostRoot { files, ..HostRoot::resume_at(options, origin, settled_now())? })
    }

    fn resume_at(options: &RootOptions, origin: &Origin, started: Mtime) -> Result<HostRoot, RootError> {
        let mut root = HostRoot::at(options, started)?;
        for (block, path, kind) in &origin.nodes {
            let kind = FileType::from_byte(*kind).unwrap_or(FileType::Regular);
            root.base.nodes.insert(*block, Known::new(path, kind));
        }
        for &(first, blocks, owner, version) in &origin.data {
            root.base.data.restore(first, blocks, owner);
            if let Some(known) = root.base.nodes.get_mut(&owner) {
                known.placed = Some((first, blocks));
                known.stamp = version.map(|(dev, ino, size, mtime, ctime)| {
                    let time = |(seconds, nanos)| Mtime { seconds, nanos };
                    Stamp { dev, ino, size, mtime: time(mtime), ctime: time(ctime) }
                });
            }
        }
        Ok(root)
    }

    /// An image for one machine.
    pub fn image(&self) -> HostImage {
        let state = Arc::new(Mutex::new(self.live(self.base.clone(), self.moving)));
        HostImage { host: self.host.clone(), base: Arc::new(self.base.clone()), moving: self.moving, state }
    }

    fn live(&self, registry: Registry, moving: bool) -> Live {
        let reader = self.host.reader.clone();
        Live {
            registry,
            reader,
            recent: BTreeMap::new(),
            moment: self.host.started,
            moving,
            files: self.files,
        }
    }

    /// Lets images made from now on know what `image`'s guest has learned: for forks of its run.
    pub fn learn(&mut self, image: &HostImage) {
        self.base = image.lock().registry.clone();
    }
}

impl Known {
    fn new(path: &[u8], kind: FileType) -> Known {
        Known { path: path.into(), kind, placed: None, stamp: None }
    }
}

/// The host's root for one machine. A clone is the same image.
#[derive(Clone, Debug)]
pub struct HostImage {
    host: Arc<Host>,
    base: Arc<Registry>,
    /// As [`HostRoot`] has it.
    moving: bool,
    state: Arc<Mutex<Live>>,
}

#[derive(Debug)]
struct Live {
    registry: Registry,
    reader: Reader,
    /// Listings (and the longest link targets) with blocks of their own that were looked at last.
    recent: BTreeMap<u64, Vec<u8>>,
    /// What changed at this time or later is refused, or with `moving` looked at under a later moment.
    moment: Mtime,
    moving: bool,
    files: Option<Mtime>,
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

    fn lock(&self) -> MutexGuard<'_, Live> {
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
    fn block(&mut self, host: &Host, block: u64, out: &mut [u8; BLOCK_LEN]) -> io::Result<()> {
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
