//! A run that is being recorded, until it is one of the finished ones.

use std::{
    fs::OpenOptions,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{RunDir, RunError, run_dir, whole::Fault};
use crate::{
    durable::{self, WriteError},
    envelope,
    id::RunId,
    input::{self, InputLog},
    outcome::{self, Outcome, Recording},
    seek::is_view,
    spec::{self, Spec},
    store::PageStore,
};

/// Where the runs of a spec with outside input are listed, by the id of the spec without it.
pub(super) fn closed_dir(home: &Path, closed: RunId) -> PathBuf {
    home.join("closed").join(closed.to_string())
}

/// How often a run that somebody holds is waited for, and how long, before what was recorded gives way to it.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(50);

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
    /// There was one, which was kept: with the same outcome, or one that came to its end where this recording was stopped, or
    /// one that somebody holds.
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
        let mut tries = TRIES;
        loop {
            if !path.is_dir() {
                match durable::rename(&self.dir.path, &path) {
                    // Another recorder of the same spec came first.
                    Err(_) if path.is_dir() && self.dir.path.is_dir() => continue,
                    other => other?,
                }
                break;
            }
            let old = RunDir::at(id, path.clone())?;
            if !self.replaces(&old, &spec, outcome)? {
                durable::remove_dir(self.dir.path())?;
                return Ok(Finished::Same(old));
            }
            match old.alone() {
                Ok(()) => {}
                // Perhaps somebody who has recorded it too, and is at this place as well.
                Err(RunError::Busy(_)) if tries > 0 => {
                    tries -= 1;
                    drop(old);
                    std::thread::sleep(PAUSE);
                    continue;
                }
                // Somebody looks at it: it stays, if it is worth it.
                Err(RunError::Busy(_)) if old.check(&self.pages).is_ok() => {
                    durable::remove_dir(self.dir.path())?;
                    return Ok(Finished::Same(old));
                }
                Err(error) => return Err(error.into()),
            }
            replaced = true;
            take_place(&self.dir.path, &path)?;
            break;
        }
        drop(self.dir);
        let dir = RunDir::open(id, path)?;
        Ok(if replaced { Finished::Replaced(dir) } else { Finished::New(dir) })
    }
}

/// Puts the run in `new` in the place of the one at `path`.
fn take_place(new: &Path, path: &Path) -> Result<(), WriteError> {
    // In one step: whoever dies leaves one of the two. The old one is then where a dead recording would be.
    match durable::exchange(new, path) {
        Ok(()) => durable::remove_dir(new),
        // Not all file systems can (NFS cannot): then whoever dies between leaves both under other names.
        Err(error) if is_unsupported(&error) => take_place_by_renaming(new, path),
        Err(error) => Err(error),
    }
}

pub(super) fn take_place_by_renaming(new: &Path, path: &Path) -> Result<(), WriteError> {
    let gone = run_dir::removed(path);
    durable::remove_dir(&gone)?;
    durable::rename(path, &gone)?;
    if let Err(error) = durable::rename(new, path) {
        // The old one back, if it can be; the error that matters is the first one.
        let _ = durable::rename(&gone, path);
        return Err(error);
    }
    durable::remove_dir(&gone)
}

fn is_unsupported(error: &WriteError) -> bool {
    use rustix::io::Errno;
    let none = [Errno::INVAL, Errno::NOSYS, Errno::NOTSUP];
    error.is_exchange() && Errno::from_io_error(error.io()).is_some_and(|errno| none.contains(&errno))
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
