//! Getting rid of pages nothing names any more. Only with the home to oneself (see `home`).

use std::{collections::BTreeSet, os::unix::fs::FileExt};

use super::{
    PAGE_SIZE, PageError, PageHash, PageStore, durable, index,
    packs::{self, Packs},
    unpack,
};

/// What [`PageStore::compact`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// Pages kept.
    pub kept: u64,
    /// Pages dropped because nothing names them, or because another pack has them too.
    pub dropped: u64,
    /// Pages dropped because their content does not match their name, and no other copy of them does.
    pub corrupt: u64,
    /// Bytes given back to the disk.
    pub freed: u64,
}

impl PageStore {
    /// Rewrites the packs that hold pages which are not `live` (all of them with `verify`, which also reads and
    /// checks every page). The caller holds the home alone. A process that dies in between leaves only copies
    /// too many, which the next call removes. It needs room for the pages kept of one pack at a time, and packs
    /// without any go first: a full disk has more room afterwards, even if it fails.
    pub fn compact(&self, live: &dyn Fn(PageHash) -> bool, verify: bool) -> Result<Compacted, PageError> {
        let before = self.disk_bytes();
        let mut done = Compacted::default();
        let mut kept = BTreeSet::new();
        *self.lock() = Packs::new(&self.dir);
        let mut numbers = packs::list(&self.dir);
        // Newly written packs get numbers after all old ones, so an old pack is never appended to.
        let mut fresh = Packs::new_after(&self.dir, numbers.last().copied().unwrap_or(0));
        let mut dropped = 0;
        let scan = |number| -> Result<_, PageError> {
            Ok(match packs::scan_index(&self.dir, number, 0)? {
                Some(scan) if scan.foreign => None,
                Some(scan) => Some(scan.entries),
                None => Some(Vec::new()),
            })
        };
        let mut failed = None;
        numbers.retain(|number| match scan(*number) {
            // What another pack's index says of this one cannot be known: it is left alone.
            Ok(None) => false,
            Ok(Some(entries)) if entries.iter().all(|(hash, _)| !live(*hash)) => {
                dropped += entries.len() as u64;
                failed = failed.take().or(self.remove_pack(*number).err());
                false
            }
            Ok(_) => true,
            Err(error) => {
                failed.get_or_insert(error);
                true
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        done.dropped += dropped;
        // Of a page stored twice one copy may be corrupt: only one that was read and checked may stay for both.
        let (mut once, mut doubled) = (BTreeSet::new(), BTreeSet::new());
        for number in &numbers {
            let entries = scan(*number)?.unwrap_or_default();
            doubled.extend(entries.into_iter().map(|(hash, _)| hash).filter(|hash| !once.insert(*hash)));
        }
        drop(once);
        let mut corrupt = Vec::new();
        for number in numbers {
            let entries = scan(number)?.unwrap_or_default();
            let wanted = |hash: &PageHash, kept: &BTreeSet<PageHash>| live(*hash) && !kept.contains(hash);
            let all_wanted =
                !entries.is_empty() && entries.iter().all(|(hash, _)| live(*hash) && !doubled.contains(hash));
            if all_wanted && !verify {
                kept.extend(entries.iter().map(|(hash, _)| *hash));
                done.kept += entries.len() as u64;
                continue;
            }
            for (hash, at) in entries {
                if !wanted(&hash, &kept) {
                    done.dropped += 1;
                    continue;
                }
                let mut stored = [0; PAGE_SIZE];
                let stored = &mut stored[..at.len as usize];
                let mut page = [0; PAGE_SIZE];
                let read = fresh.file(number)?.read_exact_at(stored, at.offset);
                if read.is_err() || unpack(stored, &mut page).is_err() || PageHash::of(&page) != hash {
                    corrupt.push(hash);
                    continue;
                }
                fresh.append(hash, &page)?;
                kept.insert(hash);
                done.kept += 1;
            }
            fresh.sync()?;
            self.remove_pack(number)?;
        }
        drop(fresh);
        self.remove_orphans()?;
        let bad = corrupt.len() as u64;
        corrupt.retain(|hash| !kept.contains(hash));
        done.dropped += bad - corrupt.len() as u64;
        done.corrupt = corrupt.into_iter().collect::<BTreeSet<_>>().len() as u64;
        done.freed = before.saturating_sub(self.disk_bytes());
        Ok(done)
    }

    fn remove_pack(&self, number: u32) -> Result<(), PageError> {
        // The index first: a pack without one holds nothing as far as anyone can see.
        durable::remove_file(&packs::index_path(&self.dir, number))?;
        Ok(durable::remove_file(&packs::pack_path(&self.dir, number))?)
    }

    /// Indexes whose pack is gone, and packs with nothing but a header.
    fn remove_orphans(&self) -> Result<(), PageError> {
        let numbers = packs::list(&self.dir);
        for entry in std::fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".idx")?.parse().ok());
            if number.is_some_and(|number: u32| !numbers.contains(&number)) {
                durable::remove_file(&entry.path())?;
            }
        }
        for number in numbers {
            let path = packs::pack_path(&self.dir, number);
            if std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= index::HEADER) {
                durable::remove_file(&packs::index_path(&self.dir, number))?;
                durable::remove_file(&path)?;
            }
        }
        Ok(())
    }
}
