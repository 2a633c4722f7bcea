//! Decisions at places.

pub use run::decision::{Action, Decision, Place};

/// Ranks given come after those of threads nobody ranked; this is the first of them.
pub const FIRST_RANK: u32 = 0x9000_0000;

/// In words, as the report has it: "is preempted", "is held up for 1.5 ms". `ranks` is how many decisions of the set
/// give a rank.
pub fn words(action: Action, ranks: usize) -> String {
    match action {
        Action::Preempt => "is preempted".into(),
        Action::Stall(ns) => format!("is held up for {}", duration(ns)),
        Action::LateTimer(ns) => format!("gets the next timer {} late", duration(ns)),
        Action::Rank(_) if ranks == 1 => "from here on runs only when the others wait".into(),
        Action::Rank(rank) => format!(
            "from here on runs only when the others wait (number {} of {ranks} such threads)",
            u64::from(rank.saturating_sub(FIRST_RANK)) + 1
        ),
    }
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
