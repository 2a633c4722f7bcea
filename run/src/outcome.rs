//! What came of a run: a function of the spec alone (`outcome`), and how it was recorded (`recording`).

use rewind_platform::job::OutputHash;
use serde::{Deserialize, Serialize};
use vmm::engine::EngineKind;

use crate::{decision::Decision, envelope::Kind, id::RunId, spec::Content};

/// The file `outcome` of a run. A run without one was never finished.
pub const FILE: Kind = Kind { magic: *b"RWDOUTC\0", version: 1, name: "outcome", limit: 64 << 20 };
/// The file `recording` of a run.
pub const RECORDING: Kind = Kind { magic: *b"RWDRECD\0", version: 1, name: "recording", limit: 1 << 20 };

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The job exited with this status.
    Exited(u8),
    /// The job was killed by this signal.
    Killed(u8),
    /// Nothing runnable and nothing armed: a deadlock.
    Stalled,
    /// Only the same periodic timers fired for the spec's idling time.
    Idling,
    /// The guest kernel ran out of memory for the job.
    OutOfMemory,
    /// The guest kernel panicked; its last words.
    KernelPanic(String),
    /// The guest did something no guest may do to the machine.
    GuestFault(String),
    /// The job turned the machine off or restarted it, instead of exiting.
    PoweredOff,
    /// Guest init could not start the job: why.
    NotStarted(String),
    /// Stopped from outside after the wall-clock limit. Not a function of the spec.
    TimedOut,
    /// Stopped from outside by the user. Not a function of the spec.
    Interrupted,
}

impl End {
    /// Would every recording of the spec end like this?
    pub fn is_final(&self) -> bool {
        !matches!(self, End::TimedOut | End::Interrupted)
    }

    /// The status `rewind run` exits with: the job's own; 128 + signal; 124 as timeout(1) for a time-out, 130
    /// after Ctrl-C; 125 when the job could not run or the machine failed.
    pub fn exit_status(&self) -> u8 {
        match self {
            End::Exited(status) => *status,
            End::Killed(signal) => 128u8.saturating_add(*signal),
            End::Stalled | End::Idling | End::TimedOut => 124,
            End::OutOfMemory => 137,
            End::Interrupted => 130,
            End::KernelPanic(_) | End::GuestFault(_) | End::PoweredOff | End::NotStarted(_) => 125,
        }
    }

    /// One word for tables and JSON: `exited:0`, `killed:11`, `stalled`.
    pub fn word(&self) -> String {
        match self {
            End::Exited(status) => format!("exited:{status}"),
            End::Killed(signal) => format!("killed:{signal}"),
            End::Stalled => "stalled".into(),
            End::Idling => "idling".into(),
            End::OutOfMemory => "out-of-memory".into(),
            End::KernelPanic(_) => "kernel-panic".into(),
            End::GuestFault(_) => "guest-fault".into(),
            End::PoweredOff => "powered-off".into(),
            End::NotStarted(_) => "not-started".into(),
            End::TimedOut => "timed-out".into(),
            End::Interrupted => "interrupted".into(),
        }
    }

    /// More about it, if there is more.
    pub fn detail(&self) -> Option<&str> {
        match self {
            End::KernelPanic(text) | End::GuestFault(text) | End::NotStarted(text) => Some(text),
            _ => None,
        }
    }
}

/// What the spec led to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// The last step.
    pub steps: u64,
    /// Virtual nanoseconds since boot at the end.
    pub virtual_ns: u64,
    /// The step at which the job's first process was about to exec, if it came to that.
    pub started: Option<u64>,
    /// The virtual time then.
    pub started_ns: u64,
    /// Records in the trace.
    pub records: u64,
    /// Hash of all of them ([`crate::trace::TraceHasher`]).
    pub trace_hash: Content,
    /// Declared outputs.
    pub outputs: Vec<OutputHash>,
    /// Decisions whose place was never reached.
    pub missed: Vec<Decision>,
}

/// How and on what a run was recorded: the only file of a run that depends on the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recording {
    /// This program's version.
    pub version: String,
    /// The engine.
    pub engine: EngineKind,
    /// Milliseconds of wall time, from the call to the end.
    pub wall_ms: u64,
    /// Milliseconds of wall time from the call to the job's first event.
    pub first_event_ms: Option<u64>,
    /// The run this is a fork of and the step from which it may differ.
    pub parent: Option<(RunId, u64)>,
    /// The boot keyframe its keyframes build on.
    pub boot: Option<Content>,
    /// Images: what the user gave, for `ls`.
    pub source: String,
}
