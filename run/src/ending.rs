//! How a run ended, from how the machine stopped and what init and the kernel said.

use rewind_platform::{
    job::{JobEnd, OutputHash},
    record::*,
};
use vmm::{EndReason, Stop};

use crate::outcome::End;

/// What a run's records say about how it went. Fed every default record.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Step and virtual time at which the job's first process was about to exec.
    pub started: Option<(u64, u64)>,
    /// Wait status of the job.
    pub status: Option<i32>,
    /// Why init could not do the job.
    pub failed: Option<String>,
    /// Declared outputs.
    pub outputs: Vec<OutputHash>,
    /// The kernel killed something for want of memory.
    pub out_of_memory: bool,
    /// The kernel's last words, once it panicked.
    panic: String,
}

impl Facts {
    /// Takes a record into account.
    pub fn add(&mut self, header: &RecordHeader, payload: &[u8]) {
        match header.kind {
            REC_REPORT => match header.flags & !FLAG_CUT {
                REPORT_STARTED => self.started = self.started.or(Some((header.step, header.now))),
                REPORT_ENDED => {
                    self.status = postcard::from_bytes::<JobEnd>(payload).ok().map(|end| end.status);
                }
                REPORT_OUTPUT => self.outputs.extend(postcard::from_bytes::<OutputHash>(payload).ok()),
                REPORT_FAILED => self.failed = Some(String::from_utf8_lossy(payload).into_owned()),
                _ => {}
            },
            REC_CONSOLE => {
                const WORDS: &[u8] = b"Out of memory: Killed process";
                self.out_of_memory |= payload.windows(WORDS.len()).any(|window| window == WORDS);
                let text = String::from_utf8_lossy(payload);
                if self.panic.is_empty() && text.contains("Kernel panic") {
                    self.panic = last_words(&text);
                }
            }
            _ => {}
        }
    }

    /// How the run ended; `None` if the machine can go on.
    pub fn end(&self, stop: &Stop) -> Option<End> {
        Some(match stop {
            Stop::End(EndReason::PowerOff | EndReason::Restart) => self.job_end(),
            Stop::End(EndReason::Panic { text }) => {
                // The text comes by the ring; by the port only where the ring was not up yet.
                let words = if self.panic.is_empty() { last_words(text) } else { self.panic.clone() };
                if words.contains("System is deadlocked on memory") {
                    End::OutOfMemory
                } else {
                    End::KernelPanic(words)
                }
            }
            Stop::End(EndReason::Stalled) => End::Stalled,
            Stop::End(EndReason::Idling) => End::Idling,
            Stop::Fault(fault) => End::GuestFault(fault.to_string()),
            _ => return None,
        })
    }

    fn job_end(&self) -> End {
        if let Some(failed) = &self.failed {
            return End::NotStarted(failed.clone());
        }
        // As wait(2) has it: the low seven bits are the signal, the next byte the status.
        match self.status {
            None => End::PoweredOff,
            Some(status) if status & 0x7f == 0 => End::Exited((status >> 8) as u8),
            Some(status) if self.out_of_memory && status & 0x7f == 9 => End::OutOfMemory,
            Some(status) => End::Killed((status & 0x7f) as u8),
        }
    }
}

/// The end of a panic's text that says what happened.
fn last_words(text: &str) -> String {
    let from = text.find("Kernel panic").unwrap_or(text.len().saturating_sub(400));
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    text[from..].lines().next().unwrap_or_default().trim().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(status: i32, console: &str) -> Facts {
        let mut facts = Facts::default();
        let header = |kind, flags| RecordHeader {
            len: 0,
            kind,
            flags,
            step: 5,
            now: 9,
            thread: 0,
            tid: 1,
            pid: 1,
            payload_len: 0,
            aux: 0,
        };
        facts.add(&header(REC_REPORT, REPORT_STARTED), &[]);
        facts.add(&header(REC_CONSOLE, 0), console.as_bytes());
        let end = postcard::to_allocvec(&JobEnd { status }).unwrap();
        facts.add(&header(REC_REPORT, REPORT_ENDED), &end);
        facts
    }

    #[test]
    fn ends() {
        let off = Stop::End(EndReason::PowerOff);
        assert_eq!(fed(3 << 8, "").end(&off), Some(End::Exited(3)));
        assert_eq!(fed(11 | 0x80, "").end(&off), Some(End::Killed(11)));
        let oom = "x: Out of memory: Killed process 7 (a)";
        assert_eq!(fed(9, oom).end(&off), Some(End::OutOfMemory));
        assert_eq!(fed(9, "").end(&off), Some(End::Killed(9)));
        assert_eq!(fed(0, oom).end(&off), Some(End::Exited(0)), "it was something else");
        assert_eq!(Facts::default().end(&off), Some(End::PoweredOff));
        assert_eq!(fed(0, "").end(&Stop::Step), None);
        let panic = Stop::End(EndReason::Panic { text: "é\nKernel panic - not syncing: x\n more".into() });
        assert_eq!(fed(0, "").end(&panic), Some(End::KernelPanic("Kernel panic - not syncing: x".into())));
    }
}
