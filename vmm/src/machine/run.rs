//! The run loop: engine exits in, records and stops out.

use std::sync::atomic::Ordering;

use rewind_platform::{
    control::{CTL_INJECT_ARG, CTL_INJECT_KIND, CTL_STOP_NOW},
    port::INJECT_VECTOR,
    state::{ST_BASE, ST_DEADLINE},
};

use super::{Clock, GuestFault, Machine, MachineError, Place, RecordSink, Stop, Until, ports::Effect};
use crate::{
    address::{Branches, Gpa, Instructions, Position},
    engine::{Budget, Counters, Exit},
};

impl Machine {
    /// Runs until something of `until` or anything else that stops. Records go to `sink` as they are drained:
    /// all of them have been handed over when this returns.
    pub fn run(&mut self, until: &Until, sink: &mut dyn RecordSink) -> Result<Stop, MachineError> {
        if self.ended {
            return Err(MachineError::Ended);
        }
        let target = self.target(until)?;
        if self.waiting_for_job {
            self.give_job()?;
        }
        loop {
            if let Some(stop) = self.run_once(target, sink)? {
                self.ended |= matches!(stop, Stop::End(_) | Stop::Fault(_));
                return Ok(stop);
            }
        }
    }

    /// The one position at which to stop.
    fn target(&self, until: &Until) -> Result<Option<Position>, MachineError> {
        let step = until.step.map(|step| Position { step, offset: Instructions(0) });
        let target = match (step, until.position) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let now = self.position();
        match target {
            Some(asked)
                if asked < now || (asked.step == now.step && asked > now && self.place == Place::Running) =>
            {
                Err(MachineError::Behind { now, asked })
            }
            _ => Ok(target),
        }
    }

    /// One engine run and what it means. `None`: go on.
    fn run_once(
        &mut self,
        target: Option<Position>,
        sink: &mut dyn RecordSink,
    ) -> Result<Option<Stop>, MachineError> {
        let mut budget = Budget::default();
        let mut stop_step = u64::MAX;
        if let Some(target) = target {
            stop_step = target.step.0;
            if self.step() >= target.step {
                // Inside the target's step, or about to leave it: its next commit is a stop in any case.
                stop_step = self.step().0 + 1;
                if let Place::Counted(done) = self.place {
                    if target.step == self.step() && target.offset == done {
                        return Ok(Some(if done.0 == 0 { Stop::Step } else { Stop::Position }));
                    }
                    budget.user_instructions = Some(Instructions(target.offset.0 - done.0));
                }
            }
        }
        self.set_stop_step(stop_step);
        if matches!(self.clock, Clock::Work { .. }) {
            budget.user_branches = Some(self.slice_left);
        }
        let position_left = budget.user_instructions;
        if let Some(left) = self.watchdog_left() {
            budget.user_instructions = Some(position_left.map_or(left, |position| position.min(left)));
        }
        if let Some(piece) = self.piece.filter(|_| self.engine.capabilities().cheap_instruction_budget) {
            budget.instructions = Some(budget.instructions.map_or(piece, |limit| limit.min(piece)));
        }
        let (before, step) = (self.engine.counters(), self.step());
        self.engine.memory_written(&self.memory.take_untold());
        let exit = self.engine.run(&budget)?;
        let after = self.engine.counters();
        self.account(&budget, &before, &after);
        if self.step() != step {
            // It went through commits without a stop: what was counted belongs to an earlier step.
            self.place = Place::Running;
        }
        if let Err(fault) = self.ring.drain(&self.memory, sink) {
            return Ok(Some(Stop::Fault(fault)));
        }
        match exit {
            Exit::PortOut { port, size, data } => {
                // A port is only ever written from the kernel: the user instructions of this step are over.
                self.place = Place::Running;
                match self.port_out(port, size, &data, sink)? {
                    Ok(effect) => Ok(self.effect(effect, target)),
                    Err(fault) => Ok(Some(Stop::Fault(fault))),
                }
            }
            Exit::PortIn { port, size } => {
                let value = self.port_in(port, size);
                self.engine.complete_in(*value.as_ref().unwrap_or(&u32::MAX));
                Ok(value.err().map(Stop::Fault))
            }
            Exit::Budget => self.budget_used(&budget, position_left, &before, &after),
            Exit::LeftUser => {
                self.place = Place::Running;
                Ok(None)
            }
            Exit::Watch(hits) => {
                self.count_here(&after);
                Ok(Some(Stop::Watch(hits)))
            }
            Exit::Breakpoint(at) => {
                self.count_here(&after);
                Ok(Some(Stop::Breakpoint(at)))
            }
            Exit::Interrupted => {
                self.count_here(&after);
                Ok(Some(Stop::Interrupted))
            }
            Exit::TripleFault => Ok(Some(Stop::Fault(GuestFault::TripleFault))),
            Exit::Halt => Ok(Some(Stop::Fault(GuestFault::Halt))),
            Exit::Mmio { address, write, .. } => {
                Ok(Some(Stop::Fault(GuestFault::Mmio { address: address.0, write })))
            }
            Exit::Unsupported { rip, bytes, what } => {
                Ok(Some(Stop::Fault(GuestFault::Unsupported { rip: rip.0, bytes, what })))
            }
        }
    }

    fn effect(&mut self, effect: Effect, target: Option<Position>) -> Option<Stop> {
        match effect {
            Effect::Continue => None,
            Effect::End(reason) => Some(Stop::End(reason)),
            Effect::Watch(hits) => Some(Stop::Watch(hits)),
            Effect::Job => {
                self.waiting_for_job = true;
                Some(Stop::Job)
            }
            Effect::Input => Some(Stop::Input),
            Effect::Stop => {
                self.place = Place::Counted(Instructions(0));
                let wanted = self.memory.control_u32(CTL_STOP_NOW).swap(0, Ordering::SeqCst) != 0;
                match target {
                    Some(target) if self.step() == target.step && target.offset.0 > 0 => {
                        wanted.then_some(Stop::Interrupted)
                    }
                    Some(target) if self.step() >= target.step => Some(Stop::Step),
                    _ if wanted => Some(Stop::Interrupted),
                    _ => Some(Stop::Decision),
                }
            }
        }
    }

    /// Stopped anywhere: the place is known all the same where the engine counts.
    fn count_here(&mut self, counters: &Counters) {
        if let (Place::Running, Some(since)) = (self.place, counters.since_user) {
            self.place = Place::Counted(since);
        }
    }

    /// Books what was retired.
    fn account(&mut self, budget: &Budget, before: &Counters, after: &Counters) {
        if let Place::Counted(done) = self.place {
            let retired = after.user_instructions.0 - before.user_instructions.0;
            self.place = match budget.user_instructions {
                Some(_) => Place::Counted(Instructions(done.0 + retired)),
                None if self.engine.capabilities().cheap_instruction_budget => {
                    Place::Counted(Instructions(done.0 + retired))
                }
                None => Place::Running,
            };
        }
        if budget.user_branches.is_some() {
            let retired = after.user_branches.0 - before.user_branches.0;
            self.slice_left = Branches(self.slice_left.0.saturating_sub(retired));
        }
        self.watchdog_retired(after.user_instructions.0 - before.user_instructions.0);
    }

    fn budget_used(
        &mut self,
        budget: &Budget,
        position_left: Option<Instructions>,
        before: &Counters,
        after: &Counters,
    ) -> Result<Option<Stop>, MachineError> {
        if budget.user_branches.is_some() && self.slice_left.0 == 0 {
            self.end_slice()?;
        }
        let retired = after.user_instructions.0 - before.user_instructions.0;
        if position_left.is_some_and(|left| retired >= left.0) {
            return Ok(Some(Stop::Position));
        }
        Ok(self.watchdog_look()?.map(Stop::Fault))
    }

    /// A whole slice of branches is done: virtual time moves, and a deadline that has passed is seen to.
    fn end_slice(&mut self) -> Result<(), MachineError> {
        let Clock::Work { slice } = self.clock else { return Ok(()) };
        self.slice_left = Branches(slice);
        let Some(page) = self.state_page else { return Ok(()) };
        let base = self.state_u64(ST_BASE).unwrap_or(0);
        self.memory.write_u64(Gpa(page.0 + ST_BASE), base.wrapping_add(slice))?;
        if self.state_u64(ST_DEADLINE).is_some_and(|deadline| deadline <= self.now().0) {
            self.memory.control_u32(CTL_INJECT_KIND).store(0, Ordering::SeqCst);
            self.engine.inject(INJECT_VECTOR)?;
        }
        Ok(())
    }

    /// Interrupts the program where it stands: the guest takes the one vector, does what `kind` and `arg`
    /// (`rewind_platform::control::DECISION_*`, 0 = nothing) say, and polls. At a position ([`Stop::Step`],
    /// [`Stop::Position`], [`Stop::Decision`]).
    ///
    /// False, and nothing is done, if the CPU is in the kernel already: the instruction that retired last was SYSCALL
    /// (which leaves interrupts off and the user's stack pointer in place), or another interrupt came first.
    pub fn act(&mut self, kind: u16, arg: u64) -> Result<bool, MachineError> {
        if self.engine.cpu()?.cs.selector & 3 != 3 {
            return Ok(false);
        }
        self.memory.control_u64(CTL_INJECT_ARG).store(arg, Ordering::SeqCst);
        self.memory.control_u32(CTL_INJECT_KIND).store(kind.into(), Ordering::SeqCst);
        self.engine.inject(INJECT_VECTOR)?;
        Ok(true)
    }
}
