//! One run on disk.

use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    durable::{self, WriteError},
    envelope::{self, ReadError},
    id::RunId,
    input::{self, InputLog},
    kept::{self, Kept, Used},
    keyframe, origin,
    outcome::{self, Outcome, Recording},
    spec::{self, Spec},
    store::PageError,
    trace::{TraceError, TraceReader},
};

/// The file in which a fork says how many records its parent's part of its trace has.
const INHERITED: &str = "inherited";

/// Why a run could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is none.
    #[error("no run is called {0}; `rewind ls` shows the runs of this home")]
    Unknown(RunId),
    /// One of its files.
    #[error("run {id}: {source}")]
    File {
        /// Which run.
        id: RunId,
        /// Why.
        source: ReadError,
    },
    /// Its trace.
    #[error("run {id}: {source}")]
    Trace {
        /// Which run.
        id: RunId,
        /// Why.
        source: TraceError,
    },
    /// Somebody else holds it.
    #[error("run {0} is in use by another process: wait for it to finish")]
    Busy(RunId),
    /// What lies in its directory is another run.
    #[error("the directory of run {id} holds run {holds}: it was renamed or tampered with")]
    Mismatch {
        /// The directory's name.
        id: RunId,
        /// What the spec in it says.
        holds: RunId,
    },
    /// The home.
    #[error("cannot lock run {id}: {source}")]
    Lock {
        /// Which run.
        id: RunId,
        /// The host's error.
        source: io::Error,
    },
    /// The page store, which its pages are in.
    #[error("run {id}: {source}")]
    Pages {
        /// Which run.
        id: RunId,
        /// Why.
        source: PageError,
    },
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Where a run that is on its way out is for that time; gc knows it again.
pub(super) fn removed(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.removed"))
}

/// The directory of one run, held against removal while this lives.
#[derive(Debug)]
pub struct RunDir {
    pub(super) id: RunId,
    pub(super) path: PathBuf,
    pub(super) lock: Option<File>,
}

impl RunDir {
    pub(super) fn open(id: RunId, path: PathBuf) -> Result<RunDir, RunError> {
        if !path.join("spec").is_file() {
            return Err(RunError::Unknown(id));
        }
        RunDir::at(id, path)
    }

    /// As `open`, whatever is in the directory.
    pub(super) fn at(id: RunId, path: PathBuf) -> Result<RunDir, RunError> {
        // An exclusive lock needs a file that can be written where the home is on NFS (flock(2)).
        let lock = path.join("lock");
        let lock = File::options().read(true).write(true).open(&lock).or_else(|_| File::open(&lock)).ok();
        if let Some(lock) = &lock {
            match lock.try_lock_shared() {
                // A recorder holds its open run exclusively, and readers may look on.
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => return Err(RunError::Lock { id, source }),
            }
        }
        Ok(RunDir { id, path, lock })
    }

    /// The run's id (provisional for an open one).
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, source: ReadError) -> RunError {
        RunError::File { id: self.id, source }
    }

    /// Its spec. For a finished run, checked to be the one its id is the hash of.
    pub fn spec(&self) -> Result<Spec, RunError> {
        let path = self.path.join("spec");
        let spec: Spec = envelope::read(spec::FILE, &path).map_err(|source| match source {
            ReadError::Io { source, .. }
                if source.kind() == io::ErrorKind::NotFound && self.path.is_dir() =>
            {
                self.file(ReadError::Damaged { path, what: "it is gone" })
            }
            source => self.file(source),
        })?;
        let holds = spec.id();
        if self.is_finished() && holds != self.id {
            return Err(RunError::Mismatch { id: self.id, holds });
        }
        Ok(spec)
    }

    /// Is it in `runs/`, under its final id?
    pub fn is_finished(&self) -> bool {
        self.path.parent().is_some_and(|parent| parent.ends_with("runs"))
    }

    fn optional<T: serde::de::DeserializeOwned>(
        &self,
        kind: envelope::Kind,
        name: &str,
    ) -> Result<Option<T>, RunError> {
        let path = self.path.join(name);
        match envelope::read(kind, &path) {
            Ok(value) => Ok(Some(value)),
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.file(source)),
        }
    }

    /// Its outcome; none while it is open.
    pub fn outcome(&self) -> Result<Option<Outcome>, RunError> {
        self.optional(outcome::FILE, "outcome")
    }

    /// How it was recorded; none while it is open.
    pub fn recording(&self) -> Result<Option<Recording>, RunError> {
        self.optional(outcome::RECORDING, "recording")
    }

    /// Its outside input.
    pub fn inputs(&self) -> Result<InputLog, RunError> {
        Ok(self.optional(input::FILE, "inputs")?.unwrap_or_default())
    }

    /// Blocks of images known by content it read; none for a run that came from elsewhere or an older version.
    pub fn used(&self) -> Result<Option<Used>, RunError> {
        self.optional(kept::USED, "used")
    }

    /// Image blocks that came with it, if it was imported.
    pub fn kept(&self) -> Result<Option<Arc<Kept>>, RunError> {
        Ok(self.optional(kept::FILE, "images")?.map(Arc::new))
    }

    /// Where the boot keyframe that came with it is, if it was imported.
    pub fn own_boot(&self) -> PathBuf {
        self.path.join("boot")
    }

    /// Did it come from elsewhere? Then nobody here has seen that its spec leads to its outcome.
    pub fn is_imported(&self) -> bool {
        self.path.join("imported").is_file()
    }

    /// What a fork on this host needs to go on reading each logged image; empty elsewhere.
    pub fn origins(&self) -> Result<Vec<Vec<u8>>, RunError> {
        let packed: Vec<Vec<u8>> = self.optional(origin::FILE, "origin")?.unwrap_or_default();
        let damaged = || ReadError::Damaged { path: self.path.join("origin"), what: "it does not unpack" };
        let origins = packed.iter().map(|packed| origin::unpack(packed).ok_or_else(damaged));
        origins.collect::<Result<_, _>>().map_err(|source| self.file(source))
    }

    /// Its trace.
    pub fn trace(&self) -> Result<TraceReader, RunError> {
        let mut trace =
            TraceReader::open(&self.path).map_err(|source| RunError::Trace { id: self.id, source })?;
        // The parent's files that a fork shares end with its own first record: without one it is written where. (A fork of an
        // older version says so only in its outcome.)
        if trace.own_is_empty() {
            let outcome = || self.outcome().ok().flatten().map(|outcome| outcome.records);
            if let Some(records) = self.inherited().or_else(outcome) {
                trace.cut(records);
            }
        }
        Ok(trace)
    }

    /// Records that a fork has of its parent's; none of another run.
    fn inherited(&self) -> Option<u64> {
        std::fs::read_to_string(self.path.join(INHERITED)).ok()?.trim().parse().ok()
    }

    /// Notes how many records a fork has of its parent's.
    pub(crate) fn inherits(&self, records: u64) -> Result<(), WriteError> {
        durable::replace(&self.path.join(INHERITED), format!("{records}\n").as_bytes())
    }

    /// Where its keyframes are.
    pub fn keyframes(&self) -> PathBuf {
        keyframe::dir_of(&self.path)
    }

    /// Bytes its files take. What it shares with a parent or the boot counts in equal parts; pages do not count.
    pub fn disk_bytes(&self) -> u64 {
        fn sum(dir: &Path) -> u64 {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .map(|entry| match entry.metadata() {
                    Ok(meta) if meta.is_dir() => sum(&entry.path()),
                    Ok(meta) => meta.len() / meta.nlink().max(1),
                    Err(_) => 0,
                })
                .sum()
        }
        sum(&self.path)
    }

    /// Has it a living recorder? Only meaningful for an open run.
    pub fn is_being_recorded(&self) -> bool {
        File::open(self.path.join("lock"))
            .is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Takes the run for itself, unless another process holds it.
    pub(crate) fn alone(&self) -> Result<(), RunError> {
        match self.lock.as_ref().map(File::try_lock) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(TryLockError::WouldBlock)) => {
                // A failed change of a lock may have lost the shared one: take it again.
                let _ = self.lock.as_ref().map(File::try_lock_shared);
                Err(RunError::Busy(self.id))
            }
            Some(Err(TryLockError::Error(source))) => Err(RunError::Lock { id: self.id, source }),
        }
    }

    /// Removes the run, unless another process holds it. Its pages go with the next gc.
    pub fn remove(self) -> Result<(), RunError> {
        self.alone()?;
        // Out of sight at once, so that a process that dies half-way leaves no half a run.
        let gone = removed(&self.path);
        durable::remove_dir(&gone)?;
        durable::rename(&self.path, &gone)?;
        durable::remove_dir(&gone)?;
        Ok(())
    }
}
