//! What the trace says of one process: who ran when, its signals, its programs, its end.

use std::collections::BTreeSet;

use rewind_platform::record::{REC_EXEC, REC_EXIT, REC_FORK, REC_SIGNAL, REC_SWITCH};
use run::{
    describe::{long, strings},
    trace::{TraceError, TraceReader},
};

/// What happened to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A signal was delivered.
    Signal {
        /// Its number.
        number: u32,
        /// A handler ran.
        handled: bool,
        /// `si_code`.
        code: i32,
        /// `si_addr` of a fault.
        address: u64,
    },
    /// It executed another program.
    Exec {
        /// Its path.
        path: String,
    },
    /// Its last thread ended.
    Exit {
        /// Wait status.
        status: u32,
    },
}

/// An event of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The step committed last before it.
    pub step: u64,
    /// Which thread.
    pub tid: u32,
    /// What.
    pub what: What,
}

/// A stretch in which a thread ran, as far as switches say (those to the kernel's own threads are not told).
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// 0: not known.
    tid: u32,
    /// The step committed last before it, and the last of it.
    from: u64,
    to: u64,
}

/// One process in a trace.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Threads it ever had.
    pub tids: BTreeSet<u32>,
    /// Its events in order.
    pub events: Vec<Event>,
    /// Step committed last before it began.
    pub began: u64,
    lanes: Vec<Lane>,
}

impl History {
    /// Of the process `pid`.
    pub fn of(trace: &TraceReader, pid: u32, last: u64) -> Result<History, TraceError> {
        let mut history = History { tids: BTreeSet::from([pid]), ..History::default() };
        let mut living = BTreeSet::from([pid]);
        let mut running: Option<(u32, u64)> = None;
        for record in trace.iter() {
            let record = record?;
            let header = &record.header;
            if header.kind == REC_SWITCH {
                // Who ran before the first switch that is told is not known.
                let (tid, from) = running.unwrap_or((0, 0));
                history.lanes.push(Lane { tid, from, to: header.step });
                running = Some((header.tid, header.step));
            }
            if header.kind == REC_FORK {
                let (tid, child) = (long(&record.payload, 2) as u32, (long(&record.payload, 2) >> 32) as u32);
                if child == pid {
                    history.tids.insert(tid);
                    living.insert(tid);
                    if tid == pid {
                        history.began = header.step;
                    }
                }
            }
            if header.pid != pid {
                continue;
            }
            let what = match header.kind {
                REC_SIGNAL => What::Signal {
                    number: header.aux,
                    handled: long(&record.payload, 3) != 0,
                    code: long(&record.payload, 0) as i32,
                    address: long(&record.payload, 1),
                },
                REC_EXEC => What::Exec { path: strings(&record.payload).swap_remove(0) },
                REC_EXIT => {
                    living.remove(&header.tid);
                    if !living.is_empty() {
                        continue;
                    }
                    What::Exit { status: header.aux }
                }
                _ => continue,
            };
            history.events.push(Event { step: header.step, tid: header.tid, what });
        }
        if let Some((tid, from)) = running {
            history.lanes.push(Lane { tid, from, to: last });
        } else {
            history.lanes.push(Lane { tid: 0, from: 0, to: last });
        }
        Ok(history)
    }

    /// The next step after `after` that thread `tid` may commit, as far as switches say.
    pub fn next_step(&self, tid: u32, after: u64) -> Option<u64> {
        let first = self.lanes.partition_point(|lane| lane.to <= after);
        let lane = self.lanes[first..].iter().find(|lane| lane.tid == tid || lane.tid == 0)?;
        Some(lane.from.max(after) + 1)
    }

    /// The last step before `before` that thread `tid` may have committed.
    pub fn previous_step(&self, tid: u32, before: u64) -> Option<u64> {
        let end = self.lanes.partition_point(|lane| lane.from + 1 < before);
        let lane = self.lanes[..end].iter().rev().find(|lane| lane.tid == tid || lane.tid == 0)?;
        let step = lane.to.min(before.saturating_sub(1));
        (step > lane.from).then_some(step)
    }

    /// The step after which the program that runs at `at` began: its exec, or the fork without one.
    pub fn program_began(&self, at: u64) -> u64 {
        let exec = |event: &&Event| matches!(event.what, What::Exec { .. }) && event.step < at;
        self.events.iter().rev().find(exec).map_or(self.began, |event| event.step)
    }
}
