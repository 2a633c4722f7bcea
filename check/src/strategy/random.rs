//! Preemptions, stalls and late timers strewn at random, from dense to sparse by turns.

use super::{Strategy, canonical};
use crate::{
    decision::{Action, Decision},
    facts::Facts,
    rng::Rng,
};

/// `random`: schedule i preempts at about one point in 2, 4, 8, ... 256 (by turns), and stalls a few threads.
#[derive(Clone, Copy, Debug)]
pub struct Random;

/// A stall of 10 µs times a power of two up to this one: 10 µs to 1.3 s.
const STALL_DOUBLINGS: u64 = 17;

impl Strategy for Random {
    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let mut rng = Rng::new(seed, index);
        let every = 2u64 << (index % 8);
        let mut decisions = Vec::new();
        for point in &facts.points {
            if rng.one_in(every) {
                decisions.push(Decision { place: point.place, action: Action::Preempt });
            } else if rng.one_in(every * 8) {
                let ns = 10_000 << rng.below(STALL_DOUBLINGS + 1);
                let action = if rng.one_in(4) { Action::LateTimer(ns) } else { Action::Stall(ns) };
                decisions.push(Decision { place: point.place, action });
            }
        }
        if decisions.is_empty() && !facts.points.is_empty() {
            let at = rng.below(facts.point_count()) as usize;
            decisions.push(Decision { place: facts.points[at].place, action: Action::Preempt });
        }
        canonical(decisions)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        format!(
            "n = {}, k = {}: {schedules} random schedules, no bound (for one, use --strategy pct:2)",
            facts.thread_count(),
            facts.point_count()
        )
    }
}
