//! Searching backward, several windows at once.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
};

use vmm::Machine;

use super::{Hit, Look, Watcher, Window};
use crate::{error::StageError, seek::Timeline};

/// A search: what each window gathers, and what is done with it.
pub struct Backward<'a, C> {
    /// What to look for.
    pub look: &'a Look,
    /// Progress and the way to stop.
    pub watcher: Watcher<'a>,
    /// Begins to gather for a window; the machine is at its beginning.
    pub begin: &'a (dyn Fn(&Window, &mut Machine) -> C + Sync),
    /// Takes a hit; a break ends the window.
    pub hit: &'a (dyn Fn(&mut C, &mut Machine, &Hit) -> ControlFlow<()> + Sync),
}

/// Scans `windows` in their order (the latest first), one on each of `timelines` at a time, and hands what each
/// gathered to `done` in that order whatever their number. A break of `done` ends the search.
pub fn backward<'t, 'h: 't, C: Send>(
    timelines: impl IntoIterator<Item = &'t mut Timeline<'h>>,
    windows: &[Window],
    search: &Backward<'_, C>,
    mut done: impl FnMut(&Window, C) -> ControlFlow<()>,
) -> Result<(), StageError> {
    let next = AtomicUsize::new(0);
    let over = AtomicBool::new(false);
    let (send, results) = mpsc::channel::<(usize, Result<C, StageError>)>();
    // A window that is no longer needed stops as if Ctrl-C had been pressed.
    let relay = Mutex::new(());
    std::thread::scope(|scope| {
        for timeline in timelines {
            let (send, next, over, relay) = (send.clone(), &next, &over, &relay);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(window) = windows.get(index) else { break };
                    let gathered = RefCell::new(None);
                    let progress = |step| {
                        if search.watcher.interrupted.load(Ordering::Relaxed) {
                            over.store(true, Ordering::Relaxed);
                        }
                        let _one_at_a_time = relay.lock();
                        (search.watcher.progress)(step);
                    };
                    let watcher = Watcher { interrupted: over, progress: &progress };
                    let mut begin = |machine: &mut Machine| {
                        *gathered.borrow_mut() = Some((search.begin)(window, machine));
                    };
                    let mut on_hit = |machine: &mut Machine, hit: &Hit| match &mut *gathered.borrow_mut() {
                        Some(gathered) => (search.hit)(gathered, machine, hit),
                        None => ControlFlow::Break(()),
                    };
                    let scanned = timeline.scan(window, search.look, watcher, &mut begin, &mut on_hit);
                    let result = scanned.and_then(|()| gathered.into_inner().ok_or(StageError::Interrupted));
                    if send.send((index, result)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(send);
        let mut waiting = BTreeMap::new();
        let mut wanted = 0;
        let mut outcome = Ok(());
        for (index, result) in &results {
            waiting.insert(index, result);
            while let Some(result) = waiting.remove(&wanted) {
                let flow = match result {
                    Ok(gathered) if outcome.is_ok() => done(&windows[wanted], gathered),
                    Ok(_) => ControlFlow::Break(()),
                    Err(error) => {
                        if outcome.is_ok() {
                            outcome = Err(error);
                        }
                        ControlFlow::Break(())
                    }
                };
                wanted += 1;
                if flow.is_break() {
                    over.store(true, Ordering::Relaxed);
                    // What the others still send is not needed; the scope waits for them.
                    return outcome;
                }
            }
        }
        outcome
    })
}
