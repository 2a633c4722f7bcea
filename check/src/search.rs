//! The search: schedules in order until one violates a property, then the smallest set of decisions that does.

use std::ops::ControlFlow;

use crate::{
    decision::{Action, Decision, FIRST_RANK, Place},
    facts::Facts,
    narrow::narrow,
    pool::{Pool, SubjectError},
    property::Coverage,
    strategy::Strategy,
    trial::Trial,
    verdict::{Property, violated},
};

/// What to search for, and how long.
pub struct Search<'a> {
    /// Makes the schedules.
    pub strategy: &'a dyn Strategy,
    /// Seed of all schedules.
    pub seed: u64,
    /// Schedules to try besides schedule 0.
    pub schedules: u64,
    /// What must hold.
    pub properties: &'a [Property],
    /// Go on after a violation (and count them all).
    pub all: bool,
}

impl std::fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Search({} schedules, seed {})", self.schedules, self.seed)
    }
}

/// One schedule as it is judged.
#[derive(Debug)]
pub struct Judged {
    /// Its number; 0 is the unperturbed run.
    pub index: u64,
    /// The strategy that made it; empty for schedule 0.
    pub strategy: String,
    /// Its decisions.
    pub decisions: Vec<Decision>,
    /// What it did.
    pub trial: Trial,
    /// What it violates.
    pub violates: Vec<Property>,
}

/// What the search found.
#[derive(Debug, Default)]
pub struct Found {
    /// The first schedule that violates a property.
    pub first: Option<Judged>,
    /// Schedules judged, schedule 0 included.
    pub tried: u64,
    /// How many violate a property.
    pub failing: u64,
    /// `sometimes` and `reachable` over all of them.
    pub coverage: Coverage,
}

impl Search<'_> {
    /// Judges schedule 0 (`reference`, already run) and then the others, calling `each` in order until it says false.
    pub fn run(
        &self,
        pool: &mut Pool,
        facts: &Facts,
        reference: &Trial,
        mut each: impl FnMut(&Judged) -> bool,
    ) -> Result<Found, SubjectError> {
        let mut found = Found::default();
        let mut judge = |index, decisions, trial: Trial| {
            let violates = violated(self.properties, &trial, reference);
            let strategy = if index == 0 { String::new() } else { self.strategy.name_at(index, facts) };
            let judged = Judged { index, strategy, decisions, trial, violates };
            let go_on = each(&judged);
            found.tried += 1;
            found.coverage.merge(&judged.trial.coverage);
            let fails = !judged.violates.is_empty();
            found.failing += u64::from(fails);
            if fails && found.first.is_none() {
                found.first = Some(judged);
            }
            if !go_on || (fails && !self.all) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if judge(0, Vec::new(), reference.clone()).is_continue() {
            let schedules = (1..=self.schedules).map(|index| self.strategy.schedule(self.seed, index, facts));
            pool.run(schedules, false, |at, decisions, trial| judge(at as u64 + 1, decisions, trial))?;
        }
        Ok(found)
    }
}

/// The smallest failing set, its run, and the run of its passing partner.
#[derive(Debug)]
pub struct Explained {
    /// Decisions none of which can be left out.
    pub decisions: Vec<Decision>,
    /// Their run, with deeds.
    pub failing: Trial,
    /// What it violates.
    pub violates: Vec<Property>,
    /// The same less one decision (the last applied first), with its run; none if no decision is needed.
    pub partner: Option<(Decision, Trial)>,
}

/// Narrows `judged` and runs the result and its partner.
pub fn explain(
    pool: &mut Pool,
    properties: &[Property],
    reference: &Trial,
    judged: &Judged,
) -> Result<Explained, SubjectError> {
    // A decision that was never reached did nothing: narrowing starts without it.
    let reached = judged.decisions.iter().zip(&judged.trial.applied);
    let reached: Vec<Decision> =
        reached.filter(|(_, at)| at.is_some()).map(|(decision, _)| *decision).collect();
    // The same kind of failure, not just any other one met on the way.
    let wanted = judged.violates.iter().copied().max_by_key(|property| property.weight());
    let batch = pool.jobs();
    let mut fail = |sets: &[Vec<Decision>]| {
        let mut answers = Vec::with_capacity(sets.len());
        pool.run::<()>(sets.to_vec(), false, |_, _, trial| {
            let violates = violated(properties, &trial, reference);
            answers.push(wanted.is_some_and(|wanted| violates.contains(&wanted)));
            ControlFlow::Continue(())
        })?;
        Ok::<_, SubjectError>(answers)
    };
    let narrowed = narrow(&reached, batch, &mut fail)?;
    let decisions = simplify(narrowed.decisions, &mut fail)?;
    let failing = run_one(pool, &decisions)?;
    let violates = violated(properties, &failing, reference);
    let mut order: Vec<usize> = (0..decisions.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(failing.applied[i]));
    let mut partner = None;
    for skip in order {
        let mut less = decisions.clone();
        let left_out = less.remove(skip);
        let trial = run_one(pool, &less)?;
        if violated(properties, &trial, reference).is_empty() {
            partner = Some((left_out, trial));
            break;
        }
    }
    Ok(Explained { decisions, failing, violates, partner })
}

/// Replaces each decision by the plainest one that still fails: a preemption rather than a rank or a stall, at a
/// commit (the step's own or the next) rather than inside a step, a short stall rather than a long one.
fn simplify<E>(
    mut decisions: Vec<Decision>,
    fails: &mut impl FnMut(&[Vec<Decision>]) -> Result<Vec<bool>, E>,
) -> Result<Vec<Decision>, E> {
    for i in 0..decisions.len() {
        let Decision { place, action } = decisions[i];
        let commit = Place { offset: 0, ..place };
        let mut plainer = vec![Decision { place: commit, action: Action::Preempt }];
        if place.offset > 0 {
            // Also the end of the system call that comes next.
            let next = Place { syscall: place.syscall + 1, returns: 0, offset: 0, ..place };
            plainer.extend([Action::Preempt, action].map(|action| Decision { place: next, action }));
        }
        plainer.extend([Decision { place, action: Action::Preempt }, Decision { place: commit, action }]);
        replace(&mut decisions, i, plainer, fails)?;
        if let Decision { place, action: Action::Stall(ns) } = decisions[i] {
            let shorter = [1_000_000, 30_000_000].into_iter().filter(|short| *short < ns);
            let shorter = shorter.map(|ns| Decision { place, action: Action::Stall(ns) }).collect();
            replace(&mut decisions, i, shorter, fails)?;
        }
    }
    // Small numbers for ranks, in the same order.
    let mut ranks: Vec<u32> = decisions
        .iter()
        .filter_map(|decision| match decision.action {
            Action::Rank(rank) => Some(rank),
            _ => None,
        })
        .collect();
    ranks.sort_unstable();
    ranks.dedup();
    let mut numbered = decisions.clone();
    for decision in &mut numbered {
        if let Action::Rank(rank) = decision.action {
            let at = ranks.partition_point(|known| *known < rank);
            decision.action = Action::Rank(FIRST_RANK + at as u32);
        }
    }
    if numbered != decisions && fails(&[numbered.clone()])? == [true] {
        decisions = numbered;
    }
    decisions.sort_unstable();
    Ok(decisions)
}

/// Puts the first of `plainer` that still fails in place of decision `i`.
fn replace<E>(
    decisions: &mut Vec<Decision>,
    i: usize,
    mut plainer: Vec<Decision>,
    fails: &mut impl FnMut(&[Vec<Decision>]) -> Result<Vec<bool>, E>,
) -> Result<(), E> {
    plainer.retain(|other| !decisions.contains(other));
    let with = |other: &Decision| {
        let mut set = decisions.clone();
        set[i] = *other;
        set
    };
    let sets: Vec<Vec<Decision>> = plainer.iter().map(with).collect();
    if let Some(set) = fails(&sets)?.iter().position(|fails| *fails) {
        decisions.clone_from(&sets[set]);
    }
    Ok(())
}

fn run_one(pool: &mut Pool, decisions: &[Decision]) -> Result<Trial, SubjectError> {
    let trial = pool.run([decisions.to_vec()], true, |_, _, trial| ControlFlow::Break(trial))?;
    trial.ok_or_else(|| SubjectError("no worker answered".into()))
}
