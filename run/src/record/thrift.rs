//! When a keyframe is worth its bytes. What it costs is what the home grows by: where little is touched the spacing is the
//! closest; programs that come and go and leave much memory behind get a keyframe the later the more it would cost; one
//! that works on for long, which is where somebody will look for a write far back, may cost more.

use std::time::Duration;

/// Processor time of the machine between keyframes unless asked otherwise, where they are cheap: a seek runs at most
/// about that long.
pub const SPACING: Duration = Duration::from_millis(250);

/// How often keyframes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyframes {
    /// Never.
    Never,
    /// [`SPACING`] apart, or further where they are expensive.
    Thrifty,
    /// As much processor time apart, whatever they cost.
    Every(Duration),
}

/// Bytes that a keyframe may cost in any case,
const AT_ONCE: u64 = 64 << 10;
/// and for each second of processor time that passed without one.
const PER_SECOND: u64 = 64 << 10;
/// More than that for the first of a run: what it did to start, which the later ones build on.
pub(super) const FIRST: u64 = 256 << 10;
/// The longest processor time without one, whatever it costs.
const LONGEST: Duration = Duration::from_secs(8);
/// Processor time since a program was last started after which those that run are at work for long,
const SETTLED: Duration = Duration::from_secs(1);
/// what a keyframe may cost another second later, and four times as much in twice that: a compiler that takes two seconds on
/// a slow host is still one that comes and goes, and what takes five is not.
const AT_WORK_SQUARED: u64 = 256 << 10;
/// The most it may cost then.
const AT_WORK: u64 = 2 << 20;

/// May a keyframe of this cost be kept after so long without one, so long after a program was started?
pub(super) fn is_worth(cost: u64, waited: Duration, settled: Duration) -> bool {
    waited >= LONGEST
        || cost <= AT_ONCE + for_time(PER_SECOND, waited)
        || settled.checked_sub(SETTLED).is_some_and(|more| cost <= at_work(more))
}

fn at_work(more: Duration) -> u64 {
    for_time(for_time(AT_WORK_SQUARED, more), more).min(AT_WORK)
}

fn for_time(per_second: u64, time: Duration) -> u64 {
    (time.as_millis() as u64).saturating_mul(per_second) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_bounded_by_the_time_that_passed() {
        let after = Duration::from_millis;
        let new = Duration::ZERO;
        assert!(is_worth(80 << 10, SPACING, new) && !is_worth(81 << 10, SPACING, new));
        assert!(!is_worth(330 << 10, after(4000), new) && is_worth(330 << 10, after(4200), new));
        assert!(!is_worth(1 << 40, LONGEST - after(1), SETTLED) && is_worth(1 << 40, LONGEST, new));
        assert!(!is_worth(1 << 20, SPACING, after(2999)) && is_worth(1 << 20, SPACING, after(3000)));
        assert!(is_worth(2 << 20, SPACING, after(9000)) && !is_worth(3 << 20, SPACING, after(60_000)));
        assert!(is_worth(u64::MAX, Duration::MAX, Duration::MAX));
    }
}
