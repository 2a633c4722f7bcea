//! The base: a machine at the last step at which the job is still alone, from which every schedule starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use rewind_platform::state::{ST_QUANTUM, ST_RETURNS, ST_SYSCALL};
use run::outcome::End;
use vmm::{
    address::{Instructions, Step, VirtualNs},
    machine::{EndReason, Machine, MachineError, MachineState, Stop, Until},
    memory::{GuestMemory, PageSet},
};

use crate::{
    decision::{Action, Decision, Place},
    observe::{Fork, Observer},
    trial::Trial,
};

/// Instructions without a step after which a schedule counts as hung (some tens of seconds of computing).
const NO_PROGRESS: Instructions = Instructions(20_000_000_000);

/// Steps between two looks at the virtual clock, where there is a time limit.
const TIME_CHECK: u64 = 4096;

/// Why the base could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaseError {
    /// The machine failed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The job never began.
    #[error("the job could not be started: {0}")]
    NotStarted(String),
    /// No machine could be made.
    #[error("{0}")]
    Make(String),
    /// The machine did something the base run cannot have.
    #[error("unexpected stop of the base machine: {0}")]
    Stop(String),
}

/// Makes a machine that waits for its job (at [`Stop::Job`]), with images and job set.
pub type MakeMachine<'a> = dyn FnMut() -> Result<Machine, BaseError> + 'a;

/// The base machine's state and memory, shared by all workers, and schedule 0.
#[derive(Debug)]
pub struct Base {
    /// State at the base step.
    pub state: MachineState,
    /// Its memory; never run.
    pub memory: Arc<GuestMemory>,
    /// Pages that are not zero.
    pub pages: PageSet,
    /// The base step.
    pub step: Step,
    /// Steps after which a schedule without stalls is cut off as hung.
    pub limit: Step,
    /// Virtual time at which a schedule is cut off, if asked for.
    pub deadline: Option<VirtualNs>,
    /// Virtual nanoseconds of a step.
    pub quantum: u64,
    /// Threads of the job created before the base.
    pub(crate) threads: Vec<Fork>,
    /// Schedule 0.
    pub reference: Trial,
}

/// Steps looked through for the first place at which two threads can run.
const MOST_SEARCHED: u64 = 300_000;

impl Base {
    /// Runs schedule 0 and captures the machine just before a second thread of the job can run: nothing a schedule
    /// decides comes earlier. `timeout` is virtual time from the start of the job.
    pub fn new(make: &mut MakeMachine<'_>, timeout: Option<u64>) -> Result<Base, BaseError> {
        let mut machine = make()?;
        machine.set_no_progress_limit(Some(NO_PROGRESS));
        let mut observer = Observer::new(false);
        let stop = machine.run(&Until::END, &mut observer)?;
        if let Some(why) = observer.not_started.take() {
            return Err(BaseError::NotStarted(why));
        }
        let started = observer.started.ok_or_else(|| BaseError::NotStarted(format!("{stop:?}")))?;
        let started_at = observer.started_at;
        let end_step = machine.step();
        let end_time = machine.now();
        let forks = observer.forks.clone();
        let mut reference = trial(stop, observer, end_step, &[])?;
        drop(machine);

        let mut machine = make()?;
        let first_fork = forks.iter().find(|fork| fork.parent != 0).map(|fork| fork.step);
        let mut base_step = Step(first_fork.unwrap_or(started).max(started + 1));
        machine.run(&Until::step(base_step), &mut ())?;
        if first_fork.is_some() {
            let contended = first_contended(&mut machine, end_step)?;
            if contended.0 > base_step.0 + 1 {
                base_step = Step(contended.0 - 1);
                drop(machine);
                machine = make()?;
                machine.run(&Until::step(base_step), &mut ())?;
            } else if machine.step() > base_step {
                drop(machine);
                machine = make()?;
                machine.run(&Until::step(base_step), &mut ())?;
            }
        }
        let mut pages = PageSet::new(machine.memory().pages());
        let state = machine.capture()?;
        let memory = copy_memory(machine.memory(), &mut pages)?;
        let span = end_step.0.saturating_sub(base_step.0);
        let limit = Step(base_step.0.saturating_add(span.saturating_mul(20)).saturating_add(200_000));
        let deadline = timeout.map(|ns| VirtualNs(started_at.saturating_add(ns)));
        if deadline.is_some_and(|deadline| end_time > deadline) {
            reference.ending = End::TimedOut;
        }
        let quantum = machine.state_u64(ST_QUANTUM).unwrap_or(1).max(1);
        let threads = forks.into_iter().filter(|fork| fork.step < base_step.0).collect();
        Ok(Base { state, memory, pages, step: base_step, limit, deadline, quantum, threads, reference })
    }
}

/// Steps on to the first commit at which another thread of the job could have run instead; the end if there is none.
fn first_contended(machine: &mut Machine, end: Step) -> Result<Step, BaseError> {
    let from = machine.step().0;
    while machine.step() < end && machine.step().0 - from < MOST_SEARCHED {
        if others_can_run(machine) {
            return Ok(machine.step());
        }
        let next = Step(machine.step().0 + 1);
        match machine.run(&Until::step(next), &mut ())? {
            Stop::Step => {}
            _ => return Ok(Step(from)),
        }
    }
    Ok(Step(from))
}

/// Could another thread of the job run, now or without the one that committed this step doing something? All do but
/// those that wait for a process to end: a thread asleep in the kernel may be woken by a timer or a device.
pub(crate) fn others_can_run(machine: &mut Machine) -> bool {
    /// wait4 and waitid (arch/x86/entry/syscalls/syscall_64.tbl).
    const WAITS: [u64; 2] = [61, 247];
    /// TASK_INTERRUPTIBLE and TASK_DEAD (include/linux/sched.h).
    const ASLEEP: u32 = 1;
    const DEAD: u32 = 0x80;
    let name = machine.thread();
    let Ok(cpu) = machine.cpu() else { return true };
    let Some(kernel) = debug::look::kernel(machine) else { return true };
    let Ok(threads) = debug::process::threads(&kernel) else { return true };
    threads.iter().any(|thread| {
        let waits = || {
            let registers = thread.registers(&kernel, &cpu);
            registers.is_ok_and(|registers| WAITS.contains(&registers.orig_rax))
        };
        thread.name != 0
            && thread.name != name
            && thread.state & DEAD == 0
            && !(thread.state & ASLEEP != 0 && waits())
    })
}

fn copy_memory(from: &GuestMemory, pages: &mut PageSet) -> Result<Arc<GuestMemory>, MachineError> {
    let to = GuestMemory::new(from.ram_len())?;
    let mut buffer = [0; 4096];
    for page in 0..from.pages() {
        let at = from.address_of(page);
        from.read(at, &mut buffer)?;
        if buffer.iter().any(|byte| *byte != 0) {
            to.write(at, &buffer)?;
            pages.insert(page);
        }
    }
    Ok(Arc::new(to))
}

/// Boils a finished run down.
pub(crate) fn trial(
    stop: Stop,
    observer: Observer,
    steps: Step,
    applied: &[Option<u64>],
) -> Result<Trial, BaseError> {
    let ending = match stop {
        Stop::End(EndReason::PowerOff) => match observer.status {
            Some(status) if status & 0x7f == 0 => End::Exited(((status >> 8) & 0xff) as u8),
            Some(_) if observer.out_of_memory => End::OutOfMemory,
            Some(status) => End::Killed((status & 0x7f) as u8),
            None => match &observer.not_started {
                Some(why) => return Err(BaseError::NotStarted(why.clone())),
                None => End::PoweredOff,
            },
        },
        Stop::End(EndReason::Restart) => End::PoweredOff,
        Stop::End(EndReason::Panic { text }) => End::KernelPanic(text),
        Stop::End(EndReason::Stalled) => End::Stalled,
        Stop::End(EndReason::Idling) => End::Idling,
        Stop::Step => End::TimedOut,
        Stop::Fault(vmm::machine::GuestFault::NoProgress { .. }) => End::TimedOut,
        Stop::Fault(fault) => End::GuestFault(fault.to_string()),
        other => return Err(BaseError::Stop(format!("{other:?}"))),
    };
    Ok(Trial {
        ending,
        steps: steps.0,
        output: observer.output.map(|hasher| hasher.finalize().into()),
        output_text: observer.output_text,
        outputs: observer.outputs,
        failed: observer.failed,
        coverage: observer.coverage,
        starved: false,
        crashes: observer.crashes,
        waiters: observer.waiters,
        applied: applied.to_vec(),
        deeds: observer.deeds,
    })
}

/// One worker's machine, put back to the base before each schedule.
#[derive(Debug)]
pub struct Worker {
    machine: Machine,
    base: Arc<Base>,
    dirty: PageSet,
}

impl Worker {
    /// `machine` is empty or waits for its job; it is brought to the base here.
    pub fn new(machine: Machine, base: Arc<Base>) -> Result<Self, BaseError> {
        let dirty = PageSet::new(machine.memory().pages());
        let mut worker = Worker { machine, base, dirty };
        // The first time, everything that is not as in the base must go.
        let mut buffer = [0; 4096];
        for page in 0..worker.machine.memory().pages() {
            worker
                .machine
                .memory()
                .read(worker.machine.memory().address_of(page), &mut buffer)
                .map_err(MachineError::from)?;
            if buffer.iter().any(|byte| *byte != 0) || worker.base.pages.contains(page) {
                worker.dirty.insert(page);
            }
        }
        Ok(worker)
    }

    fn reset(&mut self) -> Result<(), BaseError> {
        self.machine.take_dirty(&mut self.dirty)?;
        let mut buffer = [0; 4096];
        for page in self.dirty.iter() {
            let at = self.base.memory.address_of(page);
            self.base.memory.read(at, &mut buffer).map_err(MachineError::from)?;
            self.machine.memory().write(at, &buffer).map_err(MachineError::from)?;
        }
        self.machine.reset(&self.base.state, &self.dirty)?;
        self.dirty.clear();
        // What was written just now is the base again.
        self.machine.take_dirty(&mut self.dirty)?;
        self.dirty.clear();
        Ok(())
    }
}

impl Worker {
    /// The base it starts from.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Back to the base, with these decisions handed over.
    pub(crate) fn begin(&mut self, decisions: &[Decision]) -> Result<(), BaseError> {
        self.reset()?;
        self.machine.set_no_progress_limit(Some(NO_PROGRESS));
        let mut entries = Vec::with_capacity(decisions.len());
        let mut stops = BTreeSet::new();
        for decision in decisions {
            // Several decisions inside one step need one stop.
            if decision.place.offset == 0 || stops.insert(Place { offset: 1, ..decision.place }) {
                entries.push(decision.entry());
            }
        }
        Ok(self.machine.set_decisions(&entries)?)
    }

    /// Runs on to the end or the limits.
    fn run_out(
        &mut self,
        decisions: &[Decision],
        applied: &mut [Option<u64>],
        observer: &mut Observer,
    ) -> Result<Stop, BaseError> {
        // Every stall may be spent spinning, a step a quantum.
        let stalled: u64 = decisions.iter().map(|decision| decision.action.delay()).sum();
        let limit = Step(self.base.limit.0.saturating_add(stalled / self.base.quantum));
        loop {
            let mut until = limit;
            if self.base.deadline.is_some() {
                until = until.min(Step(self.machine.step().0 + TIME_CHECK));
            }
            let stop = match self.machine.run(&Until::step(until), observer)? {
                Stop::Decision => self.act_inside(decisions, applied, observer)?,
                Stop::Step if self.machine.step() < limit && !self.past_deadline() => None,
                // The idle clock jumped over the limit.
                Stop::End(_) if self.past_deadline() => Some(Stop::Step),
                stop => Some(stop),
            };
            if let Some(stop) = stop {
                return Ok(stop);
            }
        }
    }

    fn past_deadline(&self) -> bool {
        self.base.deadline.is_some_and(|deadline| self.machine.now() > deadline)
    }

    fn run_schedule(&mut self, decisions: &[Decision], deeds: bool) -> Result<Trial, BaseError> {
        self.begin(decisions)?;
        let mut observer = Observer::new(deeds);
        let mut applied: Vec<Option<u64>> = vec![None; decisions.len()];
        let stop = self.run_out(decisions, &mut applied, &mut observer)?;
        let found: BTreeMap<_, u64> =
            observer.applied.iter().map(|a| ((a.thread, a.syscall, a.returns, a.kind), a.step)).collect();
        for (decision, at) in decisions.iter().zip(&mut applied) {
            let place = decision.place;
            if place.offset == 0 {
                let (kind, _) = decision.action.encode();
                let key = (place.thread, place.syscall, u64::from(place.returns), kind);
                *at = found.get(&key).copied();
            }
        }
        let ranked = decisions.iter().zip(&applied).any(|(d, at)| at.is_some() && d.action.is_rank());
        let mut trial = trial(stop, observer, self.machine.step(), &applied)?;
        // A thread that spins for one of lower rank never gets anywhere: that is the schedule's fault.
        trial.starved = ranked && trial.ending == End::TimedOut && !self.past_deadline();
        Ok(trial)
    }

    /// At the commit a stop decision named: goes on by instructions and acts. A `Some` ends the run.
    fn act_inside(
        &mut self,
        decisions: &[Decision],
        applied: &mut [Option<u64>],
        observer: &mut Observer,
    ) -> Result<Option<Stop>, BaseError> {
        let step = self.machine.step();
        let get = |machine: &Machine, offset| machine.state_u64(offset).unwrap_or(0);
        let here =
            (self.machine.thread(), get(&self.machine, ST_SYSCALL), get(&self.machine, ST_RETURNS) as u32);
        let mut inside: Vec<usize> = (0..decisions.len())
            .filter(|&i| {
                let place = decisions[i].place;
                place.offset > 0 && (place.thread, place.syscall, place.returns) == here
            })
            .collect();
        inside.sort_by_key(|&i| decisions[i].place.offset);
        for i in inside {
            let offset = Instructions(decisions[i].place.offset);
            if self.machine.step() != step {
                break;
            }
            let position = vmm::address::Position { step, offset };
            match self.machine.run(&Until::position(position), observer)? {
                Stop::Position => {
                    let (kind, arg) = decisions[i].action.encode();
                    self.machine.act(kind, arg)?;
                    applied[i] = Some(step.0);
                }
                // The step has fewer instructions than when the place was named: not reached.
                Stop::Step => break,
                other => return Ok(Some(other)),
            }
        }
        Ok(None)
    }
}

impl Worker {
    /// The machine, wherever the last call left it.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// From the base under `decisions` (none with an offset acts) to the commit at `place`; false if it is never
    /// reached.
    pub(crate) fn stop_at(&mut self, decisions: &[Decision], place: &Place) -> Result<bool, BaseError> {
        let mut all = decisions.to_vec();
        all.push(Decision { place: Place { offset: 1, ..*place }, action: Action::Preempt });
        self.begin(&all)?;
        let mut observer = Observer::new(false);
        let mut applied = vec![None; decisions.len()];
        loop {
            if self.machine.run(&Until::step(self.base.limit), &mut observer)? != Stop::Decision {
                return Ok(false);
            }
            let get = |offset| self.machine.state_u64(offset).unwrap_or(0);
            if (self.machine.thread(), get(ST_SYSCALL), get(ST_RETURNS) as u32)
                == (place.thread, place.syscall, place.returns)
            {
                return Ok(true);
            }
            if self.act_inside(decisions, &mut applied, &mut observer)?.is_some() {
                return Ok(false);
            }
        }
    }

    /// From the base under `decisions` to the commit of `step`; false if the run ends before.
    pub(crate) fn run_to(&mut self, decisions: &[Decision], step: u64) -> Result<bool, BaseError> {
        self.begin(decisions)?;
        let mut observer = Observer::new(false);
        let mut applied = vec![None; decisions.len()];
        loop {
            match self.machine.run(&Until::step(Step(step)), &mut observer)? {
                Stop::Step => return Ok(true),
                Stop::Decision => {
                    if self.act_inside(decisions, &mut applied, &mut observer)?.is_some() {
                        return Ok(false);
                    }
                }
                _ => return Ok(false),
            }
        }
    }
}

impl crate::pool::Subject for Worker {
    fn run(&mut self, decisions: &[Decision], deeds: bool) -> Result<Trial, crate::pool::SubjectError> {
        self.run_schedule(decisions, deeds).map_err(|error| crate::pool::SubjectError(error.to_string()))
    }
}
