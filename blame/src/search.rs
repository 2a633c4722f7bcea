//! Finds the last write, or every access, window by window backward.

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use run::{
    scan::{Backward, Watcher, Window, backward},
    seek::Timeline,
};
use vmm::address::Position;

use crate::{
    access::Access,
    error::BlameError,
    gather::{Fill, Gathered, Wanted},
    piece::{Origin, Piece},
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
    let windows = windows_of(first, at, options.all);
    let mut next = 0;
    let done = AtomicU64::new(0);
    while next < windows.len() && !state.pieces.is_empty() && !state.enough() {
        let (todo, behind) = state.worth(&timelines[0], &windows, next)?;
        (options.progress)(next as u64, windows.len() as u64);
        done.store(next as u64, Ordering::Relaxed);
        let wanted = state.wanted(&state.pieces);
        let mut stopped = None;
        let list: Vec<Window> = todo.iter().map(|&i| windows[i]).collect();
        let mut number = 0;
        let found = &mut state;
        run_windows(timelines, &list, &wanted, options, &mut |gathered| {
            let index = todo[number];
            number += 1;
            (options.progress)(index as u64 + 1, windows.len() as u64);
            found.found.windows += 1;
            found.found.from = windows[index].quiet.map_or(windows[index].from, |quiet| quiet.step.0);
            let changed = gathered.seen.iter().any(|seen| seen.fill.is_some());
            if changed {
                stopped = Some((index, gathered));
                return ControlFlow::Break(());
            }
            found.merge(&gathered);
            if found.enough() {
                stopped = Some((index, Gathered::default()));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        next = match stopped {
            Some((index, gathered)) => {
                state.follow(timelines, &windows[index], gathered)?;
                index + 1
            }
            None => behind,
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
    Ok(backward(timelines, windows, &search, |_, gathered| done(gathered))?)
}

impl State<'_> {
    fn wanted(&self, pieces: &[Piece]) -> Wanted {
        Wanted {
            pieces: pieces.to_vec(),
            len: self.len,
            root: self.root,
            all: self.options.all,
            reads: self.options.reads,
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
        let pages: Vec<u64> =
            self.pieces.iter().filter_map(|piece| vmm::memory::page_index(memory, piece.gpa)).collect();
        let mut todo = Vec::new();
        let mut at = next;
        while at < windows.len() && todo.len() < BATCH {
            // A read leaves no trace in a keyframe.
            if self.options.reads || timeline.may_write(&windows[at], &pages)? {
                todo.push(at);
            } else {
                self.found.skipped += 1;
                self.found.from = windows[at].from;
            }
            at += 1;
        }
        Ok((todo, at))
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
