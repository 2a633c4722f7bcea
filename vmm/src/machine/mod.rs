//! The machine: one engine, its memory and the platform's ports.

mod control;
mod fault;
mod input;
mod ports;
mod run;
mod state;
mod stop;
mod watchdog;

use std::sync::Arc;

use rewind_platform::{job::Job, state::Fact};

pub use fault::{EndReason, GuestFault, MachineError};
pub use input::Input;
pub use state::MachineState;
pub use stop::{Interrupter, RecordSink, Stop, Until};

use crate::{
    address::{Branches, Gpa, Instructions, Position, Step, VirtualNs},
    block::BlockImage,
    boot::{self, KernelFiles},
    cpu_model::{CpuModel, REWIND_V2},
    engine::{self, CpuState, Engine, EngineKind, Watch},
    memory::{GuestMemory, PageSet},
    ring::Ring,
};

/// What moves virtual time beside steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Clock {
    /// Steps only.
    Steps,
    /// Also user-mode conditional branches, credited in whole slices of this many, a nanosecond each.
    Work {
        /// Branches of a slice, at least 1.
        slice: u64,
    },
}

/// What a machine is made of.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// Bytes of RAM.
    pub memory: u64,
    /// Which engine.
    pub engine: EngineKind,
    /// CPU model.
    pub cpu_model: &'static CpuModel,
    /// Clock.
    pub clock: Clock,
    /// Kernel and initramfs.
    pub kernel: KernelFiles,
}

impl MachineConfig {
    /// `bytes` of memory, the `steps` clock and the one CPU model.
    pub fn new(memory: u64, engine: EngineKind, kernel: KernelFiles) -> Self {
        MachineConfig { memory, engine, cpu_model: &REWIND_V2, clock: Clock::Steps, kernel }
    }
}

/// What the monitor writes to the state page when init asks for its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RunParameters {
    /// Virtual nanoseconds of a step.
    pub quantum: u64,
    /// A next deadline further away counts as stalled, nanoseconds.
    pub horizon: u64,
    /// Nanoseconds of nothing but periodic timers after which the run ends as idling; 0 never.
    pub idling: u64,
    /// Nanoseconds a kernel poll point adds.
    pub poll_cost: u64,
    /// Nanoseconds charged for 4 KiB of bulk kernel work.
    pub page_cost: u64,
    /// Outside input may come: waiting for it is not a stall.
    pub input_open: bool,
}

impl RunParameters {
    /// What a run has unless asked otherwise.
    pub const DEFAULT: RunParameters = RunParameters {
        quantum: 2_000,
        horizon: 365 * 86_400 * 1_000_000_000,
        idling: 3_600 * 1_000_000_000,
        poll_cost: 150,
        page_cost: 400,
        input_open: false,
    };
}

impl Default for RunParameters {
    fn default() -> Self {
        RunParameters::DEFAULT
    }
}

/// Where the CPU is with respect to steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Place {
    /// In the kernel or somewhere in a step, not counted.
    Running,
    /// At the commit of the current step, or this many user instructions into it.
    Counted(Instructions),
}

/// One guest machine. Not running unless inside [`Machine::run`].
pub struct Machine {
    memory: Arc<GuestMemory>,
    engine: Box<dyn Engine>,
    clock: Clock,
    images: Vec<Box<dyn BlockImage>>,
    job: Option<(Vec<u8>, RunParameters)>,
    ring: Ring,
    /// As given to [`Machine::watch`].
    watches: Vec<Watch>,
    trace_level: u32,
    watchdog: Option<watchdog::Watchdog>,
    piece: Option<Instructions>,
    /// Guest-physical address of the state page, once published.
    state_page: Option<Gpa>,
    place: Place,
    /// Init waits inside its request for the job.
    waiting_for_job: bool,
    /// The guest has ended: nothing runs any more.
    ended: bool,
    /// Branches left of the current slice (`work` clock).
    slice_left: Branches,
    /// Last console text, for panics.
    console: Vec<u8>,
    inputs: input::Inputs,
}

impl std::fmt::Debug for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("engine", &self.engine.kind())
            .field("position", &self.position())
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

impl Machine {
    /// Loads kernel and initramfs and puts the CPU at the kernel's entry. Runs nothing.
    pub fn boot(config: &MachineConfig) -> Result<Machine, MachineError> {
        let mut machine = Machine::empty(config)?;
        let entry = boot::load(&machine.memory, &config.kernel)?;
        machine.engine.set_cpu(&entry)?;
        machine.engine.memory_changed(None);
        Ok(machine)
    }

    /// A machine with zeroed memory and a CPU as after reset, for [`Machine::restore`]; the kernel files of
    /// `config` are not looked at.
    pub fn empty(config: &MachineConfig) -> Result<Machine, MachineError> {
        let memory = Arc::new(GuestMemory::new(config.memory)?);
        Machine::over(config, memory)
    }

    /// As [`Machine::empty`], over memory made by the caller.
    pub fn over(config: &MachineConfig, memory: Arc<GuestMemory>) -> Result<Machine, MachineError> {
        let engine = engine::create(config.engine, &memory, config.cpu_model)?;
        let slice_left = match config.clock {
            Clock::Steps => 0,
            Clock::Work { .. } if !engine.capabilities().branch_budget => {
                return Err(MachineError::WorkClock { engine: config.engine });
            }
            Clock::Work { slice: 0 } => return Err(MachineError::EmptySlice),
            Clock::Work { slice } => slice,
        };
        let mut machine = Machine {
            memory,
            engine,
            clock: config.clock,
            images: Vec::new(),
            job: None,
            ring: Ring::default(),
            watches: Vec::new(),
            trace_level: 0,
            watchdog: None,
            piece: None,
            state_page: None,
            place: Place::Running,
            waiting_for_job: false,
            ended: false,
            slice_left: Branches(slice_left),
            console: Vec::new(),
            inputs: input::Inputs::default(),
        };
        machine.reset_control()?;
        Ok(machine)
    }

    /// Disk images, by their number in the guest's requests.
    pub fn set_images(&mut self, images: Vec<Box<dyn BlockImage>>) {
        self.images = images;
    }

    /// The job handed to init when it asks (or already waits) for it.
    pub fn set_job(&mut self, job: &Job, parameters: &RunParameters) -> Result<(), MachineError> {
        let bytes = control::encode_job(job)?;
        self.job = Some((bytes, *parameters));
        Ok(())
    }

    /// Replaces the set of watches. Unlike the engine's own, physical ones also see what the image's block port
    /// fills ([`engine::WatchHit::device`]).
    pub fn watch(&mut self, watches: &[Watch]) -> Result<(), MachineError> {
        self.engine.watch(watches)?;
        self.watches = watches.to_vec();
        Ok(())
    }

    /// The engine runs in pieces of at most this many instructions, user and kernel. Changes nothing of the run:
    /// for tests that show it. Only on engines that count all instructions cheaply.
    pub fn set_piece(&mut self, piece: Option<Instructions>) {
        self.piece = piece;
    }

    /// Guest memory.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// The engine, for what it can do beside running: watches, breakpoints, counters, capabilities.
    pub fn engine(&mut self) -> &mut dyn Engine {
        &mut *self.engine
    }

    /// Adds the pages written since last asked, by the CPU and by the monitor, and forgets them.
    pub fn take_dirty(&mut self, pages: &mut PageSet) -> Result<(), MachineError> {
        self.engine.take_dirty(pages)?;
        let mut own = PageSet::new(self.memory.pages());
        self.memory.take_own_dirty(&mut own);
        for page in own.iter() {
            self.engine.follow_no_more(page);
        }
        pages.union(&own);
        Ok(())
    }

    /// The complete CPU state.
    pub fn cpu(&mut self) -> Result<CpuState, MachineError> {
        Ok(self.engine.cpu()?)
    }

    /// Replaces the CPU state (a debugger writing registers).
    pub fn set_cpu(&mut self, state: &CpuState) -> Result<(), MachineError> {
        Ok(self.engine.set_cpu(state)?)
    }

    /// Does init wait inside its request for the job? Then the next run hands it over.
    pub fn waiting_for_job(&self) -> bool {
        self.waiting_for_job
    }

    /// Has the guest ended?
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Current step, and user instructions since it where they were counted (0 otherwise).
    pub fn position(&self) -> Position {
        let offset = match self.place {
            Place::Counted(offset) => offset,
            Place::Running => Instructions(0),
        };
        Position { step: self.step(), offset }
    }

    /// At the commit of a step, with none of its user instructions run: a place every run of the spec has.
    /// (After a stop at a watch or a breakpoint it may also be inside the kernel's work at the end of a step
    /// without user instructions.)
    pub fn at_commit(&self) -> bool {
        self.place == Place::Counted(Instructions(0))
    }

    /// Steps committed; 0 before the guest published its state page.
    pub fn step(&self) -> Step {
        Step(self.state_u64(rewind_platform::state::ST_STEP).unwrap_or(0))
    }

    /// Virtual time.
    pub fn now(&self) -> VirtualNs {
        use rewind_platform::state::{ST_BASE, ST_BASE_STEP, ST_QUANTUM, ST_STEP};
        let get = |offset| self.state_u64(offset).unwrap_or(0);
        let steps = get(ST_STEP).wrapping_sub(get(ST_BASE_STEP));
        VirtualNs(get(ST_BASE).wrapping_add(steps.wrapping_mul(get(ST_QUANTUM))))
    }

    /// Name of the thread that committed the current step.
    pub fn thread(&self) -> u64 {
        self.state_u64(rewind_platform::state::ST_THREAD).unwrap_or(0)
    }

    /// Address of the state page; `None` before the guest published it.
    pub fn state_page(&self) -> Option<Gpa> {
        self.state_page
    }

    /// A u64 of the state page; `None` before the guest published it.
    pub fn state_u64(&self, offset: u64) -> Option<u64> {
        let page = self.state_page?;
        self.memory.read_u64(Gpa(page.0 + offset)).ok()
    }

    /// A published kernel fact; `None` if absent.
    pub fn fact(&self, fact: Fact) -> Option<u64> {
        let value = self.state_u64(rewind_platform::state::ST_FACTS + 8 * fact as u64)?;
        (value != u64::MAX).then_some(value)
    }
}
