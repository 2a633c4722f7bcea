//! Whether the root would still give an earlier run what it was given.

use super::{HostRoot, Known, Live, Mtime, Origin, Registry, Version};
use crate::format::{BLOCK_LEN, FileType};
use crate::stamp::Stamp;
use std::collections::BTreeMap;

impl HostRoot {
    /// Whether this root, as it is now, gives exactly `blocks` (number to BLAKE3, zeros for a block of zeros): what an
    /// earlier run with this `origin` was given. Data of a file whose version has not changed since is not read.
    pub fn still_gives(&self, origin: &Origin, blocks: &BTreeMap<u64, [u8; 32]>) -> bool {
        let mut registry = Registry::default();
        let mut versions = BTreeMap::new();
        for (block, path, kind) in &origin.nodes {
            let Some(kind) = FileType::from_byte(*kind) else { return false };
            registry.nodes.insert(*block, Known::new(path, kind));
        }
        for &(first, len, owner, version) in &origin.data {
            registry.data.restore(first, len, owner);
            if let Some(known) = registry.nodes.get_mut(&owner) {
                known.placed = Some((first, len));
            }
            versions.insert(owner, version.map(stamp));
        }
        let started = Mtime { seconds: origin.started.0, nanos: origin.started.1 };
        let mut live = self.live(registry, false);
        // Inodes before data: they say which version of a file there is.
        let is_data = |live: &Live, block| live.registry.data.owner(block);
        let (data, inodes): (Vec<_>, Vec<_>) =
            blocks.iter().partition(|(block, _)| is_data(&live, **block).is_some());
        inodes.into_iter().all(|(&block, hash)| self.gives(&mut live, block, hash))
            && data.into_iter().all(|(&block, hash)| {
                let (_, owner) = is_data(&live, block).expect("it is in the partition of data");
                let now = live.registry.nodes.get(&owner).and_then(|known| known.stamp);
                let before = versions.get(&owner).copied().flatten();
                // A version older than the moment of the run cannot have been written since without a new ctime.
                (now.is_some() && now == before && now.is_some_and(|stamp| stamp.ctime < started))
                    || self.gives(&mut live, block, hash)
            })
    }

    fn gives(&self, live: &mut Live, block: u64, hash: &[u8; 32]) -> bool {
        let mut out = [0; BLOCK_LEN];
        // What cannot be read, or has changed since this root was opened, is not as it was.
        if live.block(&self.host, block, &mut out).is_err() {
            return false;
        }
        let zero = out.iter().all(|byte| *byte == 0);
        *hash == if zero { [0; 32] } else { *blake3::hash(&out).as_bytes() }
    }
}

fn stamp((dev, ino, size, mtime, ctime): Version) -> Stamp {
    let time = |(seconds, nanos)| Mtime { seconds, nanos };
    Stamp { dev, ino, size, mtime: time(mtime), ctime: time(ctime) }
}
