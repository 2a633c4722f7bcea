//! Stops the machine now and then, for live output, keyframes, time limits and Ctrl-C.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use vmm::Interrupter;

use super::{Limits, lock};
use crate::clock::Wall;

/// Between stops while the run is young: what it says first is shown at once.
const YOUNG: Duration = Duration::from_millis(4);
/// And later.
const OLD: Duration = Duration::from_millis(25);
/// How long a run counts as young.
const YOUTH: Duration = Duration::from_millis(300);
/// A guest that makes no step for this long after it was asked to stop is stopped where it is.
const PATIENCE: Duration = Duration::from_millis(500);

/// On an engine that does not count instructions: so long without a step is worth a look by one that does.
const STUCK: Duration = Duration::from_secs(10);

pub(super) struct Ticker {
    done: Arc<(Mutex<bool>, Condvar)>,
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

/// What the two threads tell each other.
#[derive(Default)]
struct Told {
    timed_out: AtomicBool,
    stuck: AtomicBool,
    /// Times the machine has stopped.
    beats: AtomicU64,
}

impl Ticker {
    pub(super) fn start(stop: Interrupter, limits: &Limits<'_>) -> Ticker {
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let told = Arc::new(Told::default());
        let (done2, told2) = (done.clone(), told.clone());
        let (timeout, interrupted, by_wall) = (limits.timeout, limits.interrupted.clone(), limits.by_wall);
        let thread = std::thread::spawn(move || {
            let began = Wall::now();
            let mut beat = (0, began);
            let mut asked: Option<Wall> = None;
            let (flag, condition) = &*done2;
            let mut finished = lock(flag);
            while !*finished {
                let wait = if began.elapsed() < YOUTH { YOUNG } else { OLD };
                finished = condition
                    .wait_timeout(finished, wait)
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .0;
                if timeout.is_some_and(|limit| began.elapsed() >= limit) {
                    told2.timed_out.store(true, Ordering::Relaxed);
                }
                let last = told2.timed_out.load(Ordering::Relaxed) || interrupted.load(Ordering::Relaxed);
                stop.stop_soon();
                let beats = told2.beats.load(Ordering::Relaxed);
                if beats != beat.0 {
                    beat = (beats, Wall::now());
                } else if by_wall && beat.1.elapsed() >= STUCK {
                    told2.stuck.store(true, Ordering::Relaxed);
                    stop.stop_now();
                }
                if last {
                    let asked = *asked.get_or_insert_with(Wall::now);
                    if asked.elapsed() >= PATIENCE {
                        stop.stop_now();
                    }
                }
            }
        });
        Ticker { done, told, thread: Some(thread) }
    }

    pub(super) fn timed_out(&self) -> bool {
        self.told.timed_out.load(Ordering::Relaxed)
    }

    /// No step for long, and the machine was stopped for it.
    pub(super) fn stuck(&self) -> bool {
        self.told.stuck.load(Ordering::Relaxed)
    }

    /// The machine has stopped at a step.
    pub(super) fn beat(&self) {
        self.told.beats.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let (flag, condition) = &*self.done;
        *lock(flag) = true;
        condition.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
