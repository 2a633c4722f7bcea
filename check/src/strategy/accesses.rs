//! Stops a thread right before or right after an access to a location another thread uses too: the places where
//! races with no system call in them show.

use super::{Strategy, canonical, random::stall};
use crate::{
    decision::{Action, Decision},
    facts::{ByCode, Facts, SharedAccess},
    rng::Rng,
};

/// `accesses`. Needs an engine that stops at exact instructions and sees every access.
#[derive(Clone, Copy, Debug)]
pub struct Accesses;

/// First how near the code is to the program's source, then an instruction, then one of its accesses: code that runs in
/// a loop is not preferred.
fn choose<'a>(facts: &'a Facts, by_code: &ByCode, rng: &mut Rng) -> Option<&'a SharedAccess> {
    /// Of each nearness, if there is one.
    const SHARES: [u64; 4] = [4, 2, 2, 1];
    let mut at =
        rng.below(SHARES.iter().zip(by_code).filter(|(_, codes)| !codes.is_empty()).map(|(n, _)| n).sum());
    for (share, codes) in SHARES.iter().zip(by_code).filter(|(_, codes)| !codes.is_empty()) {
        if at < *share {
            let accesses = &codes[rng.below(codes.len() as u64) as usize];
            return facts.accesses.get(accesses[rng.below(accesses.len() as u64) as usize]);
        }
        at -= share;
    }
    None
}

/// One thread held up at one place, long enough for the others to get as far as they can without it; every place once.
/// Every other time another stop or two, which seldom keep the others from that.
fn single(facts: &Facts, seed: u64, n: u64) -> Option<Vec<Decision>> {
    /// Also past what others may sleep for.
    const STALLS: [u64; 4] = [30_000_000, 30_000_000, 30_000_000, 1_000_000_000];
    let stop = facts.stops.get(seed, n)?;
    let mut decisions = facts.learned.get(stop.run as usize)?.clone();
    let mut rng = Rng::new(seed, n);
    decisions.push(Decision { place: stop.place, action: Action::Stall(STALLS[rng.below(4) as usize]) });
    for _ in 0..[0, 0, 1, 2][rng.below(4) as usize] {
        decisions.extend(at_random(facts, &facts.by_code[stop.run as usize], &mut rng));
    }
    Some(canonical(decisions))
}

/// A stop right before or right after an access.
fn at_random(facts: &Facts, by_code: &ByCode, rng: &mut Rng) -> Option<Decision> {
    let mut place = choose(facts, by_code, rng)?.place;
    place.offset += rng.below(2);
    let action = if rng.one_in(2) { stall(rng) } else { Action::Preempt };
    Some(Decision { place, action })
}

impl Strategy for Accesses {
    fn name(&self) -> String {
        "accesses".into()
    }

    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        if index % 2 == 1
            && let Some(schedule) = single(facts, seed, index / 2)
        {
            return schedule;
        }
        let mut rng = Rng::new(seed, index);
        // Half of them in the undisturbed run, half in one of the learning runs that brought threads together.
        let seen = |run: &usize| facts.by_code[*run].iter().any(|codes| !codes.is_empty());
        let runs: Vec<usize> = (0..facts.by_code.len()).filter(seen).collect();
        let run = match runs.len() {
            0 => None,
            _ if runs[0] == 0 && rng.one_in(2) => Some(0),
            n => Some(runs[rng.below(n as u64) as usize]),
        };
        let none = ByCode::default();
        let by_code = run.map_or(&none, |run| &facts.by_code[run]);
        let mut decisions = run.map_or_else(Vec::new, |run| facts.learned[run].clone());
        let base = decisions.len();
        // One stop finds most; several bring three threads into a knot.
        for _ in 0..=[0, 0, 1, 1, 2, 3, 5, 9][rng.below(8) as usize] {
            decisions.extend(at_random(facts, by_code, &mut rng));
        }
        // Sometimes with a preemption at a commit, so that the threads get near each other at all.
        let points = facts.choices().collect::<Vec<_>>();
        if (rng.one_in(3) || decisions.len() == base) && !points.is_empty() {
            let place = points[rng.below(points.len() as u64) as usize];
            decisions.push(Decision { place, action: Action::Preempt });
        }
        canonical(decisions)
    }

    fn promise(&self, facts: &Facts, schedules: u64) -> String {
        format!(
            "n = {}, k = {}, {} accesses to shared memory: {schedules} schedules stop threads at some of them, no bound",
            facts.thread_count(),
            facts.point_count(),
            facts.accesses.len()
        )
    }

    fn wants_accesses(&self) -> bool {
        true
    }
}
