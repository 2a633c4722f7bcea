//! Decisions at places.

pub use run::decision::{Action, Decision, Place};

/// The rank of a thread nobody ranked.
pub const DEFAULT_RANK: u32 = 0x8000_0000;

/// In words, as the report has it: "is preempted", "is held up for 1.5 ms".
pub fn words(action: Action) -> String {
    match action {
        Action::Preempt => "is preempted".into(),
        Action::Stall(ns) => format!("is held up for {}", duration(ns)),
        Action::LateTimer(ns) => format!("gets the next timer {} late", duration(ns)),
        Action::Rank(rank) if rank < DEFAULT_RANK => format!("gets priority {}", rank_number(rank)),
        Action::Rank(rank) => format!("drops to the low priority {}", rank_number(rank)),
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
