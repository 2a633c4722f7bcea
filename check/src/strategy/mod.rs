//! Schedule strategies: one file each, behind one narrow interface.

mod accesses;
mod fair_stall;
mod pct;
mod random;

use std::{fmt, str::FromStr};

pub use accesses::Accesses;
pub use fair_stall::FairStall;
pub use pct::Pct;
pub use random::Random;

use crate::{decision::Decision, facts::Facts};

/// Makes schedules. A schedule is a pure function of (seed, index, facts): no state between calls, so that any
/// number of jobs makes the same ones.
pub trait Strategy: Send + Sync {
    /// The decisions of schedule `index` (from 1; 0 is the unperturbed run). Sorted, no place twice with one action.
    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision>;

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
            StrategyName::Random => Box::new(Random),
            StrategyName::Pct(depth) => Box::new(Pct { depth }),
            StrategyName::FairStall => Box::new(FairStall),
            StrategyName::Accesses => Box::new(Accesses),
        }
    }
}

impl fmt::Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StrategyName::Random => write!(f, "random"),
            StrategyName::Pct(depth) => write!(f, "pct:{depth}"),
            StrategyName::FairStall => write!(f, "fair-stall"),
            StrategyName::Accesses => write!(f, "accesses"),
        }
    }
}

impl FromStr for StrategyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "random" => Ok(StrategyName::Random),
            "fair-stall" => Ok(StrategyName::FairStall),
            "accesses" => Ok(StrategyName::Accesses),
            _ => match text.strip_prefix("pct:").map(str::parse::<u32>) {
                Some(Ok(depth @ 1..=16)) => Ok(StrategyName::Pct(depth)),
                Some(_) => Err(format!("{text}: the depth of pct is a number from 1 to 16, as in pct:3")),
                None => Err(format!("{text} is not a strategy: random, pct:D, fair-stall or accesses")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for name in ["random", "pct:3", "fair-stall", "accesses"] {
            assert_eq!(name.parse::<StrategyName>().unwrap().to_string(), name);
        }
        for name in ["pct", "pct:0", "pct:x", "dfs"] {
            assert!(name.parse::<StrategyName>().is_err());
        }
    }
}
