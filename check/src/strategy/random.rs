//! Deviations strewn at random. Schedules differ in three ways, by turns: how dense they are (one point in 2, 4, ...
//! 128), over which part of the run (all of it, or a stretch), and of what kind they are.

use super::{MOST_DECISIONS, Strategy, canonical, pct, yielding};
use crate::{
    decision::{Action, Decision, Place},
    facts::{Facts, Point},
    rng::Rng,
};

/// `random`.
#[derive(Clone, Copy, Debug)]
pub struct Random;

/// What a schedule is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Preemptions at commits.
    Preempt,
    /// Each chosen point gives its thread a new random rank (as in partial order sampling, Yuan, Yang, Gu, CAV 2018).
    Ranks,
    /// Preemptions, and stalls long enough for the others to get somewhere.
    Stalls,
    /// Preemptions and stalls between two instructions.
    Inside,
}

/// A stall of 10 µs times a power of two up to this one: 10 µs to 1.3 s.
const STALL_DOUBLINGS: u64 = 17;

/// A stall from 10 µs to 1.3 s.
pub(super) fn stall(rng: &mut Rng) -> Action {
    Action::Stall(10_000 << rng.below(STALL_DOUBLINGS + 1))
}

/// An offset into a step of so many instructions. Half of them shortly before the step's end: what a program looked
/// at to decide on a system call may have changed by then.
pub(super) fn inside(instructions: u64, rng: &mut Rng) -> u64 {
    const SHORTLY: u64 = 16;
    if rng.one_in(2) {
        instructions - rng.below(instructions.min(SHORTLY))
    } else {
        1 + rng.below(instructions)
    }
}

impl Strategy for Random {
    fn name(&self) -> String {
        "random".into()
    }

    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        const KINDS: [Kind; 4] = [Kind::Preempt, Kind::Ranks, Kind::Stalls, Kind::Inside];
        let mut rng = Rng::new(seed, index);
        let kind = KINDS[(index % 4) as usize];
        let places = places(facts, kind, &mut rng);
        let every = (2u64 << rng.below(7)).max(places.len() as u64 / MOST_DECISIONS as u64 + 1);
        let mut decisions = Vec::new();
        let mut one = |place: &Choice, rng: &mut Rng| {
            let mut at = place.place;
            let action = match kind {
                Kind::Preempt => Action::Preempt,
                Kind::Ranks => Action::Rank(pct::START + rng.below(0x1000_0000) as u32),
                Kind::Stalls if rng.one_in(8) => Action::LateTimer(10_000 << rng.below(STALL_DOUBLINGS + 1)),
                Kind::Stalls | Kind::Inside if rng.one_in(2) => stall(rng),
                Kind::Stalls | Kind::Inside => Action::Preempt,
            };
            if kind == Kind::Inside {
                at.offset = inside(place.inside, rng);
            }
            decisions.push(Decision { place: at, action });
        };
        for place in &places {
            if rng.one_in(every * place.rarity) {
                one(place, &mut rng);
            }
        }
        let common: Vec<&Choice> = places.iter().filter(|place| place.rarity == 1).collect();
        if common.len() < 2 * every as usize && !common.is_empty() {
            // A short program gets at least one.
            one(common[rng.below(common.len() as u64) as usize], &mut rng);
        }
        if kind == Kind::Ranks {
            decisions.extend(yielding(facts));
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

/// A place that may be chosen.
#[derive(Clone, Copy, Debug)]
struct Choice {
    place: Place,
    /// Instructions inside.
    inside: u64,
    /// Chosen this many times more rarely than the return of a system call while others could run.
    rarity: u64,
}

/// Of the whole run or, half of the time, of a stretch of it.
fn places(facts: &Facts, kind: Kind, rng: &mut Rng) -> Vec<Choice> {
    let choice = |point: &Point| {
        let (place, inside) = (point.place, point.inside);
        let rarity = match kind {
            Kind::Inside => 1,
            _ if !point.contended => 8,
            _ if place.returns > 0 => 8,
            _ => 1,
        };
        Choice { place, inside, rarity }
    };
    let mut places: Vec<Choice> =
        facts.points.iter().filter(|point| kind != Kind::Inside || point.inside > 1).map(choice).collect();
    if kind != Kind::Inside {
        places.extend(facts.beyond.iter().map(|place| Choice { place: *place, inside: 0, rarity: 2 }));
    }
    if rng.one_in(2) && places.len() > 8 {
        let len = 4 + rng.below(places.len() as u64 / 2) as usize;
        let from = rng.below((places.len() - len + 1) as u64) as usize;
        places = places[from..from + len].to_vec();
    }
    places
}
