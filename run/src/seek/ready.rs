//! What must be there of a run before anybody reads it as whole or goes about in it. Asked first: finding out later costs a
//! boot, or shows half a run as if it were all.

use crate::{
    error::StageError,
    home::{RunDir, RunError},
    outcome::Outcome,
    trace::TraceReader,
};

/// The trace of a run; of a finished one, all that its outcome says it had.
pub fn whole_trace(run: &RunDir) -> Result<TraceReader, StageError> {
    let (trace, outcome) = (run.trace()?, run.outcome()?);
    is_whole(run, &trace, outcome.as_ref())?;
    Ok(trace)
}

/// Refuses a trace with another number of records than the run's outcome says; a run without outcome has what there is.
pub fn is_whole(run: &RunDir, trace: &TraceReader, outcome: Option<&Outcome>) -> Result<(), StageError> {
    match outcome.filter(|outcome| outcome.records != trace.records()) {
        Some(outcome) => {
            let (id, have, wanted) = (run.id(), trace.records(), outcome.records);
            Err(StageError::TraceCut { id, have, wanted })
        }
        None => Ok(()),
    }
}

/// Why a run has no end, if it has none.
pub fn unfinished(run: &RunDir) -> Result<Option<&'static str>, RunError> {
    Ok(match run.outcome()? {
        Some(_) => None,
        None if run.is_finished() => Some("its file \"outcome\" is gone"),
        None if run.is_being_recorded() => Some("it is still being recorded"),
        None => Some("its recorder died"),
    })
}

/// Was it imported without what replaying needs?
pub(crate) fn is_view(run: &RunDir) -> bool {
    run.is_imported() && !run.own_boot().is_dir()
}

/// Refuses a run that nobody can go about in.
pub(super) fn may_be_gone_about_in(run: &RunDir) -> Result<(), StageError> {
    let id = run.id();
    match unfinished(run)? {
        Some(why) => Err(StageError::Unfinished { id, why }),
        None if is_view(run) => Err(StageError::ViewOnly(id)),
        None if run.recording()?.is_none() => {
            Err(StageError::Unfinished { id, why: "its file \"recording\" is gone" })
        }
        None => Ok(()),
    }
}
