//! Reads a run's records into a [`Trial`].

use std::collections::BTreeMap;

use rewind_platform::{
    control::{DECISION_LATE_TIMER, DECISION_STALL},
    job::{JobEnd, OutputHash},
    record::{self, RecordHeader},
};
use vmm::machine::RecordSink;

use crate::{
    property::{self, Coverage},
    trial::{Crash, Deed, FailedAssertion, Waiter},
};

/// Bytes of output kept for people.
const OUTPUT_KEPT: usize = 64 << 10;
/// Failed assertions, crashes and waiters kept, each: a hostile program must not fill memory.
const MOST_KEPT: usize = 4096;
/// Deeds kept.
const MOST_DEEDS: usize = 200_000;

/// Signals whose default action means that the program broke (signal(7)).
const CRASHES: [u32; 7] =
    [libc::SIGILL, libc::SIGTRAP, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];

/// Signal numbers of x86-64 Linux (signal(7)).
mod libc {
    pub(super) const SIGILL: u32 = 4;
    pub(super) const SIGTRAP: u32 = 5;
    pub(super) const SIGABRT: u32 = 6;
    pub(super) const SIGBUS: u32 = 7;
    pub(super) const SIGFPE: u32 = 8;
    pub(super) const SIGSEGV: u32 = 11;
    pub(super) const SIGSYS: u32 = 31;
}

/// A decision the guest says it applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Applied {
    /// Steps committed when it was.
    pub(crate) step: u64,
    /// Thread name.
    pub(crate) thread: u64,
    /// Own system call number.
    pub(crate) syscall: u64,
    /// Returns since.
    pub(crate) returns: u64,
    /// `DECISION_*`.
    pub(crate) kind: u16,
}

/// A line that its thread has not ended yet.
#[derive(Clone, Debug, Default)]
struct OpenLine {
    whole: blake3::Hasher,
    /// Hashes of its pieces added up: threads may write one line together, and share its pieces out as they come.
    pieces: u128,
}

/// Gathers what a [`crate::trial::Trial`] needs while records come in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observer {
    pub(crate) status: Option<i32>,
    pub(crate) not_started: Option<String>,
    pub(crate) out_of_memory: bool,
    output: [blake3::Hasher; 2],
    /// Only if lines may come in any order: their hashes added up, and lines not ended yet by thread.
    any_order: bool,
    lines: [u128; 2],
    open_lines: BTreeMap<(u64, usize), OpenLine>,
    /// Virtual time at which the last stall so far is over.
    pub(crate) held_until: u64,
    pub(crate) output_text: Vec<u8>,
    pub(crate) outputs: Vec<OutputHash>,
    pub(crate) failed: Vec<FailedAssertion>,
    pub(crate) coverage: Coverage,
    pub(crate) crashes: Vec<Crash>,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) applied: Vec<Applied>,
    pub(crate) forks: Vec<Fork>,
    pub(crate) started: Option<u64>,
    /// Virtual time when the job started.
    pub(crate) started_at: u64,
    pub(crate) want_deeds: bool,
    pub(crate) deeds: Vec<Deed>,
}

/// A clone inside the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fork {
    pub(crate) step: u64,
    pub(crate) parent: u64,
    pub(crate) child: u64,
    pub(crate) nth: u64,
    pub(crate) tid: u32,
    pub(crate) pid: u32,
}

/// A line's part of the sum.
fn sum(line: &blake3::Hasher) -> u128 {
    let mut half = [0; 16];
    half.copy_from_slice(&line.finalize().as_bytes()[..16]);
    u128::from_le_bytes(half)
}

fn word(payload: &[u8], index: usize) -> Option<u64> {
    Some(u64::from_le_bytes(payload.get(index * 8..index * 8 + 8)?.try_into().ok()?))
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl RecordSink for Observer {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        match header.kind {
            record::REC_CONSOLE => {
                let marker = b"Out of memory: Killed process";
                self.out_of_memory |= payload.windows(marker.len()).any(|window| window == marker);
            }
            record::REC_OUTPUT => {
                let fd = if header.aux == 2 { 1 } else { 0 };
                self.output[fd].update(payload);
                if self.any_order {
                    self.note_lines(header.thread, fd, payload);
                }
                let room = OUTPUT_KEPT.saturating_sub(self.output_text.len());
                self.output_text.extend_from_slice(&payload[..payload.len().min(room)]);
                self.deed(header, || format!("writes {:?} to {}", text(payload), ["stdout", "stderr"][fd]));
            }
            record::REC_EXEC => self.deed(header, || {
                let argv = payload.split(|byte| *byte == 0).skip(1).filter(|part| !part.is_empty());
                let argv: Vec<_> = argv.map(String::from_utf8_lossy).collect();
                format!("runs {}", argv.join(" "))
            }),
            record::REC_FORK => {
                if let (Some(child), Some(nth), Some(ids)) =
                    (word(payload, 0), word(payload, 1), word(payload, 2))
                    && self.forks.len() < MOST_DEEDS
                {
                    let (tid, pid) = (ids as u32, (ids >> 32) as u32);
                    let fork = Fork { step: header.step, parent: header.thread, child, nth, tid, pid };
                    self.forks.push(fork);
                    let what = if tid == pid { "starts a process" } else { "starts a thread" };
                    self.deed(header, || what.to_owned());
                }
            }
            record::REC_EXIT => self.deed(header, || match header.aux & 0x7f {
                0 => format!("exits with status {}", (header.aux >> 8) & 0xff),
                signal => format!("is ended by signal {signal}"),
            }),
            record::REC_SIGNAL => self.signal(header, payload),
            record::REC_OPEN => self.deed(header, || format!("opens {} for writing", text(payload))),
            record::REC_RENAME => self.deed(header, || {
                let mut parts = payload.split(|byte| *byte == 0).map(String::from_utf8_lossy);
                format!(
                    "renames {} to {}",
                    parts.next().unwrap_or_default(),
                    parts.next().unwrap_or_default()
                )
            }),
            record::REC_UNLINK => self.deed(header, || format!("removes {}", text(payload))),
            record::REC_MARK => self.deed(header, || format!("marks {}", text(payload).trim_end())),
            record::REC_PROPERTY => self.property(header, payload),
            record::REC_DECISION => {
                if let (Some(syscall), Some(returns)) = (word(payload, 0), word(payload, 1))
                    && self.applied.len() < MOST_DEEDS
                {
                    let kind = header.aux as u16;
                    let thread = header.thread;
                    if matches!(kind, DECISION_STALL | DECISION_LATE_TIMER) {
                        self.hold(header.now, word(payload, 2).unwrap_or(0));
                    }
                    self.applied.push(Applied { step: header.step, thread, syscall, returns, kind });
                }
            }
            record::REC_REPORT => self.report(header, payload),
            record::REC_WAITER => self.waiter(header, payload),
            _ => {}
        }
    }
}

impl Observer {
    pub(crate) fn new(want_deeds: bool, any_order: bool) -> Self {
        Observer { want_deeds, any_order, ..Observer::default() }
    }

    /// What same-outcome compares of both descriptors.
    pub(crate) fn output(&self) -> [[u8; 32]; 2] {
        if !self.any_order {
            return [self.output[0].finalize().into(), self.output[1].finalize().into()];
        }
        let mut lines = self.lines;
        for ((_, fd), open) in &self.open_lines {
            lines[*fd] = lines[*fd].wrapping_add(open.pieces);
        }
        lines.map(|sum| blake3::hash(&sum.to_le_bytes()).into())
    }

    fn note_lines(&mut self, thread: u64, fd: usize, payload: &[u8]) {
        for piece in payload.split_inclusive(|byte| *byte == b'\n') {
            if self.open_lines.len() >= MOST_KEPT && !self.open_lines.contains_key(&(thread, fd)) {
                return;
            }
            let open = self.open_lines.entry((thread, fd)).or_default();
            open.whole.update(piece);
            open.pieces = open.pieces.wrapping_add(sum(blake3::Hasher::new().update(piece)));
            if piece.ends_with(b"\n") {
                self.lines[fd] = self.lines[fd].wrapping_add(sum(&open.whole));
                *open = OpenLine::default();
            }
        }
    }

    /// A thread is held up from `now` on.
    pub(crate) fn hold(&mut self, now: u64, ns: u64) {
        self.held_until = self.held_until.max(now.saturating_add(ns));
    }

    fn deed(&mut self, header: &RecordHeader, words: impl FnOnce() -> String) {
        if self.want_deeds && header.thread != 0 && self.deeds.len() < MOST_DEEDS {
            let (step, thread, tid) = (header.step, header.thread, header.tid);
            self.deeds.push(Deed { step, thread, tid, words: words() });
        }
    }

    fn signal(&mut self, header: &RecordHeader, payload: &[u8]) {
        let handled = word(payload, 3).unwrap_or(1) != 0;
        self.deed(header, || {
            let how = if handled { "handles" } else { "gets" };
            format!("{how} signal {}", header.aux)
        });
        if !handled && CRASHES.contains(&header.aux) && self.crashes.len() < MOST_KEPT && header.thread != 0 {
            self.crashes.push(Crash {
                step: header.step,
                thread: header.thread,
                tid: header.tid,
                signal: header.aux as i32,
                address: word(payload, 1).unwrap_or(0),
                ip: word(payload, 2).unwrap_or(0),
            });
        }
    }

    fn property(&mut self, header: &RecordHeader, payload: &[u8]) {
        let Some(assertion) = property::parse(payload) else { return };
        self.coverage.note(&assertion);
        self.deed(header, || {
            let how = if assertion.holds { "holds" } else { "fails" };
            format!("{} {:?} {how} {}", assertion.kind.name(), assertion.name, assertion.details)
        });
        if assertion.fails() && self.failed.len() < MOST_KEPT {
            self.failed.push(FailedAssertion { step: header.step, tid: header.tid, assertion });
        }
    }

    fn report(&mut self, header: &RecordHeader, payload: &[u8]) {
        match header.flags {
            record::REPORT_STARTED => {
                self.started = Some(header.step);
                self.started_at = header.now;
            }
            record::REPORT_ENDED => {
                self.status = postcard::from_bytes::<JobEnd>(payload).ok().map(|end| end.status);
            }
            record::REPORT_OUTPUT => {
                if let Ok(output) = postcard::from_bytes(payload)
                    && self.outputs.len() < MOST_KEPT
                {
                    self.outputs.push(output);
                }
            }
            record::REPORT_FAILED => self.not_started = Some(String::from_utf8_lossy(payload).into_owned()),
            _ => {}
        }
    }

    fn waiter(&mut self, header: &RecordHeader, payload: &[u8]) {
        if self.waiters.len() >= MOST_KEPT {
            return;
        }
        let syscall = word(payload, 1).unwrap_or(u64::MAX) as i64;
        let rest = payload.get(40..).unwrap_or_default();
        let mut parts = rest.splitn(3, |byte| *byte == 0);
        let channel = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let comm = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let tail = parts.next().unwrap_or_default();
        let futex = word(tail, 0).map(|at| (at, word(tail, 1).filter(|value| *value != u64::MAX)));
        self.waiters.push(Waiter { thread: header.thread, tid: header.tid, comm, syscall, channel, futex });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is compared after these writes to standard output: thread, text.
    fn output(writes: &[(u64, &str)]) -> [[u8; 32]; 2] {
        let mut observer = Observer::new(false, true);
        for (thread, text) in writes {
            let header = RecordHeader {
                len: 0,
                kind: record::REC_OUTPUT,
                flags: 0,
                step: 1,
                now: 1,
                thread: *thread,
                tid: 1,
                pid: 1,
                payload_len: text.len() as u32,
                aux: 1,
            };
            observer.record(&header, text.as_bytes());
        }
        observer.output()
    }

    #[test]
    fn lines_in_any_order_are_each_threads_own() {
        let lines = output(&[(1, "one\n"), (2, "two\nthree\n")]);
        assert_eq!(lines, output(&[(2, "tw"), (1, "on"), (2, "o\n"), (2, "three\n"), (1, "e\n")]));
        assert_ne!(lines, output(&[(1, "one\n"), (2, "two\n")]));
        assert_ne!(lines, output(&[(1, "one\n"), (2, "two\nthreo\n")]));
    }

    #[test]
    fn a_line_that_threads_write_together_may_be_shared_out_between_them() {
        let dots = output(&[(1, "."), (2, "."), (2, "."), (3, "done\n")]);
        assert_eq!(dots, output(&[(1, "."), (1, "."), (1, "."), (3, "done\n")]));
        assert_ne!(dots, output(&[(1, "."), (1, "."), (3, "done\n")]));
    }
}
