//! The base: a machine at the last step at which the job is still alone, from which every schedule starts.

use std::sync::Arc;

use rewind_platform::{
    control::THREAD_ROOT,
    state::{ST_RETURNS, ST_SYSCALL, ST_TID},
};
use run::outcome::End;
use vmm::{
    address::{Instructions, Step},
    machine::{EndReason, Machine, MachineError, MachineState, Stop, Until},
    memory::{GuestMemory, PageSet},
};

use crate::{
    decision::{Action, Decision, Place},
    facts::{Facts, Point, ThreadFacts},
    observe::Observer,
    trial::Trial,
};

/// Scheduling points gathered at most; a longer program is perturbed in its first part only.
pub const MOST_POINTS: usize = 500_000;
/// Instructions without a step after which a schedule counts as hung (some tens of seconds of computing).
const NO_PROGRESS: Instructions = Instructions(20_000_000_000);

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
    /// Steps after which a schedule is cut off as hung.
    pub limit: Step,
    /// Threads and points of schedule 0.
    pub facts: Facts,
    /// Schedule 0.
    pub reference: Trial,
}

impl Base {
    /// Runs schedule 0 twice: once to find where the job first has two threads, once to gather its points.
    pub fn new(make: &mut MakeMachine<'_>) -> Result<Base, BaseError> {
        let mut machine = make()?;
        machine.set_no_progress_limit(Some(NO_PROGRESS));
        let mut observer = Observer::new(false);
        let stop = run_to_end(&mut machine, None, &mut observer)?;
        if let Some(why) = observer.not_started.take() {
            return Err(BaseError::NotStarted(why));
        }
        let started = observer.started.ok_or_else(|| BaseError::NotStarted(format!("{stop:?}")))?;
        let end_step = machine.step();
        let first_fork = observer.forks.iter().find(|fork| fork.parent != 0).map(|fork| fork.step);
        let base_step = Step(first_fork.unwrap_or(started + 1).max(started + 1));
        let forks = observer.forks.clone();
        let outcome = (stop, observer);
        drop(machine);

        let mut machine = make()?;
        let mut pages = PageSet::new(machine.memory().pages());
        machine.run(&Until::step(base_step), &mut Observer::new(false))?;
        let state = machine.capture()?;
        let memory = copy_memory(machine.memory(), &mut pages)?;
        let mut facts = gather(&mut machine, &forks)?;
        let reference = trial(outcome.0, outcome.1, end_step, &[])?;
        facts.points.retain(|point| point.place.thread != 0);
        let limit = Step(end_step.0.saturating_mul(20).saturating_add(200_000));
        Ok(Base { state, memory, pages, step: base_step, limit, facts, reference })
    }
}

/// Runs to the end or the limit; stop decisions are left to the caller.
fn run_to_end(
    machine: &mut Machine,
    limit: Option<Step>,
    observer: &mut Observer,
) -> Result<Stop, BaseError> {
    Ok(machine.run(&Until { step: limit, position: None }, observer)?)
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

/// Steps through schedule 0 and notes every commit of the job's threads.
fn gather(machine: &mut Machine, forks: &[crate::observe::Fork]) -> Result<Facts, BaseError> {
    let mut facts = Facts::default();
    let mut observer = Observer::new(false);
    loop {
        let next = Step(machine.step().0 + 1);
        match machine.run(&Until::step(next), &mut observer)? {
            Stop::Step => {}
            Stop::End(_) | Stop::Fault(_) => break,
            other => return Err(BaseError::Stop(format!("{other:?}"))),
        }
        let thread = machine.thread();
        let get = |offset| machine.state_u64(offset).unwrap_or(0);
        let returns = get(ST_RETURNS) as u32;
        if thread == 0 {
            continue;
        }
        // The commit that stopped has been counted: its own number is one less than the count.
        let place = Place { thread, syscall: get(ST_SYSCALL), returns, offset: 0 };
        facts.points.push(Point { step: machine.step().0, place });
        match facts.threads.iter_mut().find(|known| known.name == thread) {
            Some(known) => known.points += 1,
            None => {
                let tid = (get(ST_TID) & 0xffff_ffff) as u32;
                let fork = forks.iter().find(|fork| fork.child == thread);
                let (parent, nth) = fork.map_or((0, 0), |fork| (fork.parent, fork.nth));
                let pid = fork.map_or(tid, |fork| fork.pid);
                facts.threads.push(ThreadFacts { name: thread, parent, nth, tid, pid, points: 1 });
            }
        }
        if facts.points.len() >= MOST_POINTS {
            break;
        }
    }
    if !facts.threads.iter().any(|thread| thread.name == THREAD_ROOT) && facts.threads.is_empty() {
        return Err(BaseError::NotStarted("no thread of the job made a step".into()));
    }
    Ok(facts)
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
    fn run_schedule(&mut self, decisions: &[Decision], deeds: bool) -> Result<Trial, BaseError> {
        self.reset()?;
        self.machine.set_no_progress_limit(Some(NO_PROGRESS));
        let mut entries = Vec::with_capacity(decisions.len());
        for decision in decisions {
            let entry = decision.entry();
            // Several decisions inside one step need one stop.
            if decision.place.offset == 0 || !entries.contains(&entry) {
                entries.push(entry);
            }
        }
        self.machine.set_decisions(&entries)?;
        let mut observer = Observer::new(deeds);
        let mut applied: Vec<Option<u64>> = vec![None; decisions.len()];
        let until = Until::step(self.base.limit);
        let stop = loop {
            let stop = self.machine.run(&until, &mut observer)?;
            if stop != Stop::Decision {
                break stop;
            }
            if let Some(stop) = self.act_inside(decisions, &mut applied, &mut observer)? {
                break stop;
            }
        };
        for (decision, at) in decisions.iter().zip(&mut applied) {
            let place = decision.place;
            let (kind, _) = decision.action.encode();
            let found = observer.applied.iter().find(|applied| {
                place.offset == 0
                    && (applied.thread, applied.syscall, applied.returns, applied.kind)
                        == (place.thread, place.syscall, u64::from(place.returns), kind)
            });
            if let Some(found) = found {
                *at = Some(found.step);
            }
        }
        trial(stop, observer, self.machine.step(), &applied)
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
        self.reset()?;
        let mut entries: Vec<_> = decisions.iter().map(Decision::entry).collect();
        let mut stop = *place;
        stop.offset = 1;
        let stop = Decision { place: stop, action: Action::Preempt };
        entries.push(stop.entry());
        self.machine.set_decisions(&entries)?;
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
        self.reset()?;
        let entries: Vec<_> = decisions.iter().map(Decision::entry).collect();
        self.machine.set_decisions(&entries)?;
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
