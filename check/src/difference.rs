//! Where two runs of one program first do different things.

use serde::Serialize;

use crate::trial::{Deed, Trial};

/// Where two runs of the program first do different things, thread by thread; steps and ids are not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Thread id in the failing run.
    pub tid: u32,
    /// Step in the failing run.
    pub step: u64,
    /// What it does in the failing run; "does nothing more" if it has ended.
    pub failing: String,
    /// What it does in the passing one.
    pub passing: String,
}

/// The first difference by the failing run's steps; `None` if each thread did the same.
pub fn first_difference(failing: &Trial, passing: &Trial) -> Option<Difference> {
    let mut names: Vec<u64> = failing.deeds.iter().chain(&passing.deeds).map(|deed| deed.thread).collect();
    names.sort_unstable();
    names.dedup();
    let words = |deed: Option<&&Deed>| deed.map_or("does nothing more".to_owned(), |deed| deed.words.clone());
    let differences = names.into_iter().filter_map(|name| {
        let left: Vec<&Deed> = failing.deeds.iter().filter(|deed| deed.thread == name).collect();
        let right: Vec<&Deed> = passing.deeds.iter().filter(|deed| deed.thread == name).collect();
        let at = (0..left.len().max(right.len()))
            .find(|&i| left.get(i).map(|d| &d.words) != right.get(i).map(|d| &d.words))?;
        // A thread that does nothing more has not done it until the end.
        let step = left.get(at).map_or(failing.steps, |deed| deed.step);
        let tid = left.first().or(right.first()).map_or(0, |deed| deed.tid);
        Some(Difference { tid, step, failing: words(left.get(at)), passing: words(right.get(at)) })
    });
    differences.min_by_key(|difference| (difference.step, difference.tid))
}
