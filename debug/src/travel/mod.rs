//! Going forward and back in a run as a debugger does: by instructions of a thread, to breakpoints and watchpoints,
//! to signals, to the beginning and the end of one process.
//!
//! Going back is restoring an earlier checkpoint or keyframe and running forward to an earlier position. A position
//! inside the kernel shows the program as the kernel will return to it.

mod armed;
mod far;
pub mod history;
mod scan;
mod step;

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rewind_platform::state::ST_TID;
use run::{
    error::StageError,
    seek::{Checkpoint, Timeline},
};
use vmm::{
    Machine, Stop, Until,
    address::{Gpa, Gva, Instructions, Position, Step},
};

use crate::{
    kernel::{Kernel, Read, ReadError},
    look,
    process::{self, Thread},
};
pub use armed::{Kind, Watchpoint};
pub use far::Open;
use history::{Event, History, What};

/// More user instructions than a step is ever asked for.
const ALL: Instructions = Instructions(u64::MAX >> 1);
/// Most memory checkpoints take.
const MOST_BYTES: usize = 384 << 20;

/// Why a movement failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TravelError {
    /// The run.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The machine.
    #[error(transparent)]
    Machine(#[from] vmm::MachineError),
    /// The trace.
    #[error(transparent)]
    Trace(#[from] run::trace::TraceError),
    /// The guest's memory.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Nobody to debug.
    #[error("run {run} has no process {pid} at {at}; there are {there}")]
    NoProcess {
        /// The run.
        run: String,
        /// What was asked for.
        pid: u32,
        /// Where.
        at: Position,
        /// Those there are.
        there: String,
    },
}

impl From<vmm::engine::EngineError> for TravelError {
    fn from(error: vmm::engine::EngineError) -> Self {
        TravelError::Machine(error.into())
    }
}

/// Result of a movement.
pub type Travelled<T> = Result<T, TravelError>;

/// Why it stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// One instruction was done or undone, or a position reached.
    Done,
    /// At a breakpoint.
    Breakpoint,
    /// A watchpoint was hit at this address.
    Watch(Gva, Kind),
    /// A signal is about to be delivered.
    Signal(u32),
    /// The process has just executed another program.
    Exec(String),
    /// At the beginning of the program.
    Begin,
    /// At the end of the process or the run.
    End,
    /// Ctrl-C.
    Interrupted,
}

/// One process of a run, debugged.
pub struct Travel<'h> {
    timeline: Timeline<'h>,
    pid: u32,
    history: History,
    checkpoints: BTreeMap<Position, Checkpoint>,
    here: Position,
    /// The machine has gone through its last step.
    at_end: bool,
    /// The thread the last movement ended with.
    thread: u32,
    breakpoints: BTreeMap<u64, u32>,
    watchpoints: Vec<Watchpoint>,
    /// Signals that do not stop.
    passed: Vec<u32>,
    /// The signal just told: where, to whom, which. Going on goes past it.
    reported: Option<(Position, u32, u32)>,
    /// Where the user changed something: what follows is no longer the recording.
    left: Option<Position>,
    interrupted: Arc<AtomicBool>,
    /// How a second machine is had for far searches, and that machine.
    open: Option<Open<'h>>,
    helper: Option<Timeline<'h>>,
    /// Breakpoints that are met only where memory is written: see [`Travel::passes_with`].
    passing: BTreeMap<u64, Range<u64>>,
}

impl<'h> Travel<'h> {
    /// At `at` of a run, on the process `pid`: none = the one on the CPU there, else the job's first.
    pub fn new(mut timeline: Timeline<'h>, at: Position, pid: Option<u32>) -> Travelled<Travel<'h>> {
        timeline.seek(at)?;
        let threads = all_threads(timeline.looking())?;
        let on_cpu = timeline.looking().state_u64(ST_TID).unwrap_or(0) as u32;
        let pid = pid
            .or_else(|| threads.iter().find(|thread| thread.tid == on_cpu && thread.pid > 1).map(|t| t.pid))
            .or_else(|| threads.iter().map(|thread| thread.pid).find(|pid| *pid > 1));
        let found = pid.and_then(|pid| threads.iter().find(|thread| thread.pid == pid));
        let Some(thread) = found else {
            let run = timeline.run().id().to_string();
            let mut there: Vec<u32> =
                threads.iter().map(|thread| thread.pid).filter(|pid| *pid > 1).collect();
            there.dedup();
            let there = match there.as_slice() {
                [] => "none (give a position while the program runs)".to_owned(),
                pids => pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", "),
            };
            return Err(TravelError::NoProcess { run, pid: pid.unwrap_or(0), at, there });
        };
        let pid = thread.pid;
        let history = History::of(timeline.trace(), pid, timeline.last())?;
        let thread = if history.tids.contains(&on_cpu) { on_cpu } else { thread.tid };
        Ok(Travel {
            timeline,
            pid,
            history,
            checkpoints: BTreeMap::new(),
            here: at,
            at_end: false,
            thread,
            breakpoints: BTreeMap::new(),
            watchpoints: Vec::new(),
            passed: Vec::new(),
            reported: None,
            left: None,
            interrupted: Arc::new(AtomicBool::new(false)),
            open: None,
            helper: None,
            passing: BTreeMap::new(),
        })
    }

    /// Where the machine is.
    pub fn position(&self) -> Position {
        self.here
    }

    /// The machine has gone through the run's last step.
    pub fn at_end(&self) -> bool {
        self.at_end
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The thread the last movement ended with.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Where the user changed something, if so.
    pub fn left(&self) -> Option<Position> {
        self.left
    }

    /// The run.
    pub fn timeline(&self) -> &Timeline<'h> {
        &self.timeline
    }

    /// The machine, for looking.
    pub fn machine(&mut self) -> &mut Machine {
        self.timeline.looking()
    }

    /// Set by Ctrl-C; a movement then ends soon.
    pub fn interrupted(&self) -> Arc<AtomicBool> {
        self.interrupted.clone()
    }

    /// What happened to the process.
    pub fn events(&self) -> &[Event] {
        &self.history.events
    }

    /// Adds a breakpoint (counted).
    pub fn add_breakpoint(&mut self, at: u64) {
        *self.breakpoints.entry(at).or_insert(0) += 1;
    }

    /// Removes one; false if there is none.
    pub fn remove_breakpoint(&mut self, at: u64) -> bool {
        let Some(count) = self.breakpoints.get_mut(&at) else { return false };
        *count -= 1;
        if *count == 0 {
            self.breakpoints.remove(&at);
        }
        true
    }

    /// Adds a watchpoint.
    pub fn add_watchpoint(&mut self, point: Watchpoint) {
        self.watchpoints.push(point);
    }

    /// Removes one; false if there is none.
    pub fn remove_watchpoint(&mut self, point: &Watchpoint) -> bool {
        let Some(index) = self.watchpoints.iter().position(|own| own == point) else { return false };
        self.watchpoints.remove(index);
        true
    }

    /// Signals that do not stop.
    pub fn pass_signals(&mut self, numbers: Vec<u32>) {
        self.passed = numbers;
    }

    /// The threads of the process.
    pub fn threads(&mut self) -> Travelled<Vec<Thread>> {
        let pid = self.pid;
        let mut threads = all_threads(self.machine())?;
        threads.retain(|thread| thread.pid == pid);
        Ok(threads)
    }

    /// Something was changed: from here on this is a fork. Says so once.
    pub fn changed(&mut self) -> bool {
        let first = self.left.is_none();
        if first {
            self.left = Some(self.here);
        }
        first
    }

    /// Throws changes away: back where the first was made.
    fn forget_changes(&mut self) -> Travelled<()> {
        if let Some(at) = self.left.take() {
            // Whatever the timeline believes, its machine is another one's now.
            let _ = self.timeline.stage();
            self.at_end = false;
            self.restore_before(at)?;
            self.run_to(at)?;
        }
        Ok(())
    }

    /// Who committed the current step.
    fn committer(&mut self) -> u32 {
        self.machine().state_u64(ST_TID).unwrap_or(0) as u32
    }

    /// Is the CPU in user mode?
    fn in_user(&mut self) -> Travelled<bool> {
        Ok(self.machine().cpu()?.cs.selector & 3 == 3)
    }

    /// Instruction pointer of a thread, as it is shown.
    fn rip_of(&mut self, tid: u32) -> Travelled<Option<u64>> {
        let machine = self.machine();
        let cpu = machine.cpu()?;
        let Some(kernel) = look::kernel(machine) else { return Ok(None) };
        for thread in process::threads(&kernel)? {
            if thread.tid == tid {
                return Ok(Some(thread.registers(&kernel, &cpu)?.rip));
            }
        }
        Ok(None)
    }

    /// Puts the machine at the latest checkpoint or keyframe at or before `at`, unless it is between that and `at`.
    fn restore_before(&mut self, at: Position) -> Travelled<()> {
        let keyframe = self.timeline.keyframes().into_iter().rfind(|step| *step <= at.step.0);
        let keyframe = keyframe.map(Timeline::at).unwrap_or_else(|| Timeline::at(self.timeline.first()));
        match self.checkpoints.range(..=at).next_back() {
            Some((position, checkpoint)) if *position >= keyframe => {
                self.timeline.return_to(checkpoint)?;
                self.here = *position;
            }
            _ => {
                self.timeline.restore(keyframe.step.0)?;
                self.here = keyframe;
            }
        }
        self.at_end = false;
        Ok(())
    }

    /// Goes to `at`, which must exist, leaving checkpoints behind on a long way.
    pub fn go(&mut self, at: Position) -> Travelled<()> {
        self.forget_changes()?;
        let kept = self.checkpoints.range(..=at).next_back().map(|(position, _)| *position);
        let keyframe =
            self.timeline.keyframes().into_iter().rfind(|step| *step <= at.step.0).map(Timeline::at);
        let start = kept.max(keyframe);
        if self.at_end || self.here > at || start.is_some_and(|start| start > self.here) {
            self.restore_before(at)?;
        }
        for place in ladder(at) {
            let near = self.checkpoints.range(..=at).next_back().map(|(position, _)| *position);
            if place > self.here && near.is_none_or(|near| near < place) {
                self.run_to(place)?;
                self.keep()?;
            }
        }
        self.run_to(at)
    }

    /// Remembers this position.
    fn keep(&mut self) -> Travelled<()> {
        if self.left.is_some() || self.at_end || self.checkpoints.contains_key(&self.here) {
            return Ok(());
        }
        let checkpoint = self.timeline.checkpoint()?;
        self.checkpoints.insert(self.here, checkpoint);
        // The farthest goes first.
        while self.checkpoints.len() > 1
            && self.checkpoints.values().map(|checkpoint| checkpoint.bytes()).sum::<usize>() > MOST_BYTES
        {
            let first = self.checkpoints.keys().next().copied().unwrap_or_default();
            let last = self.checkpoints.keys().next_back().copied().unwrap_or_default();
            let here = self.here.step.0;
            let farther =
                if here.abs_diff(first.step.0) >= here.abs_diff(last.step.0) { first } else { last };
            self.checkpoints.remove(&farther);
        }
        Ok(())
    }

    /// Runs forward to `at` without stopping for anything.
    fn run_to(&mut self, at: Position) -> Travelled<()> {
        if self.here == at {
            return Ok(());
        }
        let until = if at.offset.0 == 0 { Until::step(at.step) } else { Until::position(at) };
        let mut stop = self.timeline.go_on(&until)?;
        // A Ctrl-C that something else has answered already may be left over.
        while stop == Stop::Interrupted && !self.interrupted.load(Ordering::SeqCst) {
            stop = self.timeline.go_on(&until)?;
        }
        match stop {
            Stop::Step | Stop::Position if self.machine().position() == at => {
                self.here = at;
                Ok(())
            }
            Stop::Interrupted => Err(StageError::Interrupted.into()),
            Stop::Step | Stop::Position => Err(StageError::NoSuchInstruction {
                id: self.timeline.run().id(),
                step: at.step.0,
                offset: at.offset.0,
            }
            .into()),
            _ => {
                let end = self.machine().step().0;
                Err(StageError::PastEnd { id: self.timeline.run().id(), asked: at.step.0, end }.into())
            }
        }
    }

    /// User instructions of `step`. Moves the machine.
    fn instructions_of(&mut self, step: Step) -> Travelled<Instructions> {
        self.go(Position { step, offset: Instructions(0) })?;
        self.keep()?;
        let before = self.machine().engine().counters().user_instructions;
        self.timeline.go_on(&Until::position(Position { step, offset: ALL }))?;
        let machine = self.timeline.looking();
        let after = machine.engine().counters().user_instructions;
        self.here = machine.position();
        self.at_end = machine.ended();
        if self.at_end {
            self.here = Position { step, offset: ALL };
        }
        Ok(Instructions(after.0 - before.0))
    }

    /// The end of `step`'s user instructions: a position.
    fn end_of(&mut self, step: Step) -> Travelled<Position> {
        let offset = self.instructions_of(step)?;
        let end = Position { step, offset };
        self.go(end)?;
        Ok(end)
    }

    /// Goes to where the user wants.
    pub fn jump(&mut self, at: Position) -> Travelled<()> {
        self.go(at)?;
        let committer = self.committer();
        if self.history.tids.contains(&committer) {
            self.thread = committer;
        }
        Ok(())
    }

    /// To the beginning of the program.
    pub fn jump_to_start(&mut self) -> Travelled<()> {
        let begin = self.beginning(self.here)?;
        self.jump(begin)
    }

    /// Past the exec that comes next, if the process has only been made for it.
    pub fn jump_to_program(&mut self) -> Travelled<()> {
        let here = self.here.step.0;
        let execs = self.history.events.iter().filter(|event| matches!(event.what, What::Exec { .. }));
        let steps: Vec<u64> = execs.map(|event| event.step).collect();
        match steps.first() {
            Some(&first) if first >= here => {
                self.forget_changes()?;
                self.go_to_commit(self.pid, first)?;
                self.thread = self.pid;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// To the first commit of `tid` after a step; to the next of anybody if it has none.
    fn go_to_commit(&mut self, tid: u32, after: u64) -> Travelled<()> {
        let mut from = after;
        while let Some(step) = self.history.next_step(tid, from) {
            self.go(Timeline::at(step))?;
            if self.committer() == tid {
                return Ok(());
            }
            from = step;
        }
        self.go(Timeline::at((after + 1).min(self.timeline.last())))
    }

    /// The signal about to be delivered here: thread, number, code, address.
    pub fn signal_here(&mut self) -> Travelled<Option<(u32, u32, i32, u64)>> {
        if self.left.is_some() || self.at_end {
            return Ok(None);
        }
        let here = self.here;
        let found = self.history.events.iter().find_map(|event| match event.what {
            What::Signal { number, code, address, .. } if event.step == here.step.0 => {
                Some((event.tid, number, code, address))
            }
            _ => None,
        });
        if found.is_some() && self.reported.is_none_or(|(at, ..)| at != here) {
            let at_signal = self.end_of(here.step)? == here;
            self.go(here)?;
            if !at_signal {
                return Ok(None);
            }
        }
        if let Some((tid, number, ..)) = found {
            self.reported = Some((here, tid, number));
        }
        Ok(found)
    }

    /// To the instruction that crashed the process, or its system call that raised the signal; false if none did.
    pub fn jump_to_crash(&mut self) -> Travelled<bool> {
        /// Signals a fault or an abort gives: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
        const CRASHES: [u32; 7] = [4, 5, 6, 7, 8, 11, 31];
        self.forget_changes()?;
        let crashed = self.history.events.iter().rev().find_map(|event| match event.what {
            What::Signal { number, handled: false, .. } if CRASHES.contains(&number) => Some(event.step),
            _ => None,
        });
        let Some(step) = crashed else { return Ok(false) };
        let at = crate::steps::last_user_instruction(&mut self.timeline, Step(step))?;
        self.restore_before(at)?;
        self.jump(at)?;
        Ok(true)
    }

    /// To the end of the process; of one that never ends, to the end of the run.
    pub fn jump_to_end(&mut self) -> Travelled<()> {
        let exit = self.history.events.iter().rev().find(|event| matches!(event.what, What::Exit { .. }));
        if let Some(exit) = exit.cloned() {
            self.end_of(Step(exit.step))?;
            self.thread = exit.tid;
            return Ok(());
        }
        let last = Timeline::at(self.timeline.last());
        self.go(last)?;
        if self.timeline.outcome().is_some_and(|outcome| outcome.end.is_final()) {
            self.timeline.go_on(&Until::END)?;
            self.at_end = true;
            self.here = Position { step: last.step, offset: ALL };
        }
        Ok(())
    }

    /// Could Ctrl-C have been pressed? Clears it.
    fn take_interrupt(&self) -> bool {
        self.interrupted.swap(false, Ordering::SeqCst)
    }

    /// Reads memory of the process.
    pub fn read(&mut self, at: Gva, out: &mut [u8]) -> bool {
        let pid = self.pid;
        read_of(self.machine(), pid, at, out)
    }
}

/// Reads memory of a process.
fn read_of(machine: &Machine, pid: u32, at: Gva, out: &mut [u8]) -> bool {
    let Some(kernel) = look::kernel(machine) else { return false };
    let root = root_of(&kernel, pid);
    root.is_ok_and(|root| {
        root.is_some_and(|root| crate::kernel::read_virtual(kernel.memory(), root, at, out).is_ok())
    })
}

/// Page-table root of a process.
fn root_of(kernel: &Kernel<'_>, pid: u32) -> Read<Option<Gpa>> {
    let threads = process::threads(kernel)?;
    Ok(threads.into_iter().filter(|thread| thread.pid == pid).find_map(|thread| thread.root))
}

/// Threads of a machine; none before the kernel is up.
fn all_threads(machine: &mut Machine) -> Travelled<Vec<Thread>> {
    let Some(kernel) = look::kernel(machine) else { return Ok(Vec::new()) };
    Ok(process::threads(&kernel)?)
}

/// Places on the way to `at` worth remembering: near ones for single steps back, farther ones for longer ways.
fn ladder(at: Position) -> Vec<Position> {
    let mut places = Vec::new();
    for steps in [4096, 512, 64, 8] {
        if let Some(step) = at.step.0.checked_sub(steps) {
            places.push(Position { step: Step(step), offset: Instructions(0) });
        }
    }
    places.push(Position { step: at.step, offset: Instructions(0) });
    for instructions in [1_000_000, 20_000] {
        if let Some(offset) = at.offset.0.checked_sub(instructions) {
            places.push(Position { step: at.step, offset: Instructions(offset) });
        }
    }
    places
}

impl std::fmt::Debug for Travel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Travel(process {} at {})", self.pid, self.here)
    }
}
