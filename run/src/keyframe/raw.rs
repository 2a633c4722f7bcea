//! Raw copies of keyframes in use: sparse files of all RAM, to be mapped private. A cache: rebuilt from the page
//! store when missing, never the only copy of anything.

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

/// Why a raw copy could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}")]
pub struct RawError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The raw copy of a keyframe named `key` in `cache`, made if it is not there. A copy that was changed since it
/// was made (by size or time of change) is made again.
pub fn raw_file(
    cache: &Path,
    key: Content,
    whole: &Whole,
    run: &str,
    store: &PageStore,
) -> Result<PathBuf, KeyframeError> {
    let path = cache.join(format!("{key}.ram"));
    let stamp = cache.join(format!("{key}.stamp"));
    if let Some(found) = std::fs::metadata(&path).ok().map(|meta| stamp_of(&meta))
        && std::fs::read_to_string(&stamp).is_ok_and(|kept| kept == found)
    {
        return Ok(path);
    }
    let at = |what, path: &Path| {
        let path = path.to_owned();
        move |source| RawError { what, path, source }
    };
    std::fs::create_dir_all(cache).map_err(at("create", cache))?;
    let temporary = durable::temporary_beside(&path);
    let made = (|| {
        let file = OpenOptions::new().write(true).create_new(true).open(&temporary);
        let file = file.map_err(at("create", &temporary))?;
        file.set_len(whole.keyframe.memory).map_err(at("size", &temporary))?;
        fill(&file, whole, run, store, &temporary)?;
        // On disk before the stamp says so: a power cut cannot leave a stamped copy with holes.
        file.sync_all().map_err(at("sync", &temporary))?;
        std::fs::rename(&temporary, &path).map_err(at("rename to", &path))?;
        let meta = std::fs::metadata(&path).map_err(at("look at", &path))?;
        std::fs::write(&stamp, stamp_of(&meta)).map_err(at("write", &stamp))?;
        Ok(path.clone())
    })();
    if made.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    made
}

fn fill(file: &File, whole: &Whole, run: &str, store: &PageStore, path: &Path) -> Result<(), KeyframeError> {
    // Neighbours are written together.
    let (mut first, mut gathered) = (0, Vec::with_capacity(GATHER));
    let written = whole.load(run, store, |page, content: &[u8; PAGE_SIZE]| {
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
    });
    let written = written.and_then(|()| file.write_all_at(&gathered, first).map_err(LoadError::Put));
    written.map_err(|error| match error {
        LoadError::Keyframe(error) => error,
        LoadError::Put(source) => RawError { what: "write", path: path.to_owned(), source }.into(),
    })
}

/// What changes when anybody writes to the file: identity, size, time of change.
fn stamp_of(meta: &std::fs::Metadata) -> String {
    format!("{} {} {} {}.{:09}", meta.dev(), meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec())
}
