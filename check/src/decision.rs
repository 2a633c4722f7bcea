//! Decisions at places.

use rewind_platform::control;
use serde::{Deserialize, Serialize};

/// Where a decision happens: named by the thread and that thread's own progress, so that taking one decision
/// away does not rename the others (`docs/architecture.md`, "place").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The thread's name: a hash of its place in the creation tree.
    pub thread: u64,
    /// Its own system call number.
    pub syscall: u64,
    /// Its commits to user mode since that system call was entered.
    pub returns: u32,
    /// User instructions retired after that commit; 0 = at the commit itself.
    pub offset: u64,
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

/// The rank of a thread nobody ranked.
pub const DEFAULT_RANK: u32 = 0x8000_0000;

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

    /// In words, as the report has it: "is preempted", "sleeps 1.5 ms".
    pub fn words(self) -> String {
        match self {
            Action::Preempt => "is preempted".into(),
            Action::Stall(ns) => format!("is held up for {}", duration(ns)),
            Action::LateTimer(ns) => format!("gets the next timer {} late", duration(ns)),
            Action::Rank(rank) if rank < DEFAULT_RANK => format!("gets priority {}", rank_number(rank)),
            Action::Rank(rank) => format!("drops to the low priority {}", rank_number(rank)),
        }
    }
}

fn rank_number(rank: u32) -> u32 {
    rank & 0x0fff_ffff
}

/// A virtual duration for people.
pub fn duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", decimal(ns, 1_000)),
        1_000_000..1_000_000_000 => format!("{} ms", decimal(ns, 1_000_000)),
        _ => format!("{} s", decimal(ns, 1_000_000_000)),
    }
}

fn decimal(value: u64, unit: u64) -> String {
    let tenths = (value % unit) * 10 / unit;
    if tenths == 0 { format!("{}", value / unit) } else { format!("{}.{tenths}", value / unit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(999), "999 ns");
        assert_eq!(duration(1_500), "1.5 µs");
        assert_eq!(duration(20_000_000), "20 ms");
        assert_eq!(duration(3_000_000_000), "3 s");
    }
}
