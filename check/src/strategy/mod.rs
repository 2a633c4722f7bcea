//! Schedule strategies: one file each, behind one narrow interface.

mod accesses;
mod fair_stall;
mod mix;
mod pct;
mod random;

use std::{fmt, str::FromStr};

pub use accesses::Accesses;
pub use fair_stall::FairStall;
pub use mix::Mix;
pub use pct::Pct;
pub(crate) use pct::in_order;
pub use random::Random;

use crate::{
    decision::{Action, Decision, Place},
    facts::Facts,
};

/// Decisions of one schedule at most, about; the guest's table has room for 4095.
const MOST_DECISIONS: usize = 1500;

/// Makes schedules. A schedule is a pure function of (seed, index, facts): no state between calls, so that any
/// number of jobs makes the same ones.
pub trait Strategy: Send + Sync {
    /// The decisions of schedule `index` (from 1; 0 is the unperturbed run). Sorted, no place twice with one action.
    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision>;

    /// As the user names it.
    fn name(&self) -> String;

    /// The strategy that makes schedule `index`, where this one is made of several.
    fn name_at(&self, _index: u64, _facts: &Facts) -> String {
        self.name()
    }

    /// What can be promised after `schedules` schedules, in words, with n and k.
    fn promise(&self, facts: &Facts, schedules: u64) -> String;

    /// Does it need [`Facts::accesses`]?
    fn wants_accesses(&self) -> bool {
        false
    }
}

/// Which strategy, as the user names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrategyName {
    /// `mix`
    Mix,
    /// `random`
    Random,
    /// `pct:D`
    Pct(u32),
    /// `fair-stall`
    FairStall,
    /// `accesses`
    Accesses,
}

impl StrategyName {
    /// The strategy itself.
    pub fn make(self) -> Box<dyn Strategy> {
        match self {
            StrategyName::Mix => Box::new(Mix),
            StrategyName::Random => Box::new(Random),
            StrategyName::Pct(depth) => Box::new(Pct { depth }),
            StrategyName::FairStall => Box::new(FairStall),
            StrategyName::Accesses => Box::new(Accesses),
        }
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.make().name())
    }
}

impl FromStr for StrategyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mix" => Ok(StrategyName::Mix),
            "random" => Ok(StrategyName::Random),
            "fair-stall" => Ok(StrategyName::FairStall),
            "accesses" => Ok(StrategyName::Accesses),
            _ => match text.strip_prefix("pct:").map(str::parse::<u32>) {
                Some(Ok(depth @ 1..=16)) => Ok(StrategyName::Pct(depth)),
                Some(_) => Err(format!("{text}: the depth of pct is a number from 1 to 16, as in pct:3")),
                None => Err(format!("{text} is not a strategy: mix, random, pct:D, fair-stall or accesses")),
            },
        }
    }
}

/// Sorts and drops repeats, so that equal sets of decisions are equal lists.
fn canonical(mut decisions: Vec<Decision>) -> Vec<Decision> {
    decisions.sort_unstable();
    decisions.dedup();
    decisions
}

/// A thread that makes far more system calls than it ever did waits for somebody by spinning (`sched_yield`, a short
/// read): under ranks it would never let a lower one run. It drops below all others, again and again.
fn yielding(facts: &Facts) -> Vec<Decision> {
    const BELOW_ALL: u32 = 0xd000_0000;
    const TIMES: u32 = 12;
    /// Threads of one program cared for.
    const THREADS: usize = 64;
    let mut decisions = Vec::new();
    for thread in facts.threads.iter().filter(|thread| thread.points > 0).take(THREADS) {
        let own = facts.points.iter().map(|point| point.place).filter(|place| place.thread == thread.name);
        let last = own.map(|place| place.syscall).max().unwrap_or(0);
        for n in 0..TIMES {
            // Not twice the same distance: two threads that spin do not keep step.
            let syscall = last + 40 + (u64::from(n) * u64::from(n) + 1) * 24;
            let place = Place { thread: thread.name, syscall, returns: 0, offset: 0 };
            decisions.push(Decision { place, action: Action::Rank(BELOW_ALL + n) });
        }
    }
    decisions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for name in ["mix", "random", "pct:3", "fair-stall", "accesses"] {
            assert_eq!(name.parse::<StrategyName>().unwrap().to_string(), name);
        }
        for name in ["pct", "pct:0", "pct:x", "dfs"] {
            assert!(name.parse::<StrategyName>().is_err());
        }
    }
}
