//! How a machine ends or fails.

use rewind_platform::port;
use serde::{Deserialize, Serialize};

use crate::{boot::BootError, engine::EngineError, engine::EngineKind, memory::MemoryError};

/// The guest ended itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndReason {
    /// Ordinary power off.
    PowerOff,
    /// It asked for a restart.
    Restart,
    /// Kernel panic.
    Panic {
        /// The last lines of its console.
        text: String,
    },
    /// Nothing runnable, nothing armed, no outside input possible.
    Stalled,
    /// Only the same timers fired for the spec's limit.
    Idling,
}

impl EndReason {
    /// From the value written to the END port.
    pub(crate) fn from_port(value: u32, console: &[u8]) -> Option<EndReason> {
        Some(match value {
            port::END_POWER_OFF => EndReason::PowerOff,
            port::END_RESTART => EndReason::Restart,
            port::END_PANIC => EndReason::Panic { text: String::from_utf8_lossy(console).into_owned() },
            port::END_STALLED => EndReason::Stalled,
            port::END_IDLING => EndReason::Idling,
            _ => return None,
        })
    }
}

/// The guest did something no machine of this platform does. The run ends; the monitor is well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum GuestFault {
    /// The CPU shut down.
    #[error("the guest CPU shut down (triple fault)")]
    TripleFault,
    /// The kernel halted the CPU, which this platform's never does.
    #[error("the guest kernel halted the CPU")]
    Halt,
    /// Access to guest-physical memory that is not there.
    #[error("the guest kernel touched physical address {address:#x}, where nothing is")]
    Mmio {
        /// Where.
        address: u64,
        /// A write?
        write: bool,
    },
    /// Kernel and monitor implement different platforms.
    #[error(
        "the guest kernel implements platform version {kernel}, this program version {monitor}; rebuild both with `make build`"
    )]
    PlatformVersion {
        /// The kernel's.
        kernel: u32,
        /// [`rewind_platform::PLATFORM_VERSION`].
        monitor: u32,
    },
    /// A port access that the platform does not have.
    #[error("the guest kernel accessed port {port:#x} wrongly: {what}")]
    Port {
        /// Which.
        port: u16,
        /// What is wrong.
        what: String,
    },
    /// A block request that makes no sense.
    #[error("the block request at {address:#x} is wrong: {what}")]
    BlockRequest {
        /// Its guest-physical address.
        address: u64,
        /// What is wrong.
        what: String,
    },
    /// The trace ring is corrupt.
    #[error("the guest's trace ring is corrupt: {what}")]
    Ring {
        /// What is wrong.
        what: String,
    },
    /// The engine cannot execute an instruction.
    #[error("the engine cannot execute the instruction at {rip:#x} ({bytes:02x?}): {what}")]
    Unsupported {
        /// Where.
        rip: u64,
        /// Its bytes.
        bytes: Vec<u8>,
        /// Why.
        what: String,
    },
    /// No step for the whole limit.
    #[error(
        "the guest made no step for {instructions} instructions at step {step}; it spins near {rip:#x}{}; rerun with `--clock work --engine soft`",
        if *user { " in user mode" } else { " in the kernel" }
    )]
    NoProgress {
        /// Step it stayed in.
        step: u64,
        /// Instructions retired since.
        instructions: u64,
        /// Where it is.
        rip: u64,
        /// In user mode?
        user: bool,
    },
}

/// The monitor or the host failed, or was asked for what cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// Booting failed.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Guest memory could not be made or used.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// An image could not be read.
    #[error("cannot read image {image}: {source}")]
    Image {
        /// Which, from 0.
        image: u32,
        /// The host's error.
        source: std::io::Error,
    },
    /// The machine has ended.
    #[error("the machine has ended and cannot run")]
    Ended,
    /// Init waits for a job and none was set.
    #[error("init waits for its job and none was given")]
    NoJob,
    /// The job is too long.
    #[error("the job (arguments and environment) takes {len} bytes, {max} fit")]
    JobTooLong {
        /// Encoded length.
        len: usize,
        /// Capacity.
        max: u64,
    },
    /// Too many bytes for one delivery.
    #[error("{len} bytes of input were given at once, at most {max} fit")]
    InputTooLong {
        /// Given.
        len: usize,
        /// Capacity.
        max: u64,
    },
    /// Input was given where the guest did not ask.
    #[error("input can only be given where the guest asks for it")]
    NoInputWanted,
    /// The job could not be encoded.
    #[error("the job cannot be encoded: {0}")]
    JobEncoding(postcard::Error),
    /// Too many decisions.
    #[error("{count} decisions were given, at most {max} fit")]
    TooManyDecisions {
        /// Given.
        count: usize,
        /// Capacity less one.
        max: u64,
    },
    /// The place asked for lies in the past.
    #[error("the machine is at {now}, behind which {asked} lies; restore an earlier keyframe")]
    Behind {
        /// Where it is.
        now: crate::address::Position,
        /// Asked for.
        asked: crate::address::Position,
    },
    /// The engine cannot count branches.
    #[error("the {} engine cannot count branches, which `--clock work` needs; use `--engine soft`", engine.name())]
    WorkClock {
        /// Which engine.
        engine: EngineKind,
    },
    /// A slice of no branches.
    #[error("a slice of the work clock must have at least one branch")]
    EmptySlice,
    /// A captured state does not fit this machine.
    #[error("the captured state does not fit this machine: {0}")]
    State(String),
}
