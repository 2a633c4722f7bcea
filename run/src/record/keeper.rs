//! The thread that stores keyframes while the machine runs on.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use super::Start;
use crate::{
    boot::Boot,
    envelope,
    error::StageError,
    home::Home,
    keyframe::{self, Base, Keyframe, PageAt},
    stage::{Snapshot, Stage},
    store::{PAGE_SIZE, PageHash, PageStore},
};

/// Snapshots that may wait: bounds the memory they take.
const QUEUE: usize = 2;

pub(super) struct Keeper {
    queue: mpsc::SyncSender<(Snapshot, u64)>,
    worker: JoinHandle<Result<(), StageError>>,
}

struct Worker {
    store: Arc<PageStore>,
    dir: PathBuf,
    memory: u64,
    base: Base,
    /// The pages as of the last keyframe that differ from the boot keyframe.
    known: BTreeMap<u64, PageHash>,
    boot: Arc<Boot>,
}

impl Keeper {
    pub(super) fn start(home: &Home, run: &Path, boot: &Arc<Boot>, start: &Start, stage: &Stage) -> Keeper {
        let (queue, snapshots) = mpsc::sync_channel::<(Snapshot, u64)>(QUEUE);
        let mut worker = Worker {
            store: home.pages().clone(),
            dir: keyframe::dir_of(run),
            memory: stage.spec().memory,
            base: start.base,
            known: stage.placed().clone(),
            boot: boot.clone(),
        };
        let worker = std::thread::spawn(move || {
            snapshots.iter().try_for_each(|(snapshot, records)| worker.store(snapshot, records))
        });
        Keeper { queue, worker }
    }

    /// Hands a snapshot over; waits while too many wait.
    pub(super) fn keep(&mut self, snapshot: Snapshot, records: u64) -> Result<(), StageError> {
        // A worker that failed has hung up; `finish` gives its error.
        let _ = self.queue.send((snapshot, records));
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(), StageError> {
        drop(self.queue);
        match self.worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Worker {
    fn store(&mut self, snapshot: Snapshot, records: u64) -> Result<(), StageError> {
        let mut pages = Vec::new();
        let (content, _) = snapshot.content.as_chunks::<PAGE_SIZE>();
        for (page, content) in snapshot.pages.iter().zip(content) {
            let hash = PageHash::of(content);
            if self.was(*page) == hash {
                // Written, but with what was there. It is listed all the same: whoever looks for the last write
                // skips windows in which a page was not written at all.
                pages.push(PageAt { page: *page, hash });
                continue;
            }
            self.store.put_named(hash, content)?;
            self.known.insert(*page, hash);
            pages.push(PageAt { page: *page, hash });
        }
        self.store.sync()?;
        let keyframe = Keyframe {
            step: snapshot.step,
            records,
            memory: self.memory,
            base: self.base,
            machine: snapshot.machine,
            pages,
            written: snapshot.written,
        };
        let path = self.dir.join(keyframe::file_name(snapshot.step));
        envelope::write(keyframe::FILE, &path, &keyframe)?;
        self.base = Base::Step(snapshot.step);
        Ok(())
    }

    fn was(&self, page: u64) -> PageHash {
        let boot = || self.boot.whole.pages.get(&page).copied().unwrap_or(PageHash::ZERO);
        self.known.get(&page).copied().unwrap_or_else(boot)
    }
}
