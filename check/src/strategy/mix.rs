//! All strategies by turns: no one kind of race is waited for.

use super::{Accesses, FairStall, Pct, Random, Strategy, pct};
use crate::{decision::Decision, facts::Facts};

/// `mix`, the default.
#[derive(Clone, Copy, Debug)]
pub struct Mix;

/// Schedules of one turn.
const TURN: u64 = 8;

impl Mix {
    /// The strategy of a schedule, and that strategy's own number for it.
    fn turn(index: u64, facts: &Facts) -> (Box<dyn Strategy>, u64) {
        let (round, at) = ((index - 1) / TURN, (index - 1) % TURN);
        // A program without shared memory gets more of the order of system calls instead.
        let shared = !facts.accesses.is_empty();
        match at {
            0 => (Box::new(Random), 3 * round),
            1 if shared => (Box::new(Accesses), 3 * round),
            // At least the places before calls, for signals.
            1 if !facts.stops.is_empty() && round % 2 == 1 => (Box::new(Accesses), round),
            1 => (Box::new(Pct { depth: 1 }), round),
            2 => (Box::new(Pct { depth: 2 }), 2 * round),
            3 => (Box::new(Random), 3 * round + 1),
            4 if shared => (Box::new(Accesses), 3 * round + 1),
            4 => (Box::new(Pct { depth: 2 }), 2 * round + 1),
            5 => (Box::new(FairStall), round),
            6 if shared => (Box::new(Accesses), 3 * round + 2),
            6 => (Box::new(Pct { depth: 3 }), round),
            _ => (Box::new(Random), 3 * round + 2),
        }
    }

    /// How many of the first `schedules` are pct:2.
    fn bounded(schedules: u64, facts: &Facts) -> u64 {
        let in_turn = |n| (1..=n).filter(|i| Mix::turn(*i, facts).0.name() == "pct:2").count() as u64;
        schedules / TURN * in_turn(TURN) + in_turn(schedules % TURN)
    }
}

impl Strategy for Mix {
    fn name(&self) -> String {
        "mix".into()
    }

    fn name_at(&self, index: u64, facts: &Facts) -> String {
        Mix::turn(index.max(1), facts).0.name()
    }

    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let (strategy, own) = Mix::turn(index.max(1), facts);
        strategy.schedule(seed, own, facts)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        let (n, k, bounded) = (facts.thread_count(), facts.point_count(), Mix::bounded(schedules, facts));
        format!(
            "n = {n}, k = {k}, d = 2: a bug of depth 2 is missed with probability at most {} after {schedules} \
             schedules ({bounded} of them pct:2)",
            pct::probability(pct::missed(n, k, 2, bounded))
        )
    }
}
