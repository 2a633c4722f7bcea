//! Stops the machine now and then, for live output, keyframes, time limits and Ctrl-C.

use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use vmm::Interrupter;

use super::lock;
use crate::clock::Wall;

/// Between stops while the run is young: what it says first is shown at once.
const YOUNG: Duration = Duration::from_millis(4);
/// And later.
const OLD: Duration = Duration::from_millis(25);
/// How long a run counts as young.
const YOUTH: Duration = Duration::from_millis(300);
/// A guest that makes no step for this long after it was asked to stop is stopped where it is.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) struct Ticker {
    done: Arc<(Mutex<bool>, Condvar)>,
    timed_out: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(super) fn start(
        stop: Interrupter,
        timeout: Option<Duration>,
        interrupted: Arc<AtomicBool>,
    ) -> Ticker {
        let done = Arc::new((Mutex::new(false), Condvar::new()));
        let timed_out = Arc::new(AtomicBool::new(false));
        let (done2, timed_out2) = (done.clone(), timed_out.clone());
        let thread = std::thread::spawn(move || {
            let began = Wall::now();
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
                    timed_out2.store(true, Ordering::Relaxed);
                }
                let last = timed_out2.load(Ordering::Relaxed) || interrupted.load(Ordering::Relaxed);
                stop.stop_soon();
                if last {
                    let asked = *asked.get_or_insert_with(Wall::now);
                    if asked.elapsed() >= PATIENCE {
                        stop.stop_now();
                    }
                }
            }
        });
        Ticker { done, timed_out, thread: Some(thread) }
    }

    pub(super) fn timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Relaxed)
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
