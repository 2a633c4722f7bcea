//! One run on disk.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::whole::Fault;
use crate::{
    durable::{self, WriteError},
    envelope::{self, ReadError},
    id::RunId,
    input::{self, InputLog},
    kept::{self, Kept, Used},
    keyframe, origin,
    outcome::{self, Outcome, Recording},
    seek::is_view,
    spec::{self, Spec},
    store::{PageError, PageStore},
    trace::{TraceError, TraceReader},
};

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

/// The directory of one run, held against removal while this lives.
#[derive(Debug)]
pub struct RunDir {
    id: RunId,
    path: PathBuf,
    lock: Option<File>,
}

impl RunDir {
    pub(super) fn open(id: RunId, path: PathBuf) -> Result<RunDir, RunError> {
        if !path.join("spec").is_file() {
            return Err(RunError::Unknown(id));
        }
        RunDir::at(id, path)
    }

    /// As `open`, whatever is in the directory.
    fn at(id: RunId, path: PathBuf) -> Result<RunDir, RunError> {
        let lock = File::open(path.join("lock")).ok();
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
        let spec: Spec =
            envelope::read(spec::FILE, &self.path.join("spec")).map_err(|source| self.file(source))?;
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
        TraceReader::open(&self.path).map_err(|source| RunError::Trace { id: self.id, source })
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
    fn alone(&self) -> Result<(), RunError> {
        match self.lock.as_ref().map(File::try_lock) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(TryLockError::WouldBlock)) => Err(RunError::Busy(self.id)),
            Some(Err(TryLockError::Error(source))) => Err(RunError::Lock { id: self.id, source }),
        }
    }

    /// Removes the run, unless another process holds it. Its pages go with the next gc.
    pub fn remove(self) -> Result<(), RunError> {
        self.alone()?;
        // Out of sight at once, so that a process that dies half-way leaves no half a run.
        let gone = self.path.with_file_name(format!(".{}.removed", self.id));
        durable::remove_dir(&gone)?;
        durable::rename(&self.path, &gone)?;
        durable::remove_dir(&gone)?;
        Ok(())
    }
}

/// Where the runs of a spec with outside input are listed, by the id of the spec without it.
pub(super) fn closed_dir(home: &Path, closed: RunId) -> PathBuf {
    home.join("closed").join(closed.to_string())
}

/// A run being recorded. Its directory is in `open/` until [`OpenRun::finish`].
#[derive(Debug)]
pub struct OpenRun {
    home: PathBuf,
    pages: Arc<PageStore>,
    spec: Spec,
    dir: RunDir,
}

/// What [`OpenRun::finish`] found and did.
#[derive(Debug)]
pub enum Finished {
    /// The first finished run of this spec.
    New(RunDir),
    /// There was one with the same outcome, which was kept.
    Same(RunDir),
    /// There was one that had been stopped from outside, was damaged or could do less; it was replaced.
    Replaced(RunDir),
}

impl OpenRun {
    pub(super) fn begin(home: &Path, pages: &Arc<PageStore>, spec: &Spec) -> Result<OpenRun, RunError> {
        let open = home.join("open");
        durable::create_dir(&open)?;
        let mut attempt = 0;
        loop {
            let id = spec.provisional(attempt);
            attempt += 1;
            let path = open.join(id.to_string());
            match std::fs::create_dir(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                // Reported with the same words as any other write.
                Err(_) => durable::create_dir(&path)?,
            }
            let lock_path = path.join("lock");
            let lock =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&lock_path);
            let lock = lock.map_err(|source| RunError::Lock { id, source })?;
            if lock.try_lock().is_err() {
                continue;
            }
            envelope::write(spec::FILE, &path.join("spec"), spec)?;
            durable::create_dir(&path.join("keyframes"))?;
            let dir = RunDir { id, path, lock: Some(lock) };
            return Ok(OpenRun { home: home.to_owned(), pages: pages.clone(), spec: spec.clone(), dir });
        }
    }

    /// The directory, to write into and to read from.
    pub fn dir(&self) -> &RunDir {
        &self.dir
    }

    /// The spec as given (not yet sealed).
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Is what was recorded here to take the place of `old`, which is there under its id?
    fn replaces(&self, old: &RunDir, spec: &Spec, outcome: &Outcome) -> Result<bool, FinishError> {
        let id = old.id;
        // What was recorded here is worth more than what somebody said it would be; of two such, what more can be done
        // with. And a damaged run is not worth keeping, but for something that can only be looked at.
        let more = old.is_imported() && (!self.dir.is_imported() || self.dir.brings_more(old));
        let trusted = !self.dir.is_imported() || old.is_imported();
        let mends = trusted && (!is_view(&self.dir) || is_view(old));
        let judged = match old.judged(spec) {
            Ok(Some(before)) if before.end.is_final() && outcome.end.is_final() => {
                if more {
                    return Ok(true);
                }
                if before != *outcome {
                    let kept = self.dir.id;
                    return Err(FinishError::Different { id, kept, before: Box::new(before) });
                }
                old.check(&self.pages)
            }
            // A recording that was stopped is no better than one that came to its end.
            Ok(Some(before)) if before.end.is_final() => return Ok(false),
            Ok(Some(_)) => return Ok(mends),
            Ok(None) => return Err(FinishError::Collision(id)),
            Err(fault) => Err(fault),
        };
        match judged {
            Ok(()) => Ok(self.dir.keeps_images() && !old.keeps_images() && mends),
            Err(Fault::Damage) => Ok(mends),
            Err(Fault::Other(error)) => Err(error.into()),
        }
    }

    /// Drops the recording: nothing of it is kept.
    pub fn discard(self) -> Result<(), WriteError> {
        durable::remove_dir(self.dir.path())
    }

    /// Seals the input log, writes the outcome and moves the run to its final id. The trace and the keyframes
    /// are complete and synced by now. If the spec was recorded before with another final outcome, that is the
    /// one thing that must never happen, and an error.
    pub fn finish(
        self,
        inputs: &InputLog,
        outcome: &Outcome,
        recording: &Recording,
    ) -> Result<Finished, FinishError> {
        let mut spec = self.spec.clone();
        if !inputs.is_empty() {
            envelope::write(input::FILE, &self.dir.path.join("inputs"), inputs)?;
            spec.outside = Some(inputs.hash());
            envelope::write(spec::FILE, &self.dir.path.join("spec"), &spec)?;
            // Before the run is there: an entry without a run is nothing, a run without an entry is not found.
            durable::touch(&closed_dir(&self.home, self.spec.closed().id()).join(spec.id().to_string()))?;
        }
        envelope::write(outcome::RECORDING, &self.dir.path.join("recording"), recording)?;
        envelope::write(outcome::FILE, &self.dir.path.join("outcome"), outcome)?;
        let id = spec.id();
        let path = self.home.join("runs").join(id.to_string());
        let mut replaced = false;
        if path.is_dir() {
            let old = RunDir::at(id, path.clone())?;
            if !self.replaces(&old, &spec, outcome)? {
                durable::remove_dir(self.dir.path())?;
                return Ok(Finished::Same(old));
            }
            match old.alone() {
                Ok(()) => {}
                // Somebody looks at it: it stays, if it is worth it.
                Err(RunError::Busy(_)) if old.check(&self.pages).is_ok() => {
                    durable::remove_dir(self.dir.path())?;
                    return Ok(Finished::Same(old));
                }
                Err(error) => return Err(error.into()),
            }
            replaced = true;
            // In one step: whoever dies leaves one of the two. The old one is then where a dead recording would be.
            durable::exchange(&self.dir.path, &path)?;
            durable::remove_dir(&self.dir.path)?;
        } else {
            durable::rename(&self.dir.path, &path)?;
        }
        drop(self.dir);
        let dir = RunDir::open(id, path)?;
        Ok(if replaced { Finished::Replaced(dir) } else { Finished::New(dir) })
    }
}

/// Why a recording could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FinishError {
    /// The guest was not deterministic.
    #[error(
        "run {id} was recorded before and came out differently ({} after {} steps, trace {}): this must never \
         happen; the new recording is kept as {kept} for `rewind diff {id} {kept}`. Please report it",
        .before.end.word(), .before.steps, .before.trace_hash
    )]
    Different {
        /// The run.
        id: RunId,
        /// The provisional id of the new one.
        kept: RunId,
        /// The first outcome.
        before: Box<Outcome>,
    },
    /// Two specs with one id.
    #[error("run id {0} already belongs to another spec (a collision of 64 bits): change the seed")]
    Collision(RunId),
    /// The run there already.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}
