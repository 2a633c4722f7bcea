//! Decisions at places: how a schedule deviates from the run nobody disturbs.

use rewind_platform::{
    control::{self, DecisionEntry},
    record::REC_DECISION,
};
use serde::{Deserialize, Serialize};

use crate::{
    describe::long,
    spec::Schedule,
    trace::{TraceError, TraceReader},
};

/// Where a decision happens: named by the thread and that thread's own progress, so that taking one decision
/// away does not rename the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The thread's name: a hash of its place in the creation tree. As text (JSON) sixteen hexadecimal digits, as events
    /// have it; a number is read too.
    #[serde(with = "name")]
    pub thread: u64,
    /// Its own system call number.
    pub syscall: u64,
    /// Its commits to user mode since that system call was entered.
    #[serde(default)]
    pub returns: u32,
    /// User instructions retired after that commit; 0 = at the commit itself.
    #[serde(default)]
    pub offset: u64,
}

/// A thread's name: eight bytes in a spec, hexadecimal digits in a text.
mod name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Text {
        Number(u64),
        Digits(String),
    }

    pub(super) fn serialize<S: Serializer>(thread: &u64, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            to.serialize_str(&format!("{thread:016x}"))
        } else {
            to.serialize_u64(*thread)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        if !from.is_human_readable() {
            return u64::deserialize(from);
        }
        match Text::deserialize(from) {
            Ok(Text::Number(number)) => Ok(number),
            Ok(Text::Digits(digits)) => {
                let hex = digits.strip_prefix("0x").unwrap_or(&digits);
                let only_digits = hex.len() <= 16 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
                u64::from_str_radix(hex, 16).ok().filter(|_| only_digits).ok_or_else(|| {
                    D::Error::custom(format!("{digits:?} is no thread: sixteen hexadecimal digits, as `rewind events --json` has them"))
                })
            }
            Err(_) => Err(D::Error::custom(
                "a thread is sixteen hexadecimal digits in quotes, as `rewind events --json` has them, or a number",
            )),
        }
    }
}

/// What a decision does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The thread runs last until another user thread of the job has committed a step.
    Preempt,
    /// The thread sleeps this many nanoseconds of virtual time.
    Stall(u64),
    /// The next timer expiry is this many nanoseconds late.
    LateTimer(u64),
    /// The thread's rank becomes this (lower runs first).
    Rank(u32),
}

/// One deviation a schedule makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Decision {
    /// Where.
    pub place: Place,
    /// What.
    pub action: Action,
}

impl Action {
    /// Kind and argument as the decision table has them.
    pub fn encode(self) -> (u16, u64) {
        match self {
            Action::Preempt => (control::DECISION_PREEMPT, 0),
            Action::Stall(ns) => (control::DECISION_STALL, ns),
            Action::LateTimer(ns) => (control::DECISION_LATE_TIMER, ns),
            Action::Rank(rank) => (control::DECISION_RANK, u64::from(rank)),
        }
    }
}

impl Action {
    /// Virtual nanoseconds it takes away, at most.
    pub fn delay(self) -> u64 {
        match self {
            Action::Stall(ns) | Action::LateTimer(ns) => ns,
            Action::Preempt | Action::Rank(_) => 0,
        }
    }

    /// Does it change a thread's rank?
    pub fn is_rank(self) -> bool {
        matches!(self, Action::Rank(_))
    }
}

impl std::fmt::Display for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Place { thread, syscall, returns, offset } = self.place;
        match self.action {
            Action::Preempt => f.write_str("preempt")?,
            Action::Stall(ns) => write!(f, "stall for {ns} ns")?,
            Action::LateTimer(ns) => write!(f, "timer late by {ns} ns")?,
            Action::Rank(rank) => write!(f, "rank {rank}")?,
        }
        write!(f, " at thread {thread:016x}, system call {syscall}, return {returns}")?;
        if offset > 0 { write!(f, ", instruction {offset}") } else { Ok(()) }
    }
}

impl Decision {
    /// The armed entry of the decision table for a decision at a commit. For one with an instruction offset
    /// the entry is the stop at its commit, from which the monitor goes on by instructions.
    pub fn entry(&self) -> DecisionEntry {
        let (kind, arg) =
            if self.place.offset == 0 { self.action.encode() } else { (control::DECISION_STOP, 0) };
        DecisionEntry {
            thread: self.place.thread,
            syscall: self.place.syscall,
            returns: self.place.returns,
            kind,
            state: control::SLOT_ARMED,
            arg,
        }
    }
}

/// The decisions of the segment of `schedule` in force at `step` that had been taken when the trace had so many default
/// records. A thread that is held up is still at its place: armed again, its decision would be taken twice.
pub fn taken(
    schedule: &Schedule,
    step: u64,
    trace: &TraceReader,
    records: u64,
) -> Result<Vec<DecisionEntry>, TraceError> {
    let Some(from) = schedule.from(step) else { return Ok(Vec::new()) };
    let mut taken = Vec::new();
    for record in trace.iter().take(records as usize) {
        let record = record?;
        let header = &record.header;
        if header.kind == REC_DECISION && header.step >= from {
            taken.push(DecisionEntry {
                thread: header.thread,
                syscall: long(&record.payload, 0),
                returns: long(&record.payload, 1) as u32,
                kind: header.aux as u16,
                state: control::SLOT_DONE,
                arg: long(&record.payload, 2),
            });
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_read_as_events_show_it() {
        let place = |text: &str| serde_json::from_str::<Place>(text).map_err(|error| error.to_string());
        let whole = place(r#"{"thread":"00c0ffee00c0ffee","syscall":7,"returns":0,"offset":0}"#).unwrap();
        assert_eq!(whole, Place { thread: 0x00c0_ffee_00c0_ffee, syscall: 7, returns: 0, offset: 0 });
        assert_eq!(place(r#"{"thread":"0xc0ffee00c0ffee","syscall":7}"#), Ok(whole));
        assert_eq!(place(&format!(r#"{{"thread":{},"syscall":7}}"#, whole.thread)), Ok(whole));
        assert_eq!(place(&serde_json::to_string(&whole).unwrap()), Ok(whole));
        for wrong in ["\"\"", "\"xyz\"", "\"+12\"", "-1", "1.5", "\"00c0ffee00c0ffee0\"", "null"] {
            let error = place(&format!(r#"{{"thread":{wrong},"syscall":7}}"#)).unwrap_err();
            assert!(error.contains("sixteen hexadecimal digits"), "{wrong}: {error}");
        }
        assert!(place(r#"{"thread":1,"syscall":7,"ofset":3}"#).unwrap_err().contains("ofset"));
        let decision = Decision { place: Place { offset: 3, ..whole }, action: Action::Stall(9) };
        let words = "stall for 9 ns at thread 00c0ffee00c0ffee, system call 7, return 0, instruction 3";
        assert_eq!(decision.to_string(), words);
        // In a spec it is what it always was.
        assert_eq!(postcard::to_allocvec(&Place { thread: 300, ..whole }).unwrap(), [0xac, 2, 7, 0, 0]);
    }
}
