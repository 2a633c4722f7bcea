//! Single stops worth trying one by one: most races need one thread held up at one place. A stop after one shared access
//! and a stop before the thread's next one do the same, so there are about as many as there are accesses.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    decision::Place,
    facts::{Point, SharedAccess},
    rng::Rng,
};

/// A place to hold a thread up at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SingleStop {
    /// Where.
    pub place: Place,
    /// The learning run whose decisions bring the thread there.
    pub run: u32,
}

/// Kinds of stops: the four of [`crate::facts::Nearness`], and right before a system call (a signal or another process
/// may change what the program looked at to decide on the call).
const KINDS: usize = 5;
/// How many of each kind in a round.
const SHARES: [usize; KINDS] = [4, 2, 2, 1, 1];

/// Of one kind: the first time a thread comes to some code before the last time, before the others.
#[derive(Clone, Debug, Default)]
struct Kind {
    stops: Vec<SingleStop>,
    /// For each: the range of stops that are as good.
    equals: Vec<(usize, usize)>,
}

/// All of them, the likeliest first.
#[derive(Clone, Debug, Default)]
pub struct Stops {
    kinds: [Kind; KINDS],
    /// (kind, which of it)
    order: Vec<(usize, usize)>,
}

impl Stops {
    /// From accesses sorted by learning run and time, and the points of schedule 0.
    pub(crate) fn new(accesses: &[SharedAccess], points: &[Point]) -> Self {
        let mut ranked: [BTreeMap<(u64, usize), SingleStop>; KINDS] = Default::default();
        let known: BTreeSet<u64> = accesses.iter().filter(|a| a.run == 0).map(|a| a.rip).collect();
        // By learning run, thread and code: the visits.
        let mut visits: BTreeMap<(u32, u64, u64), Vec<usize>> = BTreeMap::new();
        for (i, access) in accesses.iter().enumerate() {
            visits.entry((access.run, access.place.thread, access.rip)).or_default().push(i);
        }
        let after = last_of_steps(accesses);
        let mut seen = BTreeSet::new();
        for ((run, _, rip), visits) in visits {
            // What schedule 0 comes to is tried there first.
            let later = if run > 0 && known.contains(&rip) { 1 << 32 } else { 0 };
            for (nth, i) in visits.iter().copied().enumerate() {
                let rank = match nth {
                    0 => 0,
                    nth if nth + 1 == visits.len() => 1,
                    nth => 1 + nth as u64,
                };
                let mut place = accesses[i].place;
                let kind = &mut ranked[accesses[i].near as usize];
                if seen.insert((run, place)) {
                    kind.insert((later + rank, 2 * i), SingleStop { place, run });
                }
                place.offset += 1;
                if after.contains(&i) && seen.insert((run, place)) {
                    kind.insert((later + rank, 2 * i + 1), SingleStop { place, run });
                }
            }
        }
        for (i, point) in points.iter().enumerate().filter(|(_, point)| point.contended && point.inside > 1) {
            let place = Place { offset: point.inside - 1, ..point.place };
            ranked[KINDS - 1].insert((0, i), SingleStop { place, run: 0 });
        }
        let kinds = ranked.map(Kind::new);
        let order = interleaved(kinds.each_ref().map(|kind| kind.stops.len()));
        Stops { kinds, order }
    }

    /// The `n`-th one; those that are equally good in an order of their own for each seed.
    pub fn get(&self, seed: u64, n: u64) -> Option<SingleStop> {
        let &(kind, at) = self.order.get(usize::try_from(n).ok()?)?;
        let (from, to) = self.kinds[kind].equals[at];
        let len = (to - from) as u64;
        // at -> (factor * at + shift) mod len is one to one where factor and len have no common divisor.
        let mut rng = Rng::new(seed, from as u64);
        let shift = rng.below(len);
        let factor = (1 + rng.below(len)..).find(|factor| gcd(*factor, len) == 1).unwrap_or(1);
        let moved = ((at - from) as u64 * factor + shift) % len;
        Some(self.kinds[kind].stops[from + moved as usize])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl Kind {
    fn new(ranked: BTreeMap<(u64, usize), SingleStop>) -> Self {
        let ranks: Vec<u64> = ranked.keys().map(|(rank, _)| *rank).collect();
        let equals = ranks
            .iter()
            .map(|rank| (ranks.partition_point(|r| r < rank), ranks.partition_point(|r| r <= rank)))
            .collect();
        Kind { stops: ranked.into_values().collect(), equals }
    }
}

/// Accesses after which their thread makes none before it enters the kernel.
fn last_of_steps(accesses: &[SharedAccess]) -> BTreeSet<usize> {
    let mut last: BTreeMap<(u32, Place), usize> = BTreeMap::new();
    for (i, access) in accesses.iter().enumerate() {
        last.insert((access.run, Place { offset: 0, ..access.place }), i);
    }
    last.into_values().collect()
}

/// Rounds of so many of each kind as its share, as long as there are some.
fn interleaved(lens: [usize; KINDS]) -> Vec<(usize, usize)> {
    let mut order = Vec::with_capacity(lens.iter().sum());
    let mut next = [0; KINDS];
    while next != lens {
        for kind in 0..KINDS {
            let to = (next[kind] + SHARES[kind]).min(lens[kind]);
            order.extend((next[kind]..to).map(|at| (kind, at)));
            next[kind] = to;
        }
    }
    order
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Nearness;

    fn access(thread: u64, syscall: u64, offset: u64, rip: u64, run: u32, near: Nearness) -> SharedAccess {
        let place = Place { thread, syscall, returns: 0, offset };
        SharedAccess { place, address: 0x1000, rip, write: true, near, run }
    }

    #[test]
    fn every_stop_comes_once_whatever_the_seed() {
        let mut accesses = Vec::new();
        for i in 0..40 {
            accesses.push(access(1 + i % 2, i / 10, 3 * i, i % 7, 0, Nearness::Own));
            accesses.push(access(1 + i % 2, i / 10, 3 * i + 1, 100 + i, 0, Nearness::Library));
        }
        let stops = Stops::new(&accesses, &[]);
        // 80 accesses, and one more stop for each thread and step.
        assert_eq!(stops.len(), 88);
        let all = |seed| -> Vec<_> {
            (0..88).map(|n| stops.get(seed, n).unwrap()).map(|stop| (stop.run, stop.place)).collect()
        };
        let (one, two) = (all(1), all(2));
        assert_ne!(one, two);
        for mut order in [one, two] {
            order.sort_unstable();
            order.dedup();
            assert_eq!(order.len(), 88);
        }
        assert_eq!(stops.get(1, 88), None);
    }

    #[test]
    fn the_program_s_own_code_comes_first_and_schedule_0_before_the_other_runs() {
        let accesses = [
            access(1, 0, 5, 10, 0, Nearness::Library),
            access(1, 0, 9, 20, 0, Nearness::Own),
            access(2, 0, 9, 20, 1, Nearness::Own),
        ];
        let stops = Stops::new(&accesses, &[]);
        let order: Vec<_> = (0..stops.len() as u64).map(|n| stops.get(7, n).unwrap()).collect();
        assert_eq!(order.len(), 5);
        assert!(order[..2].iter().all(|stop| stop.place.thread == 1 && stop.place.offset >= 9), "{order:?}");
        assert!(order[2..4].iter().all(|stop| stop.run == 1), "{order:?}");
        assert_eq!(order[4].place.offset, 5);
    }

    #[test]
    fn a_call_is_stopped_before() {
        let place = Place { thread: 1, syscall: 3, returns: 0, offset: 0 };
        let points = [
            Point { step: 1, place, inside: 12, contended: true },
            Point { step: 2, place, inside: 12, contended: false },
        ];
        let stops = Stops::new(&[], &points);
        assert_eq!(stops.len(), 1);
        assert_eq!(stops.get(1, 0), Some(SingleStop { place: Place { offset: 11, ..place }, run: 0 }));
    }
}
