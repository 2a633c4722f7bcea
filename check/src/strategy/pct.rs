//! Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte, ASPLOS 2010): random
//! priorities, and d - 1 random places where the running thread drops to the lowest.

use super::{Strategy, canonical};
use crate::{
    decision::{Action, Decision, Place},
    facts::Facts,
    rng::Rng,
};

/// `pct:D`.
#[derive(Clone, Copy, Debug)]
pub struct Pct {
    /// d: the depth of bug looked for, at least 1.
    pub depth: u32,
}

/// Ranks of threads at their start: above (before) the default.
const START: u32 = 0x4000_0000;
/// Ranks after a change: below all others, the later change the lower.
const CHANGED: u32 = 0xc000_0000;

impl Strategy for Pct {
    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let mut rng = Rng::new(seed, index);
        let mut decisions = Vec::new();
        let mut order: Vec<usize> =
            (0..facts.threads.len()).filter(|&i| facts.threads[i].points > 0).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i as u64 + 1) as usize);
        }
        for (rank, &thread) in order.iter().enumerate() {
            let name = facts.threads[thread].name;
            if let Some(first) = facts.points.iter().find(|point| point.place.thread == name) {
                let action = Action::Rank(START + rank as u32);
                decisions.push(Decision { place: first.place, action });
            }
        }
        let mut changes: Vec<Place> = Vec::new();
        for _ in 1..self.depth {
            let at = rng.below(facts.point_count()) as usize;
            if let Some(point) = facts.points.get(at) {
                changes.push(point.place);
            }
        }
        changes.sort_unstable();
        changes.dedup();
        for (i, place) in changes.into_iter().enumerate() {
            // A thread's start rank at the same place would be applied first or last by chance: the change wins.
            decisions.retain(|decision| decision.place != place);
            decisions.push(Decision { place, action: Action::Rank(CHANGED + i as u32) });
        }
        canonical(decisions)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        let (n, k, d) = (facts.thread_count(), facts.point_count(), self.depth);
        let missed = missed(n, k, d, schedules);
        format!(
            "n = {n}, k = {k}, d = {d}: a bug of depth {d} is missed with probability at most {missed:.3} \
             after {schedules} schedules"
        )
    }
}

/// (1 - 1 / (n k^(d-1)))^schedules.
fn missed(n: u64, k: u64, d: u32, schedules: u64) -> f64 {
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
    }
}
