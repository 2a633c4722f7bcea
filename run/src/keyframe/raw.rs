//! Raw copies of keyframes in use: sparse files of all RAM, to be mapped private. A cache: rebuilt from the page
//! store when missing, never the only copy of anything, and done without where it cannot be.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{KeyframeError, LoadError, Whole};
use crate::{
    durable,
    spec::Content,
    store::{PAGE_SIZE, PageStore},
};

/// Bytes written at once.
const GATHER: usize = 1 << 20;

/// `f_type` of file systems that live in memory.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// The raw copy of a keyframe named `key` in `cache`, made if it is not there. A copy that was changed since it
/// was made (by size or time of change) is made again. None where it cannot be kept or is not safe to map: memory is
/// filled from the page store then.
pub fn raw_file(
    cache: &Path,
    key: Content,
    whole: &Whole,
    run: &str,
    store: &PageStore,
) -> Result<Option<PathBuf>, KeyframeError> {
    let path = cache.join(format!("{key}.ram"));
    let stamp = cache.join(format!("{key}.stamp"));
    if is_in_memory(cache) {
        // One made before this was looked at only takes room.
        let _ = std::fs::remove_file(&path).and_then(|()| std::fs::remove_file(&stamp));
        return Ok(None);
    }
    if let Some(found) = std::fs::metadata(&path).ok().map(|meta| stamp_of(&meta))
        && std::fs::read_to_string(&stamp).is_ok_and(|kept| kept == found)
    {
        return Ok(Some(path));
    }
    let temporary = durable::temporary_beside(&path);
    let made = (|| {
        std::fs::create_dir_all(cache).map_err(LoadError::Put)?;
        let file =
            OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(LoadError::Put)?;
        file.set_len(whole.keyframe.memory).map_err(LoadError::Put)?;
        fill(&file, whole, run, store)?;
        let finish = || {
            // On disk before the stamp says so: a power cut cannot leave a stamped copy with holes.
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            std::fs::write(&stamp, stamp_of(&std::fs::metadata(&path)?))
        };
        finish().map_err(LoadError::Put)
    })();
    match made {
        Ok(()) => Ok(Some(path)),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            match error {
                LoadError::Keyframe(error) => Err(error),
                // No room, a limit, a home that is only read: nothing needs the copy.
                LoadError::Put(_) => Ok(None),
            }
        }
    }
}

/// Does `cache` lie on a file system where reading a hole of a mapped file takes memory of the file system? Where that is
/// full, the reader is killed (SIGBUS).
fn is_in_memory(cache: &Path) -> bool {
    // Not made yet: it will be on the file system of what it will be in.
    let there = cache.ancestors().find_map(|path| rustix::fs::statfs(path).ok());
    there.is_some_and(|stat| IN_MEMORY.contains(&(stat.f_type as u32)))
}

fn fill(file: &File, whole: &Whole, run: &str, store: &PageStore) -> Result<(), LoadError<io::Error>> {
    // Neighbours are written together.
    let (mut first, mut gathered) = (0, Vec::with_capacity(GATHER));
    whole.load(run, store, |page, content: &[u8; PAGE_SIZE]| {
        if crate::store::is_zero(content) {
            return Ok(()); // A hole.
        }
        let at = page * PAGE_SIZE as u64;
        if gathered.len() >= GATHER || at != first + gathered.len() as u64 {
            file.write_all_at(&gathered, first)?;
            gathered.clear();
            first = at;
        }
        gathered.extend_from_slice(content);
        Ok(())
    })?;
    file.write_all_at(&gathered, first).map_err(LoadError::Put)
}

/// What changes when anybody writes to the file: identity, size, time of change.
fn stamp_of(meta: &std::fs::Metadata) -> String {
    format!("{} {} {} {}.{:09}", meta.dev(), meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec())
}
