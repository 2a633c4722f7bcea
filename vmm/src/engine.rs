//! What an engine offers. An engine knows nothing of runs, traces, schedules or the platform's ports: it runs
//! the CPU until something happens that only the machine can handle.

use std::{ops::Range, sync::Arc};

use crate::{
    address::{Branches, Gpa, Gva, Instructions},
    cpu_model::CpuModel,
    kvm::KvmEngine,
    memory::{GuestMemory, Written},
    soft::SoftEngine,
};
pub use soft_cpu::state::CpuState;

/// Which engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub enum EngineKind {
    /// The host's KVM.
    Kvm,
    /// The software CPU.
    Soft,
}

impl EngineKind {
    /// Name as in `--engine` and in a spec.
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Kvm => "kvm",
            EngineKind::Soft => "soft",
        }
    }
}

/// Makes an engine over `memory`, with the CPU as after reset. The one place that knows all engines.
pub fn create(
    kind: EngineKind,
    memory: &Arc<GuestMemory>,
    model: &'static CpuModel,
) -> Result<Box<dyn Engine>, EngineError> {
    match kind {
        EngineKind::Kvm => Ok(Box::new(KvmEngine::new(memory, model)?)),
        EngineKind::Soft => Ok(Box::new(SoftEngine::new(memory, model))),
    }
}

/// Limits of one [`Engine::run`], each exact on an engine that offers it ([`Capabilities`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Stop before the instruction that would make this many retired (user and kernel). A REP counts once.
    pub instructions: Option<Instructions>,
    /// As above, but only instructions retired in user mode (CPL 3) count.
    pub user_instructions: Option<Instructions>,
    /// Stop right after this many user-mode conditional branches.
    pub user_branches: Option<Branches>,
}

/// What an engine can do exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Instruction budgets cost no more than running (soft) rather than one exit each (kvm, single-stepping).
    pub cheap_instruction_budget: bool,
    /// User-branch budgets: the `work` clock.
    pub branch_budget: bool,
    /// Watches: any number and size, reads included (soft); or up to this many aligned pieces (kvm).
    pub hardware_watches: Option<u8>,
    /// [`Engine::watch`] works at all.
    pub watches: bool,
    /// [`Engine::set_user_stream`] works.
    pub user_stream: bool,
}

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Access {
    Read,
    Write,
    Execute,
}

/// A watched range of guest-virtual addresses in one address space, or of guest-physical ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Where.
    pub range: WatchRange,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Report reads.
    pub read: bool,
    /// Report writes.
    pub write: bool,
}

/// See [`Watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRange {
    /// Virtual, any address space (the caller filters by CR3).
    Virtual(Gva),
    /// Physical: sees kernel writes through the direct map too.
    Physical(Gpa),
}

/// One access that hit a watch. The instruction has completed; RIP is after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchHit {
    /// Address of the instruction that did it; on `kvm` of the next one, behind which the debug registers stop.
    pub rip: Gva,
    /// First byte accessed, linear.
    pub address: Gva,
    /// Its physical address.
    pub physical: Gpa,
    /// Bytes accessed, 1 to 512.
    pub size: u16,
    /// Read or write.
    pub access: Access,
    /// Done in user mode.
    pub user: bool,
    /// User instructions retired since user mode was last entered, before the one that did it: with the step, the
    /// position of the access. For a kernel access: those of the step whose kernel work it belongs to.
    pub since_user: Instructions,
    /// Not the CPU but the image's block port wrote it (`rip` and `address` are 0).
    pub device: bool,
}

/// One access of the user access stream ([`Engine::set_user_stream`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamAccess {
    /// [`Counters::user_instructions`] before the accessing instruction.
    pub before: Instructions,
    /// Address of the instruction.
    pub rip: Gva,
    /// First byte accessed, linear.
    pub address: Gva,
    /// Its physical address.
    pub physical: Gpa,
    /// Bytes accessed.
    pub size: u16,
    /// A write (a read-modify-write is one write).
    pub write: bool,
}

/// An instruction outside the CPU model that the guest executed. It raised #UD (an MSR access: #GP), as on that CPU,
/// unless its name says that it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutsideModel {
    /// Name, as in the manuals.
    pub name: String,
    /// How often since the engine was made.
    pub count: u64,
    /// Address of the first.
    pub first: Gva,
    /// The first was in user mode.
    pub user: bool,
}

impl std::fmt::Display for OutsideModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let times = if self.count == 1 { "once".to_owned() } else { format!("{} times", self.count) };
        let place = if self.user { "" } else { ", in the kernel" };
        write!(f, "{} {times}, first at {:#x}{place}", self.name, self.first.0)
    }
}

/// Why [`Engine::run`] returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// OUT: `data` holds `size * count` bytes. The instruction is complete; a REP OUTS may also come in several
    /// exits of one or more elements, with RIP still at it and RCX counting what is left.
    PortOut {
        /// Port number.
        port: u16,
        /// Bytes per element: 1, 2 or 4.
        size: u8,
        /// All elements, little-endian.
        data: Vec<u8>,
    },
    /// IN: answer with [`Engine::complete_in`] before running again.
    PortIn {
        /// Port number.
        port: u16,
        /// Bytes: 1, 2 or 4.
        size: u8,
    },
    /// A budget is used up exactly.
    Budget,
    /// Only under a `user_instructions` budget that is not used up, and only from an engine without
    /// [`Capabilities::cheap_instruction_budget`]: user mode was left; no kernel instruction has run yet.
    LeftUser,
    /// Watches hit by the last instruction (all of them).
    Watch(Vec<WatchHit>),
    /// RIP is at a breakpoint; the instruction has not run.
    Breakpoint(Gva),
    /// [`Engine::interrupter`] was used.
    Interrupted,
    /// The CPU shut down (triple fault).
    TripleFault,
    /// HLT: the guest kernel never halts.
    Halt,
    /// Access to guest-physical memory that is not there.
    Mmio {
        /// Where.
        address: Gpa,
        /// Write?
        write: bool,
        /// Bytes.
        size: u8,
    },
    /// The engine cannot execute this instruction (kvm emulation failure; soft: outside what it implements).
    Unsupported {
        /// Address of the instruction.
        rip: Gva,
        /// Its first bytes.
        bytes: Vec<u8>,
        /// What it is, in words.
        what: String,
    },
}

/// Host-side failure of an engine (not the guest's doing).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A system call to the host failed.
    #[error("{what}: {source}")]
    Host {
        /// What was being done, naming the object.
        what: String,
        /// The host's error.
        source: std::io::Error,
    },
    /// This host cannot run the engine.
    #[error("{reason}")]
    Unusable {
        /// What is wrong, in words.
        reason: String,
    },
    /// Asked for something [`Capabilities`] says this engine has not.
    #[error("the {engine:?} engine cannot {what}")]
    Unsupported {
        /// Which engine.
        engine: EngineKind,
        /// What was asked.
        what: &'static str,
    },
}

/// Counters since the engine was made; they survive restore (they are about this process, not the guest).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Returns of [`Engine::run`] (soft) or of KVM_RUN.
    pub exits: u64,
    /// Retired instructions, where the engine counts them.
    pub instructions: Instructions,
    /// Retired user-mode instructions; exact over every run with a `user_instructions` budget.
    pub user_instructions: Instructions,
    /// Retired user-mode conditional branches, where the engine counts them.
    pub user_branches: Branches,
    /// User-mode instructions retired since user mode was last entered; `None` where the engine does not count.
    pub since_user: Option<Instructions>,
}

/// One vCPU over a [`crate::memory::GuestMemory`].
pub trait Engine: Send {
    /// Which engine this is.
    fn kind(&self) -> EngineKind;
    /// What it can do.
    fn capabilities(&self) -> Capabilities;
    /// Runs until an [`Exit`].
    fn run(&mut self, budget: &Budget) -> Result<Exit, EngineError>;
    /// Answers the last [`Exit::PortIn`]; low `size` bytes of `value` count.
    fn complete_in(&mut self, value: u32);
    /// The complete CPU state, with no port instruction left half done: an OUT that exited has completed, RIP
    /// after it. Not legal between `PortIn` and `complete_in`.
    fn cpu(&mut self) -> Result<CpuState, EngineError>;
    /// Replaces the complete CPU state.
    fn set_cpu(&mut self, state: &CpuState) -> Result<(), EngineError>;
    /// Delivers one external interrupt before the next instruction. Only at user mode with IF set, where the
    /// last exit was `Budget`, `Breakpoint` or a stop at a step commit.
    fn inject(&mut self, vector: u8) -> Result<(), EngineError>;
    /// Adds to `pages` every guest page written by the *CPU* since last asked. The monitor's own writes are
    /// marked by guest memory.
    fn take_dirty(&mut self, pages: &mut crate::memory::PageSet) -> Result<(), EngineError>;
    /// Follows, from now on, which bytes of these RAM pages (ascending, at most 65,535) the CPU writes, and of no others.
    /// An engine that cannot tell follows none.
    fn follow_writes(&mut self, _pages: &[u64]) {}
    /// What the CPU wrote of the pages followed, since [`Engine::follow_writes`]: all of it, and perhaps more.
    fn written(&self) -> Vec<Written> {
        Vec::new()
    }
    /// Follows this page no more: it was written from outside.
    fn follow_no_more(&mut self, _page: u64) {}
    /// Guest memory was changed from outside (restore, reset): drop what was derived from `pages`
    /// (translations, decoded code). `None` = all of it.
    fn memory_changed(&mut self, pages: Option<&crate::memory::PageSet>);
    /// The monitor wrote these RAM pages (indices in RAM order) between two runs, as a device does: what was derived from
    /// them must be found again. A real CPU sees such writes by itself.
    fn memory_written(&mut self, _pages: &[Range<u64>]) {}
    /// Replaces the set of watches.
    fn watch(&mut self, watches: &[Watch]) -> Result<(), EngineError>;
    /// Starts or stops noting every memory access that user-mode instructions make; take them with
    /// [`Engine::take_user_stream`], often, since they add up. Changes nothing the guest sees.
    fn set_user_stream(&mut self, _on: bool) -> Result<(), EngineError> {
        Err(EngineError::Unsupported { engine: self.kind(), what: "see every access" })
    }
    /// The accesses noted since last asked, in order.
    fn take_user_stream(&mut self) -> Vec<StreamAccess> {
        Vec::new()
    }
    /// Replaces the set of breakpoints (linear addresses, any address space).
    fn breakpoints(&mut self, at: &[Gva]) -> Result<(), EngineError>;
    /// A handle other threads can use to make `run` return [`Exit::Interrupted`] soon.
    fn interrupter(&self) -> Box<dyn Fn() + Send + Sync>;
    /// Counters.
    fn counters(&self) -> Counters;
    /// What ran outside the CPU model, in order of name. An engine that cannot see it says nothing.
    fn outside_model(&self) -> Vec<OutsideModel> {
        Vec::new()
    }
}
