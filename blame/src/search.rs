//! Finds the last write, or every access, window by window backward.

use std::{ops::ControlFlow, sync::atomic::AtomicBool};

use run::{
    scan::{Backward, Watcher, Window, backward},
    seek::Timeline,
};
use vmm::{
    address::{Instructions, Position, Step},
    memory::PageBytes,
};

use crate::{
    access::Access,
    error::BlameError,
    gather::{Fill, Gathered, Wanted},
    piece::{Origin, Piece},
    slice,
};

/// How to search.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Every access, back to where the bytes come from; else the last write alone.
    pub all: bool,
    /// Reads too.
    pub reads: bool,
    /// Stop once so many accesses were found.
    pub limit: Option<usize>,
    /// Of a bit-field: the first bit and how many; writes that leave them as they are do not count.
    pub bits: Option<(u64, u64)>,
    /// Set by Ctrl-C.
    pub interrupted: &'a AtomicBool,
    /// Told now and then how many windows of how many were searched.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Found {
    /// The last write.
    pub last: Option<Access>,
    /// Every access, oldest first, if asked for.
    pub accesses: Vec<Access>,
    /// Where parts of the range (offset, bytes) come from that were not written since; all of them if nothing was.
    pub origins: Vec<(u64, u64, Origin)>,
    /// Step searched back to.
    pub from: u64,
    /// Windows run.
    pub windows: u64,
    /// Windows passed over because their pages were not written in them.
    pub skipped: u64,
    /// Writes seen.
    pub writes: u64,
    /// Reads seen.
    pub reads: u64,
    /// Accesses that were too many to keep.
    pub dropped: u64,
}

/// The search as it goes.
struct State<'a> {
    options: Options<'a>,
    root: Option<vmm::address::Gpa>,
    len: u64,
    pieces: Vec<Piece>,
    found: Found,
}

/// Hits of one window after which, when only the last one is wanted, its end is looked through alone.
const MOST_HITS: u64 = 50_000;
/// Instructions of such an end at first, and how it grows if nothing is in it.
const FIRST_GAP: u64 = 4_096;
const GAP_GROWS: u64 = 64;

/// Why windows were not all run.
enum Stopped {
    /// The last write was found.
    Enough,
    /// Frames were given their content.
    Changed(Box<Gathered>),
    /// More writes than can be looked at one by one.
    Busy,
}

/// Cuts a window `gap` instructions before the end of its last step.
fn end_of(timeline: &mut Timeline<'_>, window: &Window, gap: u64) -> Result<Option<[Window; 2]>, BlameError> {
    let until = window.until;
    let (step, length) = match until.offset.0 {
        0 => {
            let step = Step(until.step.0.saturating_sub(1));
            (step, slice::length(timeline, step)?)
        }
        offset => (until.step, offset),
    };
    Ok(window.split(Position { step, offset: Instructions(length.saturating_sub(gap)) }))
}

/// Windows looked at together: with their keyframes read, and shared between the machines.
const BATCH: usize = 16;

/// Steps before the position asked at that are looked through alone at first: what is written all the time was written
/// there.
const NEAR: u64 = 64;

/// The windows before `at`, the latest cut in two where only the last write is wanted.
fn windows_of(timeline: &Timeline<'_>, at: Position, all: bool) -> Vec<Window> {
    let mut windows = timeline.windows(at);
    let near = Timeline::at(at.step.0.saturating_sub(NEAR));
    if let Some(parts) = windows.first().filter(|_| !all).and_then(|first| first.split(near)) {
        windows.splice(..1, parts);
    }
    windows
}

/// Searches `pieces` (with what is known of their origin) back from `at`.
pub fn search(
    timelines: &mut [Timeline<'_>],
    pieces: &[Piece],
    origins: &[Option<Origin>],
    root: Option<vmm::address::Gpa>,
    len: u64,
    at: Position,
    options: Options<'_>,
) -> Result<Found, BlameError> {
    let mut state = State {
        options,
        root,
        len,
        pieces: Vec::new(),
        found: Found { from: at.step.0, ..Found::default() },
    };
    for (piece, origin) in pieces.iter().zip(origins) {
        match origin {
            Some(origin) => state.found.origins.push((piece.offset, piece.len, origin.clone())),
            None => state.pieces.push(piece.clone()),
        }
    }
    let Some(first) = timelines.first() else { return Ok(state.found) };
    let mut windows = windows_of(first, at, options.all);
    let mut next = 0;
    // A window with more writes than this is cut so that only its end is looked through.
    let mut most_hits = (!options.all).then_some(MOST_HITS);
    let mut gap = FIRST_GAP;
    while next < windows.len() && !state.pieces.is_empty() && !state.enough() {
        let (todo, behind) = state.worth(&timelines[0], &windows, next)?;
        (options.progress)(next as u64, windows.len() as u64);
        let wanted = Wanted { most_hits, ..state.wanted(&state.pieces) };
        let list: Vec<Window> = todo.iter().map(|&i| windows[i]).collect();
        let stopped = state.run(timelines, &list, &wanted, &|number| {
            (options.progress)(todo[number] as u64 + 1, windows.len() as u64);
        })?;
        next = match stopped {
            None => behind,
            Some((number, Stopped::Enough)) => todo[number] + 1,
            Some((number, Stopped::Changed(gathered))) => {
                let index = todo[number];
                state.follow(timelines, &windows[index], *gathered)?;
                index + 1
            }
            Some((number, Stopped::Busy)) => {
                let index = todo[number];
                match end_of(&mut timelines[0], &windows[index], gap)? {
                    Some(parts) => drop(windows.splice(index..=index, parts)),
                    None => most_hits = None,
                }
                gap = gap.saturating_mul(GAP_GROWS);
                index
            }
        };
    }
    if next >= windows.len() && !state.enough() {
        for piece in std::mem::take(&mut state.pieces) {
            state.found.origins.push((piece.offset, piece.len, Origin::Beginning));
        }
    }
    let mut found = state.found;
    found.accesses.sort_by_key(|access| access.position);
    if let Some(limit) = options.limit {
        let excess = found.accesses.len().saturating_sub(limit);
        found.accesses.drain(..excess);
    }
    found.origins.sort_by_key(|(offset, ..)| *offset);
    Ok(found)
}

/// The step from which a window is looked through.
fn begin_of(window: &Window) -> u64 {
    window.quiet.map_or(window.from, |quiet| quiet.step.0)
}

fn run_windows(
    timelines: &mut [Timeline<'_>],
    windows: &[Window],
    wanted: &Wanted,
    options: Options<'_>,
    done: &mut dyn FnMut(Gathered) -> ControlFlow<()>,
) -> Result<(), BlameError> {
    let look = wanted.look();
    let search = Backward {
        look: &look,
        watcher: Watcher { interrupted: options.interrupted, progress: &|_| {} },
        begin: &|_, machine| Gathered::begin(wanted, machine),
        hit: &|gathered: &mut Gathered, machine, hit| gathered.hit(wanted, machine, hit),
    };
    Ok(backward(timelines.iter_mut(), windows, &search, |_, gathered| done(gathered))?)
}

impl State<'_> {
    fn wanted(&self, pieces: &[Piece]) -> Wanted {
        Wanted {
            pieces: pieces.to_vec(),
            len: self.len,
            root: self.root,
            all: self.options.all,
            reads: self.options.reads,
            bits: self.options.bits,
            most_hits: None,
        }
    }

    /// Nothing more is needed.
    fn enough(&self) -> bool {
        if self.options.all {
            self.options.limit.is_some_and(|limit| self.found.accesses.len() >= limit)
        } else {
            self.found.last.is_some()
        }
    }

    /// The next windows that must be run, and the first one behind them.
    fn worth(
        &mut self,
        timeline: &Timeline<'_>,
        windows: &[Window],
        next: usize,
    ) -> Result<(Vec<usize>, usize), BlameError> {
        let memory = timeline.spec().memory;
        let places: Vec<PageBytes> =
            self.pieces.iter().filter_map(|piece| PageBytes::at(memory, piece.gpa, piece.len)).collect();
        let mut todo = Vec::new();
        let mut at = next;
        while at < windows.len() && todo.len() < BATCH {
            // A read leaves no trace in a keyframe.
            if self.options.reads || timeline.may_write(&windows[at], &places)? {
                todo.push(at);
            } else {
                self.found.skipped += 1;
                self.found.from = windows[at].from;
            }
            at += 1;
        }
        Ok((todo, at))
    }

    /// Runs windows until something must be done; which one stopped it, and why. `ran` is told each one's number.
    fn run(
        &mut self,
        timelines: &mut [Timeline<'_>],
        windows: &[Window],
        wanted: &Wanted,
        ran: &dyn Fn(usize),
    ) -> Result<Option<(usize, Stopped)>, BlameError> {
        let mut stopped = None;
        let mut number = 0;
        let options = self.options;
        run_windows(timelines, windows, wanted, options, &mut |gathered| {
            let window = &windows[number];
            ran(number);
            self.found.windows += 1;
            let changed = gathered.seen.iter().any(|seen| seen.fill.is_some());
            let why = if gathered.busy {
                Stopped::Busy
            } else if changed {
                Stopped::Changed(Box::new(gathered))
            } else {
                self.merge(&gathered);
                if !self.enough() {
                    self.found.from = begin_of(window);
                    number += 1;
                    return ControlFlow::Continue(());
                }
                Stopped::Enough
            };
            self.found.from = begin_of(window);
            stopped = Some((number, why));
            ControlFlow::Break(())
        })?;
        Ok(stopped)
    }

    fn merge(&mut self, gathered: &Gathered) {
        for seen in &gathered.seen {
            self.found.writes += seen.writes;
            self.found.reads += seen.reads;
            if let Some(last) = &seen.last
                && self.found.last.as_ref().is_none_or(|known| known.position < last.position)
            {
                self.found.last = Some(last.clone());
            }
        }
        self.found.accesses.extend(gathered.all.iter().cloned());
        self.found.dropped += gathered.dropped;
    }

    /// A window in which frames were given their content: goes on in the same window where that came from.
    fn follow(
        &mut self,
        timelines: &mut [Timeline<'_>],
        window: &Window,
        gathered: Gathered,
    ) -> Result<(), BlameError> {
        let mut gathered = gathered;
        let mut asked: Vec<Piece> = self.pieces.clone();
        loop {
            self.merge(&gathered);
            let mut copied = Vec::new();
            for (piece, seen) in asked.iter().zip(&gathered.seen) {
                let Some((position, fill)) = &seen.fill else { continue };
                self.pieces.retain(|own| own.offset != piece.offset);
                match fill {
                    Fill::Copy(gpa) => {
                        let moved = Piece { gpa: *gpa, until: *position, ..piece.clone() };
                        self.pieces.push(moved.clone());
                        copied.push(moved);
                    }
                    // Older than a write of all of it, which is what was asked for.
                    Fill::From(_) if !self.options.all && seen.covers(piece) => {}
                    Fill::From(origin) => {
                        self.found.origins.push((piece.offset, piece.len, origin.clone()));
                    }
                }
            }
            if copied.is_empty() {
                return Ok(());
            }
            let wanted = self.wanted(&copied);
            let mut next = Gathered::default();
            self.found.windows += 1;
            run_windows(&mut timelines[..1], &[*window], &wanted, self.options, &mut |found| {
                next = found;
                ControlFlow::Break(())
            })?;
            (asked, gathered) = (copied, next);
        }
    }
}
