//! The home directory: where runs, pages and caches live, shared by any number of processes.
//!
//! ```text
//! HOME/version              format of the layout
//! HOME/lock                 shared by every process that uses the home, exclusive for gc
//! HOME/runs/<id>/           finished runs: spec outcome recording trace inputs keyframes/ lock
//! HOME/closed/<id>/<id>     for runs with outside input: the id of the spec without it, the run
//! HOME/open/<id>/           runs being recorded, under a provisional id; moved to runs/ when finished
//! HOME/boot/<key>/          boot keyframes
//! HOME/pages/               the page store
//! HOME/blobs/<hash>         kernels and initramfs files, by BLAKE3
//! HOME/cache/               may be deleted at any time
//! ```

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    durable::{self, WriteError},
    id::{self, LookupError, RunId},
    outcome::Outcome,
    spec::{Content, Spec},
    store::PageStore,
};

mod blobs;
mod open_run;
mod run_dir;
mod whole;
pub use blobs::BlobError;
pub use open_run::{FinishError, Finished, OpenRun};
pub use run_dir::{RunDir, RunError};

/// The layout's version.
pub const VERSION: u32 = 1;

/// Why a home could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HomeError {
    /// Neither REWIND_HOME nor XDG_DATA_HOME nor HOME is set.
    #[error("no home directory: set REWIND_HOME to a directory for runs")]
    Nowhere,
    /// There is no home there, and reading does not make one.
    #[error("cannot use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// Made by another version.
    #[error(
        "{path} is a Rewind home of layout version {found}; this program uses {VERSION}. Use another directory (REWIND_HOME) or the program that made it"
    )]
    Version {
        /// The home.
        path: PathBuf,
        /// Its version, as written.
        found: String,
    },
    /// Not empty and not a home.
    #[error("{0} is not empty and not a Rewind home: set REWIND_HOME to a new directory")]
    Foreign(PathBuf),
    /// Another process uses it.
    #[error("other Rewind processes use {0}: wait for them to finish, then try again")]
    Busy(PathBuf),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// An open home. Dropping it releases the shared lock.
pub struct Home {
    path: PathBuf,
    lock: Option<File>,
    pages: Arc<PageStore>,
}

impl Home {
    /// Where the home is by the environment: `REWIND_HOME`, else `rewind` in the XDG data directory.
    pub fn default_path() -> Result<PathBuf, HomeError> {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = set("REWIND_HOME") {
            return Ok(path);
        }
        // The XDG specification: a relative path is to be ignored.
        if let Some(data) = set("XDG_DATA_HOME").filter(|path| path.is_absolute()) {
            return Ok(data.join("rewind"));
        }
        set("HOME").map(|home| home.join(".local/share/rewind")).ok_or(HomeError::Nowhere)
    }

    /// Opens the home at `path`, made if there is none. A home on a read-only mount opens for reading.
    pub fn open(path: &Path) -> Result<Home, HomeError> {
        let version = path.join("version");
        match std::fs::read_to_string(&version) {
            Ok(text) => check_version(path, &text)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Self::make(path, &version)?,
            Err(source) => return Err(HomeError::Io { path: version, source }),
        }
        let lock = lock_shared(&path.join("lock"))?;
        Ok(Home { path: path.to_owned(), lock, pages: Arc::new(PageStore::open(&path.join("pages"))) })
    }

    fn make(path: &Path, version: &Path) -> Result<(), HomeError> {
        let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        // Two processes may make one home at the same time: what the other left so far is not foreign.
        let foreign = entries.any(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            !(durable::is_temporary(&name) || ["version", "lock", "runs", "open"].contains(&&*name))
        });
        if foreign {
            return Err(HomeError::Foreign(path.to_owned()));
        }
        durable::create_dir(path)?;
        durable::create_dir(&path.join("runs"))?;
        durable::create_dir(&path.join("open"))?;
        durable::replace(version, format!("{VERSION}\n").as_bytes())?;
        Ok(())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its page store.
    pub fn pages(&self) -> &Arc<PageStore> {
        &self.pages
    }

    /// A place for things that may be deleted at any time.
    pub fn cache(&self, what: &str) -> PathBuf {
        self.path.join("cache").join(what)
    }

    /// Where the boot keyframe named `key` is.
    pub fn boot_dir(&self, key: Content) -> PathBuf {
        self.path.join("boot").join(key.to_string())
    }

    /// Ids of all finished runs, ascending.
    pub fn runs(&self) -> Vec<RunId> {
        list_ids(&self.path.join("runs"))
    }

    /// Provisional ids of runs that are being recorded or whose recorder died, ascending.
    pub fn open_runs(&self) -> Vec<RunId> {
        list_ids(&self.path.join("open"))
    }

    /// The one run whose id begins with `prefix`, finished or open.
    pub fn find(&self, prefix: &str) -> Result<RunId, LookupError> {
        let mut ids = self.runs();
        ids.extend(self.open_runs());
        ids.dedup();
        id::find(prefix, &ids)
    }

    /// The directory of a run, finished or open.
    pub fn run(&self, id: RunId) -> Result<RunDir, RunError> {
        let finished = self.path.join("runs").join(id.to_string());
        if finished.is_dir() {
            return RunDir::at(id, finished);
        }
        RunDir::open(id, self.path.join("open").join(id.to_string()))
    }

    /// Is there anything under this id among the finished runs?
    pub fn has_dir(&self, id: RunId) -> bool {
        self.path.join("runs").join(id.to_string()).is_dir()
    }

    /// The finished run of this spec, if there is one whose end every recording would have.
    pub fn finished(&self, spec: &Spec) -> Option<(RunDir, Outcome)> {
        let id = spec.id();
        let dir = RunDir::open(id, self.path.join("runs").join(id.to_string())).ok()?;
        let outcome = dir.outcome().ok().flatten().filter(|outcome| outcome.end.is_final())?;
        // 64 bits can collide; a run is only the same if all of its spec is.
        (dir.spec().ok()? == *spec).then_some((dir, outcome))
    }

    /// Finished runs with outside input that are `closed` without it, and whose end every recording would have.
    pub fn with_input(&self, closed: &Spec) -> Vec<(RunDir, Outcome)> {
        let known = list_ids(&open_run::closed_dir(&self.path, closed.id()));
        let found = known.into_iter().filter_map(|id| {
            let dir = RunDir::open(id, self.path.join("runs").join(id.to_string())).ok()?;
            let outcome = dir.outcome().ok().flatten().filter(|outcome| outcome.end.is_final())?;
            (dir.spec().ok()?.closed() == *closed).then_some((dir, outcome))
        });
        found.collect()
    }

    /// An error if there is a run of this id that a newer program made.
    pub fn refuse_newer(&self, id: RunId) -> Result<(), RunError> {
        let there = self.path.join("runs").join(id.to_string());
        if there.is_dir() { RunDir::at(id, there)?.refuse_newer() } else { Ok(()) }
    }

    /// Begins recording `spec`: a directory under a provisional id, locked. A run of it that a newer program made is
    /// refused here, as it could not be replaced at the end.
    pub fn begin(&self, spec: &Spec) -> Result<OpenRun, RunError> {
        self.refuse_newer(spec.id())?;
        OpenRun::begin(&self.path, &self.pages, spec)
    }

    /// Takes the home for itself while `work` runs: nobody else reads or writes it.
    pub fn alone<T>(&self, work: impl FnOnce() -> T) -> Result<T, HomeError> {
        let io = |source| HomeError::Io { path: self.path.join("lock"), source };
        let Some(lock) = &self.lock else {
            return Err(io(io::ErrorKind::ReadOnlyFilesystem.into()));
        };
        match lock.try_lock() {
            Ok(()) => {}
            Err(error) => {
                // A failed change of a lock may have lost the shared one: take it again.
                lock.lock_shared().map_err(io)?;
                return Err(match error {
                    TryLockError::WouldBlock => HomeError::Busy(self.path.clone()),
                    TryLockError::Error(source) => io(source),
                });
            }
        }
        let result = work();
        lock.lock_shared().map_err(io)?;
        Ok(result)
    }
}

fn check_version(path: &Path, text: &str) -> Result<(), HomeError> {
    if text.trim() == VERSION.to_string() {
        return Ok(());
    }
    // Whatever is in the file is shown, but not at any length.
    let found = text.trim().chars().take(20).filter(|c| !c.is_control()).collect();
    Err(HomeError::Version { path: path.to_owned(), found })
}

/// The shared lock; none on a read-only mount without a lock file, where nobody can write anyway.
fn lock_shared(path: &Path) -> Result<Option<File>, HomeError> {
    let io = |source| HomeError::Io { path: path.to_owned(), source };
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = match opened.or_else(|_| File::open(path)) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io(source)),
    };
    file.lock_shared().map_err(io)?;
    Ok(Some(file))
}

fn list_ids(dir: &Path) -> Vec<RunId> {
    let mut ids: Vec<RunId> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| id::from_hex(entry.file_name().to_str()?).map(RunId))
        .collect();
    ids.sort_unstable();
    ids
}

#[cfg(test)]
mod tests;
