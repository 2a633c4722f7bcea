//! Stops a thread right before or right after an access to a location another thread uses too: the places where
//! races with no system call in them show.

use std::collections::BTreeMap;

use super::{Strategy, canonical, random::stall};
use crate::{
    decision::{Action, Decision},
    facts::{Facts, SharedAccess},
    rng::Rng,
};

/// `accesses`. Needs an engine that stops at exact instructions and sees every access.
#[derive(Clone, Copy, Debug)]
pub struct Accesses;

/// Shared libraries are mapped above this, a program's own code below (mmap_base is near the top of the lower half;
/// an executable is linked low or loaded at two thirds of the address space, fs/binfmt_elf.c ELF_ET_DYN_BASE).
const LIBRARIES: u64 = 0x7000_0000_0000;

/// First an instruction, then one of its accesses: code that runs in a loop is not preferred. The program's own code
/// and data are chosen more often than what its libraries have for themselves.
fn choose<'a>(
    by_code: &'a [BTreeMap<u64, Vec<&'a SharedAccess>>; 2],
    rng: &mut Rng,
) -> Option<&'a SharedAccess> {
    let [own, foreign] = by_code;
    let code = match (own.is_empty(), foreign.is_empty()) {
        (true, true) => return None,
        (false, true) => own,
        (true, false) => foreign,
        (false, false) if rng.below(4) < 3 => own,
        (false, false) => foreign,
    };
    let accesses = code.values().nth(rng.below(code.len() as u64) as usize)?;
    accesses.get(rng.below(accesses.len() as u64) as usize).copied()
}

impl Strategy for Accesses {
    fn name(&self) -> String {
        "accesses".into()
    }

    fn schedule(&self, seed: u64, index: u64, facts: &Facts) -> Vec<Decision> {
        let mut rng = Rng::new(seed, index);
        let mut by_code: [BTreeMap<u64, Vec<&SharedAccess>>; 2] = Default::default();
        for access in &facts.accesses {
            // A library that works on the program's own data (a lock, a buffer) works for the program.
            let foreign = access.rip >= LIBRARIES && access.address >= LIBRARIES;
            by_code[usize::from(foreign)].entry(access.rip).or_default().push(access);
        }
        let mut decisions = Vec::new();
        // One stop finds most; several bring three threads into a knot.
        for _ in 0..=[0, 0, 1, 1, 2, 3, 5, 9][rng.below(8) as usize] {
            let Some(access) = choose(&by_code, &mut rng) else { break };
            let mut place = access.place;
            place.offset += rng.below(2);
            let action = if rng.one_in(2) { stall(&mut rng) } else { Action::Preempt };
            decisions.push(Decision { place, action });
        }
        // Sometimes with a preemption at a commit, so that the threads get near each other at all.
        let points = facts.choices().collect::<Vec<_>>();
        if (rng.one_in(3) || decisions.is_empty()) && !points.is_empty() {
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
