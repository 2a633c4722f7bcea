//! Runs a window of a run forward and reports every access to watched memory and every pass through a breakpoint,
//! each with its exact position; and does so window by window backward from a place.
//!
//! The position of an access is `step+n`, n user instructions retired since the step began *before* the one that
//! accessed: stopping there, that instruction is the next to run. What the kernel does belongs to the step whose
//! user instructions led to it, so it has the position of that step's last instruction gone through: after every
//! user access of the step, before the next commit.

mod backward;
mod steps;

use std::{
    ops::ControlFlow,
    sync::atomic::{AtomicBool, Ordering},
};

use vmm::{
    Machine, Stop, Until,
    address::{Gpa, Gva, Instructions, Position, Step},
    engine::{Watch, WatchHit},
    memory::PageBytes,
};

pub use backward::{Backward, backward};

use crate::{
    error::StageError,
    keyframe::{self, Base},
    seek::Timeline,
    verify::Verifier,
};

/// Steps run between two looks at the clock and at Ctrl-C.
const CHUNK: u64 = 20_000;

/// The steps from a keyframe to the next one, or to where somebody looks back from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The keyframe it begins with.
    pub from: u64,
    /// Where it ends: accesses at or after this are not in it.
    pub until: Position,
    /// It ends at the keyframe of that step.
    pub to_keyframe: bool,
    /// Accesses before this are not looked for (and cost nothing).
    pub quiet: Option<Position>,
}

impl Window {
    /// The part of it from `at` on, and the part before; none if `at` is not inside.
    pub fn split(&self, at: Position) -> Option<[Window; 2]> {
        let inside =
            Timeline::at(self.from) < at && at < self.until && self.quiet.is_none_or(|quiet| quiet < at);
        let (late, early) =
            (Window { quiet: Some(at), ..*self }, Window { until: at, to_keyframe: false, ..*self });
        inside.then_some([late, early])
    }
}

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Watched memory.
    pub watches: Vec<Watch>,
    /// Breakpoints, linear addresses in any address space.
    pub breakpoints: Vec<Gva>,
}

/// What happened at one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Where; see the module.
    pub position: Position,
    /// The instruction.
    pub rip: Gva,
    /// It ran in user mode.
    pub user: bool,
    /// Root of the page tables in force (CR3 without flags).
    pub root: Gpa,
    /// The watched accesses of the instruction, in order; none at a breakpoint, whose instruction has not run yet.
    /// One that repeats (REP) has one for each element.
    pub accesses: Vec<WatchHit>,
}

/// Takes what is found. `machine` is stopped right after the accesses, or before the breakpoint's instruction; it
/// may be looked at, not changed. A break ends the scan.
pub type OnHit<'a> = &'a mut dyn FnMut(&mut Machine, &Hit) -> ControlFlow<()>;

/// Progress and the way to stop.
#[derive(Clone, Copy)]
pub struct Watcher<'a> {
    /// Set to stop: the scan ends with [`StageError::Interrupted`].
    pub interrupted: &'a AtomicBool,
    /// Told the step now and then.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl Timeline<'_> {
    /// The windows before `at`, the latest first.
    pub fn windows(&self, at: Position) -> Vec<Window> {
        let mut windows = Vec::new();
        let (mut until, mut to_keyframe) = (at, false);
        for from in self.keyframes().into_iter().rev() {
            let start = Timeline::at(from);
            if start < at {
                windows.push(Window { from, until, to_keyframe, quiet: None });
                (until, to_keyframe) = (start, true);
            }
        }
        windows
    }

    /// Could any of these bytes have been written in `window`? A keyframe lists the pages written since the one before,
    /// and of many what was written in them, so "no" is certain.
    pub fn may_write(&self, window: &Window, bytes: &[PageBytes]) -> Result<bool, StageError> {
        if !window.to_keyframe {
            return Ok(true);
        }
        let (dir, step) = (self.run().keyframes(), window.until.step.0);
        let next = keyframe::read(&dir.join(keyframe::file_name(step)), &self.run().id().to_string(), step)?;
        let follows = match next.base {
            Base::Step(step) => step == window.from,
            Base::Boot(_) => window.from == self.first(),
            Base::Full => false,
        };
        // Where one between was dropped, its list is lost.
        Ok(!follows || bytes.iter().any(|bytes| next.may_have_written(bytes)))
    }

    /// Runs `window` and hands every hit to `on_hit`. Every event on the way is checked against the recording.
    /// `begin` sees the machine where the window begins, before anything ran.
    pub fn scan(
        &mut self,
        window: &Window,
        look: &Look,
        watcher: Watcher<'_>,
        begin: &mut dyn FnMut(&mut Machine),
        on_hit: OnHit<'_>,
    ) -> Result<(), StageError> {
        let last = self.last();
        if window.until.step.0 > last {
            return Err(StageError::PastEnd { id: self.run().id(), asked: window.until.step.0, end: last });
        }
        match window.quiet {
            Some(quiet) => self.seek(quiet)?,
            None => self.restore(window.from)?,
        }
        let (trace, first, id) = (self.run().trace()?, self.records(), self.run().id());
        let stage = self.stage();
        begin(stage.machine());
        stage.machine().watch(&look.watches)?;
        stage.machine().engine().breakpoints(&look.breakpoints).map_err(vmm::MachineError::from)?;
        let mut verifier =
            Verifier::new(trace.from_record(first), first).stopping(stage.machine().interrupter());
        let done = run_through(stage, window, last, watcher, &mut verifier, on_hit);
        stage.machine().watch(&[])?;
        stage.machine().engine().breakpoints(&[]).map_err(vmm::MachineError::from)?;
        if let Some(difference) = verifier.check()? {
            return Err(StageError::Diverged { id, difference: Box::new(difference) });
        }
        let reached = done?;
        let records = verifier.number();
        if reached {
            self.placed_at(records);
        }
        Ok(())
    }
}

/// Runs the window; false if a hit ended it early.
fn run_through(
    stage: &mut crate::stage::Stage,
    window: &Window,
    last: u64,
    watcher: Watcher<'_>,
    verifier: &mut Verifier<'_>,
    on_hit: OnHit<'_>,
) -> Result<bool, StageError> {
    let until = window.until;
    loop {
        if watcher.interrupted.load(Ordering::Relaxed) {
            return Err(StageError::Interrupted);
        }
        let now = stage.machine().step().0;
        (watcher.progress)(now);
        let near = until.step.0 <= now.saturating_add(CHUNK);
        let target = match until.offset {
            _ if !near => Until::step(Step(now + CHUNK)),
            Instructions(0) => Until::step(until.step),
            _ => Until::position(until),
        };
        let (rip, accesses) = match stage.run(&target, verifier)? {
            Stop::Watch(accesses) => (accesses.first().map_or(Gva(0), |hit| hit.rip), accesses),
            Stop::Breakpoint(rip) => (rip, Vec::new()),
            Stop::Step | Stop::Position if near => return Ok(true),
            Stop::Step | Stop::Position => continue,
            // The end is a place too: the last step, gone through.
            Stop::End(_) | Stop::Fault(_) if until.step.0 == last => return Ok(true),
            // At a difference, which the caller reports before this.
            Stop::Interrupted => return Err(StageError::Interrupted),
            _ => {
                let (asked, end) = (until.step.0, stage.machine().step().0);
                return Err(StageError::EndsEarly { asked, end });
            }
        };
        let hit = describe(stage.machine(), rip, accesses)?;
        if on_hit(stage.machine(), &hit).is_break() {
            return Ok(false);
        }
    }
}

fn describe(machine: &mut Machine, rip: Gva, accesses: Vec<WatchHit>) -> Result<Hit, StageError> {
    let cpu = machine.cpu()?;
    let (since, user) = match accesses.first() {
        Some(access) => (access.since_user, access.user),
        None => (machine.engine().counters().since_user.unwrap_or_default(), cpu.cs.selector & 3 == 3),
    };
    let position = Position { step: machine.step(), offset: since };
    Ok(Hit { position, rip, user, root: Gpa(cpu.cr3 & 0x000f_ffff_ffff_f000), accesses })
}
