//! Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010): random
//! priorities, and d - 1 random places where the running thread drops to the lowest.

use super::{Strategy, canonical, yielding};
use crate::{
    decision::{Action, Decision, FIRST_RANK, Place},
    facts::Facts,
    rng::Rng,
};

/// `pct:D`.
#[derive(Clone, Copy, Debug)]
pub struct Pct {
    /// d: the depth of bug looked for, at least 1.
    pub depth: u32,
}

/// Ranks of threads at their start. They come after the default: a new thread goes first to its own first commit,
/// where it gets its rank before it runs an instruction.
pub(super) const START: u32 = FIRST_RANK;
/// Ranks after a change: after all others, the later change the lower.
pub(super) const CHANGED: u32 = 0xc000_0000;

/// Ranks every thread, from its first commit, in this order.
pub(crate) fn in_order(facts: &Facts, names: impl Iterator<Item = u64>) -> Vec<Decision> {
    let first = |name| facts.points.iter().find(|point| point.place.thread == name);
    names
        .filter_map(first)
        .enumerate()
        .map(|(rank, point)| Decision { place: point.place, action: Action::Rank(START + rank as u32) })
        .collect()
}

impl Strategy for Pct {
    fn name(&self) -> String {
        format!("pct:{}", self.depth)
    }

    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let mut rng = Rng::new(seed, index);
        let mut order: Vec<u64> =
            facts.threads.iter().filter(|thread| thread.points > 0).map(|thread| thread.name).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let mut decisions = in_order(facts, order.into_iter());
        let points = facts.choices().collect::<Vec<_>>();
        let mut changes: Vec<Place> = Vec::new();
        for _ in 1..self.depth {
            let at = rng.below(points.len() as u64) as usize;
            changes.extend(points.get(at));
        }
        for (i, place) in changes.into_iter().enumerate() {
            // A thread's start rank at the same place would be applied first or last by chance: the change wins.
            decisions.retain(|decision| decision.place != place);
            decisions.push(Decision { place, action: Action::Rank(CHANGED + i as u32) });
        }
        decisions.extend(yielding(facts));
        canonical(decisions)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        let (n, k, d) = (facts.thread_count(), facts.point_count(), self.depth);
        format!(
            "n = {n}, k = {k}, d = {d}: a bug of depth {d} is missed with probability at most {} \
             after {schedules} schedules",
            probability(missed(n, k, d, schedules))
        )
    }
}

/// Rounded up, so that "at most" stays true.
pub(super) fn probability(p: f64) -> String {
    format!("{:.3}", ((p * 1000.0).ceil() / 1000.0).min(1.0))
}

/// (1 - 1 / (n k^(d-1)))^schedules.
pub(super) fn missed(n: u64, k: u64, d: u32, schedules: u64) -> f64 {
    let once = 1.0 / (n.max(1) as f64 * (k.max(1) as f64).powi(d as i32 - 1));
    (1.0 - once).powf(schedules as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_paper_s() {
        assert!((missed(2, 50, 2, 299) - 0.0496).abs() < 0.001);
        assert!((missed(2, 20, 1, 5) - 0.03125).abs() < 1e-9);
        assert_eq!(probability(0.0491), "0.050");
    }
}
