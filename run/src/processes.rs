//! Processes and threads of a run, from its trace: the tree at a step, and who ran when.

use std::collections::BTreeMap;

use rewind_platform::record::{REC_EXEC, REC_EXIT, REC_FORK, REC_SWITCH};
use serde::Serialize;

use crate::{
    describe::{long, strings},
    trace::{Record, TraceError},
};

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Process id of who made it; 0 unknown.
    pub parent: u32,
    /// Name, in hex: its place in the creation tree; zeros outside the job.
    pub name: String,
    /// What it last executed, or its maker did.
    pub command: String,
    /// Step at which it began.
    pub began: u64,
    /// Step at which it ended and its wait status, if it has.
    pub ended: Option<(u64, u32)>,
    /// Steps during which it ran, as far as switches say.
    pub steps: u64,
}

/// One stretch during which a thread ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stretch {
    /// Thread id.
    pub tid: u32,
    /// First step.
    pub from: u64,
    /// The step at which another took over (or the end).
    pub to: u64,
    /// It was taken off while it could have run on.
    pub preempted: bool,
}

/// Threads and stretches, built record by record.
#[derive(Debug, Default)]
pub struct Processes {
    threads: BTreeMap<u32, Thread>,
    gone: Vec<Thread>,
    lanes: Vec<Stretch>,
    running: Option<(u32, u64)>,
    last: u64,
}

impl Processes {
    /// Everything in `records` up to and with `step`.
    pub fn at(
        records: impl Iterator<Item = Result<Record, TraceError>>,
        step: u64,
    ) -> Result<Processes, TraceError> {
        let mut processes = Processes::default();
        for record in records {
            let record = record?;
            if record.header.step > step {
                break;
            }
            processes.add(&record);
        }
        Ok(processes)
    }

    /// Takes a record into account.
    pub fn add(&mut self, record: &Record) {
        let (header, payload) = (&record.header, &record.payload[..]);
        self.last = header.step;
        match header.kind {
            REC_FORK => {
                let word = |at: usize| (long(payload, 2) >> (at * 32)) as u32;
                let (tid, pid) = (word(0), word(1));
                let command =
                    self.threads.get(&header.tid).map(|maker| maker.command.clone()).unwrap_or_default();
                let thread = Thread {
                    tid,
                    pid,
                    parent: header.pid,
                    name: format!("{:016x}", long(payload, 0)),
                    command,
                    began: header.step,
                    ended: None,
                    steps: 0,
                };
                self.gone.extend(self.threads.insert(tid, thread));
            }
            REC_EXEC => {
                let argv = strings(payload);
                let argv = if argv.len() > 1 { &argv[1..] } else { &argv[..] };
                let thread = self.thread(header.tid, header.pid, header.thread, header.step);
                thread.command = argv.join(" ");
            }
            REC_EXIT => {
                let (step, status) = (header.step, header.aux);
                self.thread(header.tid, header.pid, header.thread, step).ended = Some((step, status));
            }
            REC_SWITCH => {
                // `previous state` 0: it was still runnable.
                self.close(header.step, long(payload, 1) == 0);
                self.thread(header.tid, header.pid, header.thread, header.step);
                self.running = Some((header.tid, header.step));
            }
            _ => {}
        }
    }

    fn close(&mut self, step: u64, preempted: bool) {
        if let Some((tid, from)) = self.running.take() {
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.steps += step - from;
            }
            if step > from {
                self.lanes.push(Stretch { tid, from, to: step, preempted });
            }
        }
    }

    fn thread(&mut self, tid: u32, pid: u32, name: u64, step: u64) -> &mut Thread {
        self.threads.entry(tid).or_insert_with(|| Thread {
            tid,
            pid,
            parent: 0,
            name: format!("{name:016x}"),
            command: String::new(),
            began: step,
            ended: None,
            steps: 0,
        })
    }

    /// Threads that live, by tid.
    pub fn living(&self) -> Vec<&Thread> {
        self.threads.values().filter(|thread| thread.ended.is_none()).collect()
    }

    /// All threads there ever were, in order of their beginning.
    pub fn all(&self) -> Vec<&Thread> {
        let mut all: Vec<&Thread> = self.gone.iter().chain(self.threads.values()).collect();
        all.sort_by_key(|thread| (thread.began, thread.tid));
        all
    }

    /// Who ran when, up to step `end`.
    pub fn lanes(mut self, end: u64) -> (Vec<Thread>, Vec<Stretch>) {
        self.close(end.max(self.last), false);
        let threads = self.all().into_iter().cloned().collect();
        (threads, self.lanes)
    }
}

#[cfg(test)]
mod tests {
    use rewind_platform::record::RecordHeader;

    use super::*;

    fn record(kind: u16, step: u64, tid: u32, pid: u32, aux: u32, payload: &[u8]) -> Record {
        let header = RecordHeader {
            len: 0,
            kind,
            flags: 0,
            step,
            now: 0,
            thread: u64::from(tid),
            tid,
            pid,
            payload_len: 0,
            aux,
        };
        Record::new(&header, payload)
    }

    #[test]
    fn a_tree_and_its_lanes() {
        let mut fork = vec![];
        fork.extend(101u64.to_le_bytes());
        fork.extend(1u64.to_le_bytes());
        fork.extend(101u32.to_le_bytes());
        fork.extend(101u32.to_le_bytes());
        fork.extend(0u64.to_le_bytes());
        let mut preempted = 100u64.to_le_bytes().to_vec();
        preempted.extend(0u64.to_le_bytes());
        let mut slept = 101u64.to_le_bytes().to_vec();
        slept.extend(1u64.to_le_bytes());
        let records = [
            record(REC_SWITCH, 10, 100, 100, 1, &[0; 16]),
            record(REC_EXEC, 11, 100, 100, 0, b"/bin/sh\0sh\0-c\0x\0"),
            record(REC_FORK, 20, 100, 100, 0, &fork),
            record(REC_SWITCH, 25, 101, 101, 100, &preempted),
            record(REC_EXEC, 26, 101, 101, 0, b"/bin/ls\0ls\0"),
            record(REC_EXIT, 40, 101, 101, 0, b"ls"),
            record(REC_SWITCH, 40, 100, 100, 101, &slept),
        ];
        let at = |step| Processes::at(records.iter().cloned().map(Ok), step).unwrap();
        assert_eq!(at(30).living().iter().map(|t| &t.command[..]).collect::<Vec<_>>(), ["sh -c x", "ls"]);
        assert_eq!(at(22).living()[1].command, "sh -c x", "not yet its own");
        assert_eq!(at(50).living().len(), 1);
        let (threads, lanes) = at(50).lanes(60);
        assert_eq!(threads[1].ended, Some((40, 0)));
        let lane = |tid, from, to, preempted| Stretch { tid, from, to, preempted };
        assert_eq!(lanes, [lane(100, 10, 25, true), lane(101, 25, 40, false), lane(100, 40, 60, false)]);
        assert_eq!((threads[0].steps, threads[1].steps, threads[1].parent), (35, 15, 100));
    }
}
