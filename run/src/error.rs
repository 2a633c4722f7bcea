//! Errors of everything that runs a machine for a run.

use crate::{
    durable::WriteError,
    home::{BlobError, FinishError, RunError},
    id::RunId,
    keyframe::KeyframeError,
    store::PageError,
    trace::TraceError,
};

/// Why a recording, replay, seek or fork failed (and not: how a run ended).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The machine or the host.
    #[error(transparent)]
    Machine(#[from] vmm::MachineError),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] vmm::memory::MemoryError),
    /// A keyframe.
    #[error(transparent)]
    Keyframe(#[from] KeyframeError),
    /// A page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// A run's files.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A kernel or initramfs.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// Writing.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The run could not be moved to its id.
    #[error(transparent)]
    Finish(#[from] FinishError),
    /// An image could not be opened.
    #[error("cannot open image {image} ({of}): {source}")]
    Image {
        /// Which, from 0.
        image: usize,
        /// What the user gave.
        of: String,
        /// The host's error.
        source: std::io::Error,
    },
    /// An image is no longer what the run was recorded with.
    #[error(
        "{of} is not the image run {id} was recorded with (it has content {found}, the run {wanted}): put the old \
         one back, or record a new run"
    )]
    ImageChanged {
        /// The run.
        id: RunId,
        /// What was given.
        of: String,
        /// Content now.
        found: String,
        /// Content then.
        wanted: String,
    },
    /// The boot did not come to a job.
    #[error("the guest did not boot: {0}")]
    Boot(String),
    /// A captured state could not be decoded.
    #[error("{0}: its machine state does not decode; it was made by another version of this program")]
    State(String),
    /// Past the end.
    #[error("step {asked} is past the end of run {id}: it ends at step {end}")]
    PastEnd {
        /// The run.
        id: RunId,
        /// What was asked for.
        asked: u64,
        /// The last step.
        end: u64,
    },
    /// Before the job.
    #[error("step {asked} is before the job of run {id} was given to the machine (step {first})")]
    BeforeJob {
        /// The run.
        id: RunId,
        /// What was asked for.
        asked: u64,
        /// The first step.
        first: u64,
    },
    /// A step has fewer instructions.
    #[error("step {step} of run {id} has no instruction {offset}: the next step begins before")]
    NoSuchInstruction {
        /// The run.
        id: RunId,
        /// The step.
        step: u64,
        /// The offset asked for.
        offset: u64,
    },
    /// The way there was not the recorded one.
    #[error("run {id} did not go as recorded: {difference}")]
    Diverged {
        /// The run.
        id: RunId,
        /// Where.
        difference: Box<crate::verify::Difference>,
    },
    /// The machine ended before a place the recording says it came to.
    #[error("step {asked} was not reached: the machine ended at step {end}")]
    EndsEarly {
        /// The step wanted.
        asked: u64,
        /// Where it ended.
        end: u64,
    },
    /// The end of its trace is gone.
    #[error(
        "the trace of run {id} is damaged: {have} of {wanted} events are left. `rewind log` and `rewind events` show \
         them; record the run again to go about in it"
    )]
    TraceCut {
        /// The run.
        id: RunId,
        /// Events that can be read.
        have: u64,
        /// Events it had.
        wanted: u64,
    },
    /// It has no end, so there is nothing to hold a replay against.
    #[error(
        "run {id} was not finished: {why}. `rewind log` and `rewind events` show what is on disk of it; record it \
         again to go about in it"
    )]
    Unfinished {
        /// The run.
        id: RunId,
        /// Why.
        why: &'static str,
    },
    /// It came without what replaying needs.
    #[error("run {0} was exported to look at only (--view): export it again without --view, to be replayed")]
    ViewOnly(RunId),
    /// The clock does not move the guest.
    #[error(
        "the job made no step after step {step} (it runs near {rip:#x}): it computes, or waits for time, which only \
         steps move under the steps clock"
    )]
    Spins {
        /// The last step.
        step: u64,
        /// Where it was.
        rip: u64,
    },
    /// No step for long, on an engine that does not count instructions. Not a function of the spec.
    #[error(
        "the job made no step for 10 s after step {step}; `--engine soft` can tell whether it computes or waits"
    )]
    NoStep {
        /// The last step.
        step: u64,
    },
    /// Stopped by the user.
    #[error("interrupted")]
    Interrupted,
}
