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
    observe::Observer,
    trial::Trial,
};

/// Instructions without a step after which a schedule counts as hung (some ten seconds of computing or more).
const NO_PROGRESS: Instructions = Instructions(4_000_000_000);

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
    /// `--from` lies outside the job.
    #[error("step {from} lies outside the job: decisions can start from step {first} to {last}")]
    From {
        /// What was asked.
        from: u64,
        /// First step possible.
        first: u64,
        /// Last step possible.
        last: u64,
    },
    /// No machine could be made.
    #[error("{0}")]
    Make(String),
    /// The machine did something the base run cannot have.
    #[error("unexpected stop of the base machine: {0}")]
    Stop(String),
}

/// Makes a machine that waits for its job (at [`Stop::Job`]), with images and job set.
pub type MakeMachine<'a> = dyn FnMut() -> Result<Machine, BaseError> + 'a;

/// What the user asks of the base.
#[derive(Clone, Copy, Debug, Default)]
pub struct BaseOptions {
    /// Virtual nanoseconds from the start of the job after which a schedule is cut off.
    pub timeout: Option<u64>,
    /// Lines of output may come in any order.
    pub any_order: bool,
    /// Decisions start at this step.
    pub from: Option<Step>,
}

/// The base machine's state and memory, shared by all workers, and schedule 0.
#[derive(Debug)]
pub struct Base {
    /// State at the base step.
    pub state: MachineState,
    /// Its memory; never run again.
    pub memory: Arc<GuestMemory>,
    /// Pages that differ from those of a machine that waits for its job.
    pub pages: PageSet,
    /// The base step.
    pub step: Step,
    /// Steps after which a schedule without stalls is cut off as hung.
    pub limit: Step,
    /// Virtual time at which a schedule is cut off, if asked for.
    pub deadline: Option<VirtualNs>,
    /// Virtual nanoseconds of a step.
    pub quantum: u64,
    /// The job has more than one thread in schedule 0.
    pub forks: bool,
    /// What was seen before the base.
    before: Observer,
    /// Schedule 0.
    pub reference: Trial,
}

/// Steps looked through for the first place at which two threads can run.
const MOST_SEARCHED: u64 = 300_000;

impl Base {
    /// Runs schedule 0 and captures the machine just before a second thread of the job can run: nothing a schedule
    /// decides comes earlier.
    pub fn new(make: &mut MakeMachine<'_>, options: &BaseOptions) -> Result<Base, BaseError> {
        let mut machine = make()?;
        machine.set_no_progress_limit(Some(NO_PROGRESS));
        let mut observer = Observer::new(false, options.any_order);
        let stop = loop {
            let until = match options.timeout {
                Some(_) => Until::step(Step(machine.step().0 + TIME_CHECK)),
                None => Until::END,
            };
            let stop = machine.run(&until, &mut observer)?;
            let past = |ns| observer.started.is_some() && machine.now().0 - observer.started_at > ns;
            if stop != Stop::Step || options.timeout.is_some_and(past) {
                break stop;
            }
        };
        if let Some(why) = observer.not_started.take() {
            return Err(BaseError::NotStarted(why));
        }
        let started = observer.started.ok_or_else(|| BaseError::NotStarted(format!("{stop:?}")))?;
        let started_at = observer.started_at;
        let end_step = machine.step();
        let end_time = machine.now();
        let first_fork = observer.forks.iter().find(|fork| fork.parent != 0).map(|fork| fork.step);
        let mut reference = trial(stop, observer, end_step, &[])?;
        drop(machine);

        let mut before = Observer::new(false, options.any_order);
        let (base_step, mut machine) = match options.from {
            Some(from) if from.0 <= started || from >= end_step => {
                let (first, last) = (started + 1, end_step.0.saturating_sub(1));
                return Err(BaseError::From { from: from.0, first, last });
            }
            Some(from) => (from, at_step(make, from, &mut before)?),
            None => {
                let first = Step(first_fork.unwrap_or(started).max(started + 1));
                match first_fork {
                    Some(_) => find_base(make, first, end_step, &mut before)?,
                    None => (first, at_step(make, first, &mut before)?),
                }
            }
        };
        let mut pages = PageSet::new(machine.memory().pages());
        let state = machine.capture()?;
        machine.take_dirty(&mut pages)?;
        let memory = Arc::clone(machine.memory());
        let span = end_step.0.saturating_sub(base_step.0);
        let limit = Step(base_step.0.saturating_add(span.saturating_mul(20)).saturating_add(200_000));
        let deadline = options.timeout.map(|ns| VirtualNs(started_at.saturating_add(ns)));
        if deadline.is_some_and(|deadline| end_time > deadline) {
            reference.ending = End::TimedOut;
        }
        let quantum = machine.state_u64(ST_QUANTUM).unwrap_or(1).max(1);
        let forks = first_fork.is_some();
        Ok(Base { state, memory, pages, step: base_step, limit, deadline, quantum, forks, before, reference })
    }
}

/// A new machine at the commit of `step`; `before` has seen what came until then.
fn at_step(make: &mut MakeMachine<'_>, step: Step, before: &mut Observer) -> Result<Machine, BaseError> {
    let mut machine = make()?;
    let mut pages = PageSet::new(machine.memory().pages());
    machine.take_dirty(&mut pages)?;
    match machine.run(&Until::step(step), before)? {
        Stop::Step => Ok(machine),
        other => Err(BaseError::Stop(format!("{other:?}"))),
    }
}

/// The last commit before two threads of the job can run, at or after `first`, and a machine there.
fn find_base(
    make: &mut MakeMachine<'_>,
    first: Step,
    end: Step,
    before: &mut Observer,
) -> Result<(Step, Machine), BaseError> {
    let fresh = before.clone();
    let mut machine = at_step(make, first, before)?;
    let contended = first_contended(&mut machine, end)?;
    let base = Step(contended.0.saturating_sub(1).max(first.0));
    if machine.step() == base {
        return Ok((base, machine));
    }
    drop(machine);
    *before = fresh;
    Ok((base, at_step(make, base, before)?))
}

impl Base {
    /// What a schedule's records are told to, from the base on.
    pub(crate) fn observer(&self, deeds: bool) -> Observer {
        let mut observer = self.before.clone();
        observer.want_deeds = deeds;
        observer
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

/// Boils a finished run down.
pub(crate) fn trial(
    stop: Stop,
    observer: Observer,
    steps: Step,
    applied: &[Option<u64>],
) -> Result<Trial, BaseError> {
    let spins = matches!(stop, Stop::Fault(vmm::machine::GuestFault::NoProgress { .. }));
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
        output: observer.output(),
        output_text: observer.output_text,
        outputs: observer.outputs,
        failed: observer.failed,
        coverage: observer.coverage,
        starved: false,
        spins,
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
    /// `machine` waits for its job, as the base's did.
    pub fn new(machine: Machine, base: Arc<Base>) -> Result<Self, BaseError> {
        let dirty = PageSet::new(machine.memory().pages());
        let mut worker = Worker { machine, base, dirty };
        // The first time, everything that the base has written must come.
        worker.dirty.union(&worker.base.pages);
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
        // Every stall may be spent spinning, a step a quantum: that much is allowed beyond the limit, but only to a
        // run that spins after the last stall. One that spins during a stall gets no verdict.
        let stalled: u64 = decisions.iter().map(|decision| decision.action.delay()).sum();
        let last = Step(self.base.limit.0.saturating_add(stalled / self.base.quantum));
        let mut limit = self.base.limit;
        loop {
            let mut until = limit;
            if self.base.deadline.is_some() {
                until = until.min(Step(self.machine.step().0 + TIME_CHECK));
            }
            let stop = match self.machine.run(&Until::step(until), observer)? {
                Stop::Decision => self.act_inside(decisions, applied, observer)?,
                Stop::Step if self.past_deadline() => Some(Stop::Step),
                Stop::Step if self.machine.step() < limit => None,
                Stop::Step if limit < last && self.machine.now().0 >= observer.held_until => {
                    limit = last;
                    None
                }
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
        let mut observer = self.base.observer(deeds);
        let mut applied: Vec<Option<u64>> = vec![None; decisions.len()];
        let stop = self.run_out(decisions, &mut applied, &mut observer)?;
        let held = self.machine.now().0 < observer.held_until;
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
        // A thread that spins for one of lower rank, or for one that is held up, never gets anywhere: that is the
        // schedule's fault.
        trial.starved = (ranked || held) && trial.ending == End::TimedOut && !self.past_deadline();
        Ok(trial)
    }

    /// At the commit a stop decision named: goes on by instructions and acts. A `Some` ends the run.
    pub(crate) fn act_inside(
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
                    if !self.machine.act(kind, arg)? {
                        break;
                    }
                    observer.hold(self.machine.now().0, decisions[i].action.delay());
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
        let mut observer = self.base.observer(false);
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

    /// From the base under `decisions` to the first commit at or after `step`; false if the run ends before.
    pub(crate) fn run_to(&mut self, decisions: &[Decision], step: u64) -> Result<bool, BaseError> {
        self.begin(decisions)?;
        let mut observer = self.base.observer(false);
        let mut applied = vec![None; decisions.len()];
        while self.machine.step().0 < step {
            let ended = match self.machine.run(&Until::step(Step(step)), &mut observer)? {
                Stop::Step => false,
                Stop::Decision => self.act_inside(decisions, &mut applied, &mut observer)?.is_some(),
                _ => true,
            };
            if ended {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// From the base under `decisions` to the end.
    pub(crate) fn run_whole(&mut self, decisions: &[Decision]) -> Result<(), BaseError> {
        self.begin(decisions)?;
        let mut observer = self.base.observer(false);
        let mut applied = vec![None; decisions.len()];
        self.run_out(decisions, &mut applied, &mut observer).map(|_| ())
    }
}

impl crate::pool::Subject for Worker {
    fn run(&mut self, decisions: &[Decision], deeds: bool) -> Result<Trial, crate::pool::SubjectError> {
        self.run_schedule(decisions, deeds).map_err(|error| crate::pool::SubjectError(error.to_string()))
    }
}
