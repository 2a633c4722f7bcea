//! One to four long stalls: a thread is held up while the others go on, for a time a loaded host might take.

use super::{Strategy, canonical, random::inside};
use crate::{
    decision::{Action, Decision},
    facts::Facts,
    rng::Rng,
};

/// `fair-stall`: stalls of 100 µs to 3.3 s of virtual time.
#[derive(Clone, Copy, Debug)]
pub struct FairStall;

impl Strategy for FairStall {
    fn name(&self) -> String {
        "fair-stall".into()
    }

    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let mut rng = Rng::new(seed, index);
        let mut decisions = Vec::new();
        // Fair between threads, not between points: a thread with few points is as likely to be the slow one.
        let busy: Vec<u64> = facts.threads.iter().filter(|t| t.points > 0).map(|t| t.name).collect();
        for _ in 0..=rng.below(4) {
            let Some(&thread) = busy.get(rng.below(busy.len() as u64) as usize) else { break };
            let own: Vec<_> = facts.points.iter().filter(|point| point.place.thread == thread).collect();
            let point = own[rng.below(own.len() as u64) as usize];
            let mut place = point.place;
            if point.inside > 1 && rng.one_in(2) {
                place.offset = inside(point.inside, &mut rng);
            }
            decisions.push(Decision { place, action: Action::Stall(100_000 << rng.below(16)) });
        }
        canonical(decisions)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        format!(
            "n = {}, k = {}: {schedules} schedules of 1 to 4 long stalls, no bound",
            facts.thread_count(),
            facts.point_count()
        )
    }
}
