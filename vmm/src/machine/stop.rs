//! What a caller asks of a run of the machine, and gets back.

use std::sync::{Arc, atomic::Ordering};

use rewind_platform::{
    control::{CTL_INPUT_POLL, CTL_STOP_NOW},
    record::RecordHeader,
};

use super::{EndReason, GuestFault, Machine};
use crate::{
    address::{Gva, Position, Step},
    engine::WatchHit,
    memory::GuestMemory,
};

/// When to stop, beside what always stops (end, faults, watches, breakpoints, stop decisions, interruption).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Until {
    /// At the first commit whose step is at least this.
    pub step: Option<Step>,
    /// At this position exactly. If its step has fewer user instructions: at the next commit.
    pub position: Option<Position>,
}

impl Until {
    /// Run to the end.
    pub const END: Until = Until { step: None, position: None };

    /// Stop at a step.
    pub fn step(step: Step) -> Until {
        Until { step: Some(step), ..Until::END }
    }

    /// Stop at a position.
    pub fn position(position: Position) -> Until {
        Until { position: Some(position), ..Until::END }
    }
}

/// Why [`Machine::run`] returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Init asks for its job: the place of the boot keyframe. Runs on once a job was set.
    Job,
    /// At the commit of a step: the one asked for, or the one after a position that its step does not reach.
    Step,
    /// At the position asked for.
    Position,
    /// The guest asks for outside input ([`Machine::give_input`]): it is idle and nothing else can happen, or
    /// [`Interrupter::ask_for_input`] was used. Not a place to capture.
    Input,
    /// At the commit a stop decision named.
    Decision,
    /// The guest ended.
    End(EndReason),
    /// Watches hit by the instruction before this one.
    Watch(Vec<WatchHit>),
    /// Before the instruction at a breakpoint.
    Breakpoint(Gva),
    /// [`Interrupter`] was used: at a commit (`stop_soon`) or anywhere (`stop_now`).
    Interrupted,
    /// The guest did something impossible. It has ended.
    Fault(GuestFault),
}

/// Takes the records of the trace ring, oldest first, and early console text.
pub trait RecordSink {
    /// One record. Its header's lengths are checked; `payload` has `payload_len` bytes.
    fn record(&mut self, header: &RecordHeader, payload: &[u8]);
    /// Text written to the console port: before the ring is up, and panics.
    fn console(&mut self, _text: &[u8]) {}
}

/// Forgets everything.
impl RecordSink for () {
    fn record(&mut self, _: &RecordHeader, _: &[u8]) {}
}

/// Stops a running machine from another thread.
pub struct Interrupter {
    memory: Arc<GuestMemory>,
    engine: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Interrupter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupter")
    }
}

impl Interrupter {
    /// Stops at the next commit of a step: a good place to capture. A guest that makes no step never gets there.
    pub fn stop_soon(&self) {
        self.memory.control_u32(CTL_STOP_NOW).store(1, Ordering::SeqCst);
    }

    /// There is input: stops with [`Stop::Input`] at the next poll point, if the guest's channel is open.
    pub fn ask_for_input(&self) {
        self.memory.control_u64(CTL_INPUT_POLL).store(0, Ordering::SeqCst);
    }

    /// Stops wherever the CPU is. The place depends on wall-clock time: nothing of it may be kept.
    pub fn stop_now(&self) {
        (self.engine)();
    }
}

impl Machine {
    /// A handle for other threads.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter { memory: Arc::clone(&self.memory), engine: self.engine.interrupter() }
    }
}
