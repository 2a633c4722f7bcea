//! Preempts right before or right after an access to a location two threads share: the places where races with no
//! system call in them show.

use super::{Strategy, canonical};
use crate::{
    decision::{Action, Decision},
    facts::Facts,
    rng::Rng,
};

/// `accesses`. Needs an engine that stops at exact instructions and sees every access.
#[derive(Clone, Copy, Debug)]
pub struct Accesses;

impl Strategy for Accesses {
    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let mut rng = Rng::new(seed, index);
        let mut decisions = Vec::new();
        if facts.accesses.is_empty() {
            return super::Random.schedule(seed, index, facts);
        }
        for _ in 0..=rng.below(3) {
            // First a location, then one access of it: a location touched in a loop is not preferred.
            let mut addresses: Vec<u64> = facts.accesses.iter().map(|access| access.address).collect();
            addresses.sort_unstable();
            addresses.dedup();
            let address = addresses[rng.below(addresses.len() as u64) as usize];
            let own: Vec<_> = facts.accesses.iter().filter(|access| access.address == address).collect();
            let mut place = own[rng.below(own.len() as u64) as usize].place;
            place.offset += rng.below(2);
            decisions.push(Decision { place, action: Action::Preempt });
        }
        // Sometimes with a preemption at a commit, so that the two threads get near each other at all.
        if rng.one_in(2) && !facts.points.is_empty() {
            let at = rng.below(facts.point_count()) as usize;
            decisions.push(Decision { place: facts.points[at].place, action: Action::Preempt });
        }
        canonical(decisions)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        format!(
            "n = {}, k = {}, {} accesses to shared memory: {schedules} schedules with 1 to 4 preemptions, no bound",
            facts.thread_count(),
            facts.point_count(),
            facts.accesses.len()
        )
    }

    fn wants_accesses(&self) -> bool {
        true
    }
}
