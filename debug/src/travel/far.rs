//! Searching far back: whole windows, on two machines at once. What is learnt here is that a window may hold a hit;
//! the exact one is then found by scanning that window alone.

use std::ops::{ControlFlow, Range};

use run::{
    error::StageError,
    scan::{Backward, Hit, Watcher, Window, backward},
    seek::Timeline,
};
use vmm::{
    Machine,
    address::{Gva, Position},
    memory::PageBytes,
};

use super::{
    Kind, Travel, TravelError, Travelled, What,
    armed::{Armed, Values},
    root_of,
};
use crate::{kernel::way_to, look};

/// Opens the run once more; `None` if that cannot be (the search then goes on with one machine).
pub type Open<'h> = Box<dyn FnOnce() -> Option<Timeline<'h>> + 'h>;

/// Windows looked at together: shared between the machines.
const BATCH: usize = 16;
/// Longest memory whose pages are looked up in keyframes.
const MOST_PASSED: u64 = 1 << 20;

/// What one window gave.
struct Seen {
    values: Values,
    hit: bool,
    places: Option<Vec<PageBytes>>,
}

impl<'h> Travel<'h> {
    /// Lets far searches have a second machine, opened when the first one is made.
    pub fn with_helper(mut self, open: Open<'h>) -> Travel<'h> {
        self.open = Some(open);
        self
    }

    /// Says that a breakpoint stands where nothing passes unless this memory is written about the same time: while it
    /// is not, a search far back need not look for it. None: that is not known.
    pub fn passes_with(&mut self, breakpoint: u64, memory: Option<Range<u64>>) {
        match memory {
            Some(memory) => self.passing.insert(breakpoint, memory),
            None => self.passing.remove(&breakpoint),
        };
    }

    /// The memory without a write to which a window holds nothing that stops, with the entries of the page tables that
    /// lead there. `None` if there is no such memory.
    pub(super) fn places(&mut self) -> Option<Vec<PageBytes>> {
        let ranges = self.ranges()?;
        let (pid, memory) = (self.pid, self.timeline.spec().memory);
        places_of(self.machine(), pid, memory, &ranges)
    }

    fn ranges(&self) -> Option<Vec<Range<u64>>> {
        let mut ranges = Vec::new();
        for point in &self.watchpoints {
            // A read leaves no trace.
            if point.kind != Kind::Write {
                return None;
            }
            ranges.push(point.at.0..point.at.0.checked_add(point.len)?);
        }
        for at in self.breakpoints.keys() {
            ranges.push(self.passing.get(at)?.clone());
        }
        Some(ranges)
    }

    /// Where to go on with a search that has come back to `end`, where `places` are [`Travel::places`]: the end of the
    /// latest window at or before it that may hold something that stops, at the earliest the one with `begin`.
    /// `None` if interrupted.
    pub(super) fn far(
        &mut self,
        end: Position,
        begin: Position,
        mut places: Option<Vec<PageBytes>>,
    ) -> Travelled<Option<Position>> {
        let windows: Vec<Window> = self
            .timeline
            .windows(end)
            .into_iter()
            .take_while(|window| Timeline::at(window.from) >= begin && !self.has_signal(window))
            .map(|window| Window { to_keyframe: true, ..window })
            .collect();
        let at_keyframe = self.timeline.keyframes().into_iter().any(|step| Timeline::at(step) == end);
        if windows.len() < 2 || !at_keyframe {
            return Ok(Some(end));
        }
        let armed = self.armed();
        let mut next = 0;
        let mut found = false;
        while next < windows.len() && !found {
            // As long as the mappings are what they were at the end, which each window that is run tells.
            let mut todo = Vec::new();
            let mut behind = next;
            while behind < windows.len() && todo.len() < BATCH {
                let passed = match &places {
                    Some(places) => !self.timeline.may_write(&windows[behind], places)?,
                    None => false,
                };
                if !passed {
                    todo.push(behind);
                }
                behind += 1;
            }
            if todo.len() > 1
                && let Some(open) = self.open.take()
            {
                self.helper = open();
            }
            let list: Vec<Window> = todo.iter().map(|&number| windows[number]).collect();
            let mut ran = 0;
            let mut moved = None;
            let done = self.run_windows(&armed, &list, &mut |seen| {
                found = seen.hit;
                if !found {
                    ran += 1;
                    if seen.places != places {
                        moved = Some(seen.places);
                    }
                }
                found || moved.is_some()
            });
            match done {
                Err(TravelError::Stage(StageError::Interrupted)) => {
                    self.take_interrupt();
                    self.restore_before(end)?;
                    return Ok(None);
                }
                other => other?,
            }
            next = match (todo.get(ran), ran.checked_sub(1)) {
                (Some(&number), _) if found => number,
                (Some(_), Some(last)) => todo[last] + 1,
                _ => behind,
            };
            places = moved.unwrap_or(places);
        }
        let reached = match windows.get(next) {
            Some(window) => window.until,
            None => windows.last().map_or(end, |window| Timeline::at(window.from)),
        };
        // The machine is wherever the search left it.
        self.restore_before(reached)?;
        Ok(Some(reached))
    }

    /// Runs windows, the latest first, and hands what each gave to `done`, in order; true ends it.
    fn run_windows(
        &mut self,
        armed: &Armed,
        windows: &[Window],
        done: &mut dyn FnMut(Seen) -> bool,
    ) -> Travelled<()> {
        let look = armed.look();
        let flag = self.interrupted.clone();
        let ranges = self.ranges();
        let (pid, memory) = (self.pid, self.timeline.spec().memory);
        let search = Backward {
            look: &look,
            watcher: Watcher { interrupted: &flag, progress: &|_| {} },
            begin: &|_, machine: &mut Machine| Seen {
                values: armed.values(machine),
                hit: false,
                places: ranges.as_ref().and_then(|ranges| places_of(machine, pid, memory, ranges)),
            },
            hit: &|seen: &mut Seen, machine: &mut Machine, hit: &Hit| {
                seen.hit |= match hit.accesses.is_empty() {
                    true => armed.met(machine, hit.user),
                    // What cannot be told is looked at again by the scan that follows.
                    false => !matches!(armed.triggered(machine, &hit.accesses, &mut seen.values), Ok(None)),
                };
                if seen.hit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        };
        let machines = std::iter::once(&mut self.timeline).chain(self.helper.as_mut());
        Ok(backward(machines, windows, &search, |_, seen| match done(seen) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })?)
    }

    /// Is a signal that stops told in this window, or at its edges?
    fn has_signal(&self, window: &Window) -> bool {
        self.history.events.iter().any(|event| match event.what {
            What::Signal { number, .. } => {
                (window.from..=window.until.step.0).contains(&event.step) && !self.passed.contains(&number)
            }
            _ => false,
        })
    }
}

/// Where a process's memory is, with the entries of the page tables that lead there.
fn places_of(machine: &Machine, pid: u32, memory: u64, ranges: &[Range<u64>]) -> Option<Vec<PageBytes>> {
    let kernel = look::kernel(machine)?;
    let root = root_of(&kernel, pid).ok()??;
    let mut places = Vec::new();
    for range in ranges {
        if range.end - range.start > MOST_PASSED {
            return None;
        }
        let mut at = range.start;
        while at < range.end {
            for (address, len) in way_to(kernel.memory(), root, Gva(at), range.end - at) {
                places.push(PageBytes::at(memory, address, len)?);
            }
            at = (at & !4095).checked_add(4096)?;
        }
    }
    places.sort_unstable();
    places.dedup();
    Some(places)
}
