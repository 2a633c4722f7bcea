//! Delta debugging over decisions (Zeller and Hildebrandt, 2002): the smallest set that still fails.

use std::collections::BTreeMap;

use crate::decision::Decision;

/// The result of narrowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Narrowed {
    /// A set that fails, none of whose decisions can be left out.
    pub decisions: Vec<Decision>,
    /// Trials that had to run (repeats are remembered).
    pub trials: u64,
}

/// Narrows `failing` with `fails`, which runs several candidate sets (in any order, at once if it likes) and
/// answers for each whether it still fails in the same way. `fails` must be a function of the set.
///
/// The result does not depend on how many candidates run at once: of several failing candidates the first counts.
pub fn narrow<E>(
    failing: &[Decision],
    batch: usize,
    mut fails: impl FnMut(&[Vec<Decision>]) -> Result<Vec<bool>, E>,
) -> Result<Narrowed, E> {
    let mut known: BTreeMap<Vec<Decision>, bool> = BTreeMap::new();
    let mut trials = 0;
    let mut first_failing = |candidates: Vec<Vec<Decision>>| -> Result<Option<Vec<Decision>>, E> {
        for group in candidates.chunks(batch.max(1)) {
            let new: Vec<Vec<Decision>> =
                group.iter().filter(|candidate| !known.contains_key(*candidate)).cloned().collect();
            if !new.is_empty() {
                let answers = fails(&new)?;
                trials += new.len() as u64;
                known.extend(new.into_iter().zip(answers));
            }
            if let Some(found) = group.iter().find(|candidate| known.get(*candidate) == Some(&true)) {
                return Ok(Some(found.clone()));
            }
        }
        Ok(None)
    };

    let mut current = failing.to_vec();
    // The empty set failing means that no decision is needed at all.
    if let Some(empty) = first_failing(vec![Vec::new()])? {
        return Ok(Narrowed { decisions: empty, trials });
    }
    let mut pieces = 2;
    while current.len() >= 2 {
        let size = current.len().div_ceil(pieces);
        let chunks: Vec<&[Decision]> = current.chunks(size).collect();
        let subsets = chunks.iter().map(|chunk| chunk.to_vec()).collect();
        let rests = (0..chunks.len())
            .map(|skip| {
                let kept = chunks.iter().enumerate().filter(|(i, _)| *i != skip);
                kept.flat_map(|(_, chunk)| chunk.iter().copied()).collect()
            })
            .collect();
        if let Some(subset) = first_failing(subsets)? {
            current = subset;
            pieces = 2;
        } else if let Some(rest) = first_failing(rests)? {
            current = rest;
            pieces = (pieces - 1).max(2);
        } else if size == 1 {
            break;
        } else {
            pieces = (pieces * 2).min(current.len());
        }
    }
    Ok(Narrowed { decisions: current, trials })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::{Action, Place};

    fn decisions(n: u64) -> Vec<Decision> {
        let place = |syscall| Place { thread: 1, syscall, returns: 0, offset: 0 };
        (0..n).map(|i| Decision { place: place(i), action: Action::Preempt }).collect()
    }

    #[test]
    fn finds_the_needed_pair_whatever_the_batch() {
        for batch in [1, 2, 5] {
            let all = decisions(61);
            let needed = [all[17], all[44]];
            let narrowed = narrow(&all, batch, |sets| {
                Ok::<_, ()>(sets.iter().map(|set| needed.iter().all(|d| set.contains(d))).collect())
            })
            .unwrap();
            assert_eq!(narrowed.decisions, needed);
            assert!(narrowed.trials < 120, "{}", narrowed.trials);
        }
    }

    #[test]
    fn is_one_minimal_when_failure_is_not_monotone() {
        let all = decisions(9);
        let fails = |set: &Vec<Decision>| set.len() % 2 == 1 && set.contains(&all[4]);
        let narrowed = narrow(&all, 2, |sets| Ok::<_, ()>(sets.iter().map(fails).collect())).unwrap();
        assert!(fails(&narrowed.decisions));
        for skip in 0..narrowed.decisions.len() {
            let mut less = narrowed.decisions.clone();
            less.remove(skip);
            assert!(!fails(&less));
        }
    }

    #[test]
    fn a_failure_without_decisions_needs_none() {
        let narrowed = narrow(&decisions(5), 2, |sets| Ok::<_, ()>(vec![true; sets.len()])).unwrap();
        assert!(narrowed.decisions.is_empty());
    }
}
