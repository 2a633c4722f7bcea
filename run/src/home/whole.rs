//! Is a run whole? A damaged one is recorded again, not found, and not kept when it was.

use std::collections::BTreeSet;

use super::{RunDir, RunError};
use crate::{
    envelope::ReadError,
    keyframe::{self, Base, Keyframe, KeyframeError},
    outcome::Outcome,
    seek::is_view,
    spec::{Content, Spec},
    store::{PAGE_SIZE, PageError, PageHash, PageStore},
    trace::{TraceError, TraceHasher, TraceReader},
};

/// What keeps a run from being whole.
pub(super) enum Fault {
    /// The run itself: recording it again mends it.
    Damage,
    /// The host refused.
    Other(RunError),
}

impl From<RunError> for Fault {
    fn from(error: RunError) -> Fault {
        if is_damage(&error) { Fault::Damage } else { Fault::Other(error) }
    }
}

/// Would recording the run again mend it?
fn is_damage(error: &RunError) -> bool {
    match error {
        RunError::File { source, .. } => is_bad_file(source),
        RunError::Trace { source: TraceError::Io { source, .. }, .. } => {
            source.kind() == std::io::ErrorKind::NotFound
        }
        // Its version too: no checksum is over it. A newer program's run has other files that say so.
        RunError::Trace { .. } => true,
        _ => false,
    }
}

/// Damaged, gone, or of an older version, which is of no more use here. A newer program's is not replaced.
fn is_bad_file(error: &ReadError) -> bool {
    match error {
        ReadError::Io { source, .. } => source.kind() == std::io::ErrorKind::NotFound,
        ReadError::Version { found, known, .. } => found < known,
        ReadError::Foreign { .. } | ReadError::Damaged { .. } => true,
    }
}

impl RunDir {
    /// Do its files read, and is its trace as long as it was? What can be seen quickly: pages, keyframes and what the
    /// trace holds are not looked at.
    pub fn seems_whole(&self) -> bool {
        self.small_files().is_ok()
    }

    /// Its outcome, if it is the run of this spec.
    pub(super) fn judged(&self, spec: &Spec) -> Result<Option<Outcome>, Fault> {
        if self.spec()? != *spec {
            return Ok(None);
        }
        Ok(Some(self.outcome()?.ok_or(Fault::Damage)?))
    }

    /// An error if recording it again could not take its place: a newer program made it, or the host refuses to read it.
    pub(super) fn refuse_newer(&self) -> Result<(), RunError> {
        match self.small_files() {
            Err(Fault::Other(error)) => Err(error),
            Ok(_) | Err(Fault::Damage) => Ok(()),
        }
    }

    /// Does it keep blocks of its images?
    pub(super) fn keeps_images(&self) -> bool {
        self.path().join("images").is_file()
    }

    fn small_files(&self) -> Result<(Spec, Outcome), Fault> {
        let spec = self.spec()?;
        let outcome = self.outcome()?.ok_or(Fault::Damage)?;
        self.recording()?.ok_or(Fault::Damage)?;
        let inputs = self.inputs()?;
        // A log that is gone reads as an empty one.
        if spec.outside.is_some_and(|outside| outside != inputs.hash()) {
            return Err(Fault::Damage);
        }
        self.kept()?;
        self.used()?;
        // Of a run over the host's own root, without which it would never be found.
        if self.origins()?.is_empty() && !inputs.blocks.is_empty() && !self.is_imported() {
            return Err(Fault::Damage);
        }
        if self.trace()?.records() != outcome.records {
            return Err(Fault::Damage);
        }
        Ok((spec, outcome))
    }

    /// Reads everything of it, every page too, and finds what is not as it was recorded.
    pub(super) fn check(&self, store: &PageStore) -> Result<(), Fault> {
        let (_, outcome) = self.small_files()?;
        let trace = self.trace()?;
        if self.hash_of(&trace)? != outcome.trace_hash {
            return Err(Fault::Damage);
        }
        if is_view(self) {
            // The pages its input names did not come with it.
            return Ok(());
        }
        let mut booted = None;
        if self.own_boot().is_dir() {
            let trace = TraceReader::open(&self.own_boot());
            let trace = trace.map_err(|source| RunError::Trace { id: self.id(), source })?;
            self.hash_of(&trace)?;
            booted = Some(trace.records());
        }
        let mut pages: BTreeSet<PageHash> = self.inputs()?.pages().collect();
        pages.extend(self.kept()?.iter().flat_map(|kept| kept.pages()));
        for dir in [self.keyframes(), self.own_boot()] {
            let steps = keyframe::list(&dir);
            for &step in &steps {
                let keyframe = match keyframe::read(&dir.join(keyframe::file_name(step)), "", step) {
                    Ok(keyframe) => keyframe,
                    Err(KeyframeError::File { source, .. }) if !is_bad_file(&source) => {
                        return Err(Fault::Other(RunError::File { id: self.id(), source }));
                    }
                    Err(_) => return Err(Fault::Damage),
                };
                let cut = dir == self.own_boot() && booted != Some(keyframe.records);
                if cut || !stands_on(&keyframe, &steps) {
                    return Err(Fault::Damage);
                }
                pages.extend(keyframe.pages.iter().map(|at| at.hash));
            }
        }
        let mut content = [0; PAGE_SIZE];
        for hash in pages {
            match store.get(hash, &mut content) {
                Ok(()) => {}
                Err(PageError::Missing { .. } | PageError::Corrupt { .. }) => return Err(Fault::Damage),
                Err(source) => return Err(Fault::Other(RunError::Pages { id: self.id(), source })),
            }
        }
        Ok(())
    }

    fn hash_of(&self, trace: &TraceReader) -> Result<Content, Fault> {
        let mut hasher = TraceHasher::default();
        for record in trace.iter() {
            let record = record.map_err(|source| RunError::Trace { id: self.id(), source })?;
            hasher.add(&record.header, &record.payload);
        }
        Ok(hasher.finish())
    }

    /// Can more be done with it than with `old`, which was imported too? One is only to be looked at, one can be
    /// replayed, one has all of its images.
    pub(super) fn brings_more(&self, old: &RunDir) -> bool {
        let has = |run: &RunDir| {
            let kept = run.kept().ok().flatten();
            (run.own_boot().is_dir(), kept.is_some(), kept.is_some_and(|kept| kept.whole))
        };
        let (new, old) = (has(self), has(old));
        (new.0 && !old.0) || (new.1 && !old.1) || (new.2 && !old.2)
    }
}

/// Is the keyframe of the same run that this one builds on there?
fn stands_on(keyframe: &Keyframe, steps: &[u64]) -> bool {
    match keyframe.base {
        Base::Step(step) => steps.binary_search(&step).is_ok(),
        Base::Full | Base::Boot(_) => true,
    }
}
