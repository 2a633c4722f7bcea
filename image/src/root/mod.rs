//! The host's own root as an image, when no `--root` is given: nothing is scanned beforehand. A directory is listed,
//! a file looked at, when the guest first reads its inode; its place in the image follows from its path
//! (`place`), so the guest can only ask for what a directory it has read names.
//!
//! The root is seen as it was when [`HostRoot::new`] returned. Whatever changed since (its `ctime` is not older) is
//! refused by name, so all runs of one family see one root. A run of its own ([`HostRoot::moving`]) sees what changed
//! since too, each file in one version. The run layer logs what is read.

mod live;
mod node;
mod place;
mod policy;
mod same;

use crate::content::{Backing, Reader};
use crate::format::{FileType, Mtime};
use crate::stamp::{Stamp, open_top, settled_now};
pub use live::HostImage;
use live::Live;
use node::Host;
use place::{Data, ROOT};
use policy::Policy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

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
