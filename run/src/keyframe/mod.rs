//! Keyframes: the whole machine at a step, as the state of everything but memory and the pages that differ from
//! the keyframe it builds on.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use vmm::memory::{PageBytes, Written};

use crate::{
    envelope::{self, Kind, ReadError},
    spec::Content,
    store::{PAGE_SIZE, PageError, PageHash, PageStore},
};

mod raw;
pub use raw::raw_file;

/// A keyframe file.
pub const FILE: Kind = Kind { magic: *b"RWDKEYF\0", version: 2, name: "keyframe", limit: 4 << 30 };

/// What a keyframe builds on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// Nothing: every page that is not listed is zero.
    Full,
    /// The boot keyframe with this key.
    Boot(Content),
    /// The same run's keyframe at this earlier step.
    Step(u64),
}

/// A page that differs from the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAt {
    /// Its index in RAM order.
    pub page: u64,
    /// Its content.
    pub hash: PageHash,
}

/// The whole machine at a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keyframe {
    /// The step.
    pub step: u64,
    /// Default records the run had made by then.
    pub records: u64,
    /// Bytes of RAM.
    pub memory: u64,
    /// What it builds on.
    pub base: Base,
    /// Everything but RAM (postcard of [`vmm`]'s machine state).
    pub machine: Vec<u8>,
    /// Pages written since the base, ascending.
    pub pages: Vec<PageAt>,
    /// Of some of these pages, ascending: the bytes outside of which nothing was written since the base. An engine that
    /// cannot tell says nothing.
    pub written: Vec<Written>,
}

impl Keyframe {
    /// Could any of these bytes have been written since the base?
    pub fn may_have_written(&self, bytes: &PageBytes) -> bool {
        self.pages.binary_search_by_key(&bytes.page, |at| at.page).is_ok()
            && match self.written.binary_search_by_key(&bytes.page, |written| written.page) {
                Ok(at) => bytes.meet(&self.written[at]),
                Err(_) => true,
            }
    }
}

/// Why a keyframe could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyframeError {
    /// The file.
    #[error("keyframe {step} of run {run}: {source}")]
    File {
        /// Which run ("boot" for a boot keyframe).
        run: String,
        /// At which step.
        step: u64,
        /// Why.
        source: ReadError,
    },
    /// A page.
    #[error("keyframe {step} of run {run}, page {page}: {source}")]
    Page {
        /// Which run.
        run: String,
        /// At which step.
        step: u64,
        /// The page's index in RAM order.
        page: u64,
        /// Why.
        source: PageError,
    },
    /// What it says cannot be.
    #[error("keyframe {step} of run {run} makes no sense: {what}")]
    Nonsense {
        /// Which run.
        run: String,
        /// At which step.
        step: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// The name of the keyframe at `step` in a run's `keyframes` directory.
pub fn file_name(step: u64) -> String {
    format!("{step:020}.kf")
}

/// Steps of the keyframes in `dir`, ascending.
pub fn list(dir: &Path) -> Vec<u64> {
    let mut steps: Vec<u64> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".kf")?.parse().ok())
        .collect();
    steps.sort_unstable();
    steps
}

/// Reads and checks one keyframe file. `run` is for the error.
pub fn read(path: &Path, run: &str, step: u64) -> Result<Keyframe, KeyframeError> {
    let keyframe: Keyframe =
        envelope::read(FILE, path).map_err(|source| KeyframeError::File { run: run.into(), step, source })?;
    check(&keyframe, run, step)?;
    Ok(keyframe)
}

/// Is what it says possible? (A hash says the file is what was written, not that it was written by us.)
pub fn check(keyframe: &Keyframe, run: &str, step: u64) -> Result<(), KeyframeError> {
    let nonsense = |what| Err(KeyframeError::Nonsense { run: run.into(), step, what });
    if keyframe.step != step {
        return nonsense("it is of another step");
    }
    if !(64 << 20..=64 << 30).contains(&keyframe.memory) || !keyframe.memory.is_multiple_of(1 << 20) {
        return nonsense("no machine has that much memory");
    }
    let pages = keyframe.memory / PAGE_SIZE as u64;
    if keyframe.pages.last().is_some_and(|last| last.page >= pages)
        || !keyframe.pages.is_sorted_by(|a, b| a.page < b.page)
    {
        return nonsense("its pages are out of order or beyond memory");
    }
    if !keyframe.written.is_sorted_by(|a, b| a.page < b.page) {
        return nonsense("what was written is out of order");
    }
    if let Base::Step(base) = keyframe.base
        && base >= step
    {
        return nonsense("it builds on a later one");
    }
    Ok(())
}

/// A keyframe with everything it builds on put together.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The keyframe itself.
    pub keyframe: Keyframe,
    /// The boot keyframe at the bottom, if the chain has one.
    pub boot: Option<Content>,
    /// Pages that differ from that boot keyframe (or from zero without one), by index in RAM order.
    pub pages: BTreeMap<u64, PageHash>,
}

/// Puts the keyframe at `step` together from the files in `dir`.
pub fn whole(dir: &Path, run: &str, step: u64) -> Result<Whole, KeyframeError> {
    let top = read(&dir.join(file_name(step)), run, step)?;
    let mut pages: BTreeMap<u64, PageHash> = top.pages.iter().map(|at| (at.page, at.hash)).collect();
    let mut base = top.base;
    loop {
        match base {
            Base::Full => return Ok(Whole { keyframe: top, boot: None, pages }),
            Base::Boot(key) => return Ok(Whole { keyframe: top, boot: Some(key), pages }),
            Base::Step(earlier) => {
                // `check` made sure that steps go down, so this ends.
                let below = read(&dir.join(file_name(earlier)), run, earlier)?;
                if below.memory != top.memory {
                    let what = "it builds on one with another size of memory";
                    return Err(KeyframeError::Nonsense { run: run.into(), step, what });
                }
                for at in &below.pages {
                    pages.entry(at.page).or_insert(at.hash);
                }
                base = below.base;
            }
        }
    }
}

impl Whole {
    /// Reads every page and hands it to `put` (index in RAM order, content).
    pub fn load<E>(
        &self,
        run: &str,
        store: &PageStore,
        mut put: impl FnMut(u64, &[u8; PAGE_SIZE]) -> Result<(), E>,
    ) -> Result<(), LoadError<E>> {
        let mut content = [0; PAGE_SIZE];
        for &page in self.pages.keys() {
            self.page(run, store, page, &mut content).map_err(LoadError::Keyframe)?;
            put(page, &content).map_err(LoadError::Put)?;
        }
        Ok(())
    }

    /// Reads one page by its index in RAM order; zeros if it is not listed.
    pub fn page(
        &self,
        run: &str,
        store: &PageStore,
        page: u64,
        out: &mut [u8; PAGE_SIZE],
    ) -> Result<(), KeyframeError> {
        let hash = self.pages.get(&page).copied().unwrap_or(PageHash::ZERO);
        let step = self.keyframe.step;
        store.get(hash, out).map_err(|source| KeyframeError::Page { run: run.into(), step, page, source })
    }
}

/// Either side of [`Whole::load`].
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// The keyframe.
    #[error(transparent)]
    Keyframe(KeyframeError),
    /// The receiver.
    #[error("{0}")]
    Put(E),
}

/// Where the keyframes of a run directory lie.
pub fn dir_of(run_dir: &Path) -> PathBuf {
    run_dir.join("keyframes")
}

#[cfg(test)]
mod tests;
