//! One instruction of one thread, forward and back.
//!
//! A page fault or a timer at an instruction leaves the thread where it is: the end of one of its steps and the
//! beginning of its next are then one place to it. Going either way, the earlier of the two is meant.

use vmm::address::{Instructions, Position, Step};

use super::{Halt, Travel, Travelled, What};

impl Travel<'_> {
    /// Runs one instruction of `tid`; other threads run as recorded meanwhile.
    pub fn step(&mut self, tid: u32) -> Travelled<Halt> {
        let reported = self.reported.take();
        let start = self.here;
        let Some(rip) = self.rip_of(tid)? else { return self.forward() };
        let mut executed = false;
        loop {
            if self.at_end {
                return Ok(Halt::End);
            }
            let here = self.here;
            let mine = self.committer() == tid && (here.offset.0 == 0 || self.in_user()?);
            if mine && (executed || (here.offset.0 == 0 && self.rip_of(tid)?.is_some_and(|now| now != rip))) {
                self.thread = tid;
                return Ok(Halt::Done);
            }
            if mine {
                let next = Position { offset: Instructions(here.offset.0 + 1), ..here };
                let mut found = None;
                let reached = self.scan(next, true, &mut |hit| {
                    let stop = hit.what != Halt::Breakpoint;
                    if stop {
                        found = Some(hit.clone());
                    }
                    stop
                })?;
                if let Some(halt) = self.stopped(reached, found)? {
                    return Ok(halt);
                }
                if self.here == next {
                    if self.in_user()? {
                        self.thread = tid;
                        return Ok(Halt::Done);
                    }
                    executed = true;
                } else if let Some(number) = self.signal_of(here.step.0, tid)
                    && reported != Some((here, tid, number))
                {
                    // The instruction faults: the signal comes before anything else.
                    self.go(here)?;
                    self.thread = tid;
                    self.reported = Some((here, tid, number));
                    return Ok(Halt::Signal(number));
                }
                continue;
            }
            // In the kernel or off the CPU: to its next commit.
            let next = match self.left {
                Some(_) => Some(here.step.0 + 1),
                None => self.history.next_step(tid, here.step.0),
            };
            let Some(next) = next else {
                // It ends with this instruction, or waits for ever: as if asked to go on, which stops at the process's end.
                if self.left.is_none() {
                    self.go(start)?;
                    self.reported = reported;
                }
                return self.forward();
            };
            let mut found = None;
            let reached =
                self.scan(Position { step: Step(next), offset: Instructions(0) }, true, &mut |hit| {
                    found = Some(hit.clone());
                    true
                })?;
            if let Some(halt) = self.stopped(reached, found)? {
                return Ok(halt);
            }
        }
    }

    /// Steps while the thread stays in a range of addresses.
    pub fn step_range(&mut self, tid: u32, range: std::ops::Range<u64>) -> Travelled<Halt> {
        loop {
            let halt = self.step(tid)?;
            if halt != Halt::Done {
                return Ok(halt);
            }
            let rip = self.rip_of(tid)?;
            if rip.is_some_and(|rip| self.breakpoints.contains_key(&rip)) {
                return Ok(Halt::Breakpoint);
            }
            if !rip.is_some_and(|rip| range.contains(&rip)) {
                return Ok(Halt::Done);
            }
            if self.take_interrupt() {
                return Ok(Halt::Interrupted);
            }
        }
    }

    /// A signal that stops, delivered to `tid` after `step`.
    fn signal_of(&self, step: u64, tid: u32) -> Option<u32> {
        self.history.events.iter().find_map(|event| match event.what {
            What::Signal { number, .. }
                if event.step == step && event.tid == tid && !self.passed.contains(&number) =>
            {
                Some(number)
            }
            _ => None,
        })
    }

    /// Undoes one instruction of `tid`.
    pub fn step_back(&mut self, tid: u32) -> Travelled<Halt> {
        self.forget_changes()?;
        self.reported = None;
        let here = self.here;
        let begin = self.beginning(here)?;
        let committer = self.committer() == tid;
        let before = if committer && !self.at_end && here.offset.0 > 0 {
            Some(Position { offset: Instructions(here.offset.0 - 1), ..here })
        } else {
            let rip = self.rip_of(tid)?;
            let from = if committer && !self.at_end { here.step.0 } else { here.step.0 + 1 };
            self.last_instruction(tid, from, rip)?
        };
        self.thread = tid;
        let Some(before) = before.filter(|before| *before >= begin) else {
            self.go(begin)?;
            return Ok(Halt::Begin);
        };
        self.go(before)?;
        if before.offset.0 == 0 && before > begin {
            self.earlier_alias(tid, before, begin)?;
        }
        Ok(Halt::Done)
    }

    /// The last instruction `tid` completed in a step before `from`, at which it shows `rip`.
    fn last_instruction(&mut self, tid: u32, mut from: u64, rip: Option<u64>) -> Travelled<Option<Position>> {
        while let Some(step) = self.own_step_before(tid, from)? {
            let end = self.end_of(Step(step))?;
            let back = |n: u64| Position { offset: Instructions(end.offset.0 - n), ..end };
            if !self.in_user()? {
                return Ok(Some(back(u64::from(end.offset.0 > 0))));
            }
            if self.rip_of(tid)? != rip {
                return Ok(Some(end));
            }
            if end.offset.0 > 0 {
                return Ok(Some(back(1)));
            }
            from = step;
        }
        Ok(None)
    }

    /// The last step before `from` that `tid` committed. Moves the machine there.
    fn own_step_before(&mut self, tid: u32, mut from: u64) -> Travelled<Option<u64>> {
        while let Some(step) = self.history.previous_step(tid, from) {
            if step <= self.timeline.first() {
                return Ok(None);
            }
            self.go(Position { step: Step(step), offset: Instructions(0) })?;
            if self.committer() == tid {
                return Ok(Some(step));
            }
            from = step;
        }
        Ok(None)
    }

    /// At the beginning of a step: goes to the end of the thread's step before, if that is the same place to it.
    fn earlier_alias(&mut self, tid: u32, at: Position, begin: Position) -> Travelled<()> {
        let rip = self.rip_of(tid)?;
        let mut best = at;
        let mut from = at.step.0;
        while let Some(step) = self.own_step_before(tid, from)? {
            if step < begin.step.0 {
                break;
            }
            let end = self.end_of(Step(step))?;
            if !self.in_user()? || self.rip_of(tid)? != rip {
                break;
            }
            best = end;
            if end.offset.0 > 0 {
                break;
            }
            from = step;
        }
        self.go(best)
    }
}
