//! What `ls` shows.

use serde::Serialize;

use crate::{
    home::{Home, RunDir, RunError},
    id::RunId,
    outcome::Outcome,
    spec::Spec,
};

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Complete.
    Finished,
    /// Being recorded now.
    Recording,
    /// Its recorder died; the trace is there as far as it got.
    Died,
}

/// One line of `ls`.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Its id.
    pub id: RunId,
    /// How far it is.
    pub state: State,
    /// What it was asked.
    pub spec: Spec,
    /// What came of it; none unless finished.
    pub outcome: Option<Outcome>,
    /// The run it is a fork of and the step from which it may differ.
    pub parent: Option<(RunId, u64)>,
    /// Steps of its keyframes, ascending.
    pub keyframes: Vec<u64>,
    /// Bytes its own files take (pages are shared).
    pub bytes: u64,
}

/// Which runs to list; all by default.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Whose command contains this.
    pub command: Option<String>,
    /// Whose ending is this word, or begins with it before a colon: `exited:0`, `exited`, `stalled`.
    pub end: Option<String>,
    /// Forks of this run.
    pub parent: Option<RunId>,
}

impl Filter {
    fn takes(&self, run: &Summary) -> bool {
        let word = run.outcome.as_ref().map(|outcome| outcome.end.word()).unwrap_or_default();
        let kind = word.split(':').next().unwrap_or_default();
        self.command.as_ref().is_none_or(|text| run.spec.command().contains(text.as_str()))
            && self.end.as_ref().is_none_or(|end| *end == word || end == kind)
            && self.parent.is_none_or(|parent| run.parent.is_some_and(|(id, _)| id == parent))
    }
}

/// What is known of a run.
pub fn summary(run: &RunDir) -> Result<Summary, RunError> {
    let state = match run.is_finished() {
        true => State::Finished,
        false if run.is_being_recorded() => State::Recording,
        false => State::Died,
    };
    Ok(Summary {
        id: run.id(),
        state,
        spec: run.spec()?,
        outcome: run.outcome()?,
        parent: run.recording()?.and_then(|recording| recording.parent),
        keyframes: crate::keyframe::list(&run.keyframes()),
        bytes: run.disk_bytes(),
    })
}

/// The runs of a home, oldest first, and what could not be read.
pub fn runs(home: &Home, filter: &Filter) -> (Vec<Summary>, Vec<RunError>) {
    let mut found = Vec::new();
    let mut broken = Vec::new();
    for id in home.runs().into_iter().chain(home.open_runs()) {
        // Removed while we look: not an error.
        let Ok(run) = home.run(id) else { continue };
        // What an import has so far is not a run, nor what a killed one left: gc takes that.
        if !run.is_finished() && run.is_imported() {
            continue;
        }
        // The order of recording is only known to the file system.
        let when = std::fs::metadata(run.path().join("outcome"))
            .or_else(|_| std::fs::metadata(run.path().join("spec")))
            .and_then(|meta| meta.modified())
            .ok();
        match summary(&run) {
            Ok(summary) if filter.takes(&summary) => found.push((when, summary)),
            Ok(_) => {}
            Err(_) if !run.path().is_dir() => {}
            Err(error) => broken.push(error),
        }
    }
    found.sort_by_key(|(when, run)| (*when, run.id));
    (found.into_iter().map(|(_, summary)| summary).collect(), broken)
}
