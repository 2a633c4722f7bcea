//! Running forward with breakpoints and watchpoints, and what is made of it: continue and reverse-continue.

use vmm::{
    Stop, Until,
    address::{Gva, Instructions, Position, Step},
    engine::WatchHit,
};

use super::{ALL, Halt, Travel, Travelled, What, armed::Values};

/// A breakpoint or watchpoint that was met.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    /// The place before the instruction.
    pub(super) before: Position,
    /// The thread.
    pub(super) tid: u32,
    /// Breakpoint or watch.
    pub(super) what: Halt,
    /// The kernel did it for the thread.
    pub(super) in_kernel: bool,
}

/// Where a scan came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// The place, or the next commit if its step has fewer instructions.
    Place,
    /// A hit that stopped it.
    Hit,
    /// The machine's end.
    End,
    /// Ctrl-C.
    Interrupted,
}

impl Travel<'_> {
    /// Runs on, checked against the recording unless the user left it.
    pub(super) fn go_on(&mut self, until: &Until) -> Travelled<Stop> {
        Ok(match self.left {
            Some(_) => self.timeline.stage().run(until, &mut ())?,
            None => self.timeline.go_on(until)?,
        })
    }

    /// Runs to `until` and shows each hit to `on`, which says whether to stop there. With `skip`, a breakpoint at
    /// the place it begins is not one.
    pub(super) fn scan(
        &mut self,
        until: Position,
        skip: bool,
        on: &mut dyn FnMut(&Hit) -> bool,
    ) -> Travelled<Reached> {
        let look = self.armed().look();
        let engine = self.machine().engine();
        engine.watch(&look.watches)?;
        engine.breakpoints(&look.breakpoints)?;
        let result = self.scan_armed(until, skip, on);
        let engine = self.machine().engine();
        engine.watch(&[])?;
        engine.breakpoints(&[])?;
        result
    }

    fn scan_armed(
        &mut self,
        until: Position,
        skip: bool,
        on: &mut dyn FnMut(&Hit) -> bool,
    ) -> Travelled<Reached> {
        let start = self.here;
        let armed = self.armed();
        let mut values = armed.values(self.machine());
        // A breakpoint just seen, whose instruction runs next; one whose instruction faulted is met again.
        let mut over: Option<(Position, u32, Gva)> = None;
        let mut faulted: Option<(u32, Gva)> = None;
        loop {
            let target = match over {
                Some((at, ..)) => until.min(Position { offset: Instructions(at.offset.0 + 1), ..at }),
                None => until,
            };
            let place = if target.offset.0 == 0 { Until::step(target.step) } else { Until::position(target) };
            let stop = self.go_on(&place)?;
            let here = self.machine().position();
            match stop {
                Stop::Breakpoint(rip) => {
                    self.here = here;
                    let tid = self.committer();
                    let again = here.offset.0 == 0 && faulted == Some((tid, rip));
                    let ours = self.in_user()? && self.history.tids.contains(&tid);
                    over = Some((here, tid, rip));
                    faulted = None;
                    let hit = Hit { before: here, tid, what: Halt::Breakpoint, in_kernel: false };
                    if ours && !again && !(skip && here == start) && on(&hit) {
                        return Ok(Reached::Hit);
                    }
                }
                Stop::Watch(accesses) => {
                    self.here = here;
                    over = None;
                    if let Some(hit) = self.watch_hit(&accesses, &mut values)?
                        && on(&hit)
                    {
                        return Ok(Reached::Hit);
                    }
                }
                Stop::Step | Stop::Position => {
                    self.here = here;
                    if let Some((at, tid, rip)) = over.take()
                        && here.step != at.step
                    {
                        faulted = Some((tid, rip));
                    }
                    if here >= until || (target == until && stop == Stop::Step) {
                        return Ok(Reached::Place);
                    }
                }
                Stop::End(_) | Stop::Fault(_) => {
                    self.at_end = true;
                    self.here = Position { step: self.machine().step(), offset: ALL };
                    return Ok(Reached::End);
                }
                Stop::Interrupted if self.take_interrupt() => return self.settle(),
                Stop::Interrupted | Stop::Decision | Stop::Job | Stop::Input => {}
            }
        }
    }

    /// After Ctrl-C: at a place that has a position.
    fn settle(&mut self) -> Travelled<Reached> {
        let here = self.machine().position();
        if self.in_user()? {
            self.here = here;
            return Ok(Reached::Interrupted);
        }
        let next = Until::step(Step(here.step.0 + 1));
        match self.go_on(&next)? {
            Stop::End(_) | Stop::Fault(_) => {
                self.at_end = true;
                self.here = Position { step: self.machine().step(), offset: ALL };
            }
            _ => self.here = self.machine().position(),
        }
        Ok(Reached::Interrupted)
    }

    /// The accesses of one instruction: does one of them trigger a watchpoint of the process?
    fn watch_hit(&mut self, accesses: &[WatchHit], values: &mut Values) -> Travelled<Option<Hit>> {
        let here = self.here;
        let committer = self.committer();
        let armed = self.armed();
        let Some((point, tid, user)) = armed.triggered(self.machine(), accesses, values)? else {
            return Ok(None);
        };
        // What the kernel does for a thread belongs to the instruction that entered it.
        let back = u64::from(here.offset.0 > 0 && (user || tid == committer));
        let before = Position { offset: Instructions(here.offset.0 - back), ..here };
        Ok(Some(Hit { before, tid, what: Halt::Watch(point.at, point.kind), in_kernel: !user }))
    }

    /// Runs forward to whatever stops.
    pub fn forward(&mut self) -> Travelled<Halt> {
        let reported = self.reported.take();
        if self.at_end {
            self.reported = reported;
            return Ok(Halt::End);
        }
        let start = self.here;
        let event = match self.left {
            Some(_) => None,
            None => self.next_event(start, reported),
        };
        let Some(event) = event else {
            return self.forward_to_end();
        };
        let commit = Position { step: Step(event.step), offset: Instructions(0) };
        if start < commit
            && let Some(halt) = self.forward_to(commit)?
        {
            return Ok(halt);
        }
        let start = self.here;
        let end = self.end_of(Step(event.step))?;
        if start < end {
            self.go(start)?;
            if let Some(halt) = self.forward_to(end)? {
                return Ok(halt);
            }
        } else if start > end {
            self.go(start)?;
        }
        self.thread = event.tid;
        match event.what {
            What::Signal { number, .. } => {
                self.reported = Some((end, event.tid, number));
                Ok(Halt::Signal(number))
            }
            What::Exit { .. } => {
                self.reported = reported.filter(|(at, ..)| *at == end);
                Ok(Halt::End)
            }
            What::Exec { path } => {
                self.go_to_commit(event.tid, event.step)?;
                Ok(Halt::Exec(path))
            }
        }
    }

    /// The first event that stops, from `start` on, past the one just told.
    fn next_event(
        &mut self,
        start: Position,
        reported: Option<(Position, u32, u32)>,
    ) -> Option<super::Event> {
        let told = |event: &super::Event| {
            matches!((reported, &event.what), (Some((at, tid, told)), What::Signal { number, .. })
                if at.step.0 == event.step && tid == event.tid && told == *number)
        };
        let passed = &self.passed;
        let stops = |event: &super::Event| match &event.what {
            What::Signal { number, .. } => !passed.contains(number),
            What::Exec { .. } | What::Exit { .. } => true,
        };
        let found = self
            .history
            .events
            .iter()
            .find(|event| event.step >= start.step.0 && stops(event) && !told(event));
        found.cloned()
    }

    /// Runs to `place`; `None` if nothing stopped before.
    fn forward_to(&mut self, place: Position) -> Travelled<Option<Halt>> {
        let mut found = None;
        let reached = self.scan(place, true, &mut |hit| {
            found = Some(hit.clone());
            true
        })?;
        self.stopped(reached, found)
    }

    fn forward_to_end(&mut self) -> Travelled<Halt> {
        let last = Step(self.timeline.last());
        let is_final = self.timeline.outcome().is_some_and(|outcome| outcome.end.is_final());
        let offset = if is_final || self.left.is_some() { ALL } else { Instructions(0) };
        let step = if self.left.is_some() { Step(u64::MAX >> 1) } else { last };
        let until = Position { step, offset };
        if self.here >= until {
            return Ok(Halt::End);
        }
        Ok(self.forward_to(until)?.unwrap_or(Halt::End))
    }

    /// What a forward scan ended with.
    pub(super) fn stopped(&mut self, reached: Reached, found: Option<Hit>) -> Travelled<Option<Halt>> {
        match (reached, found) {
            (Reached::Hit, Some(hit)) => {
                self.thread = hit.tid;
                if hit.in_kernel {
                    self.return_of(hit.tid)?;
                }
                Ok(Some(hit.what))
            }
            (Reached::Interrupted, _) => Ok(Some(Halt::Interrupted)),
            (Reached::End, _) => Ok(Some(Halt::End)),
            _ => Ok(None),
        }
    }

    /// Goes on to where the kernel returns to a thread.
    fn return_of(&mut self, tid: u32) -> Travelled<()> {
        loop {
            let next = Until::step(Step(self.machine().step().0 + 1));
            match self.go_on(&next)? {
                Stop::End(_) | Stop::Fault(_) => {
                    self.at_end = true;
                    self.here = Position { step: self.machine().step(), offset: ALL };
                    return Ok(());
                }
                _ => self.here = self.machine().position(),
            }
            if self.committer() == tid {
                return Ok(());
            }
        }
    }

    /// Where the program that runs here began.
    pub(super) fn beginning(&mut self, at: Position) -> Travelled<Position> {
        let began = self.history.program_began(at.step.0);
        let first = self.history.tids.iter().filter_map(|tid| self.history.next_step(*tid, began)).min();
        let step = first.unwrap_or(began + 1).max(self.timeline.first() + 1).min(at.step.0);
        Ok(Position { step: Step(step), offset: Instructions(0) })
    }

    /// Goes back to whatever stops.
    pub fn backward(&mut self) -> Travelled<Halt> {
        self.forget_changes()?;
        self.reported = None;
        let here = self.here;
        let begin = self.beginning(here)?;
        let mut end = here;
        let mut places = None;
        loop {
            if end < here {
                match self.far(end, begin, places)? {
                    Some(near) => end = near,
                    None => {
                        self.go(here)?;
                        return Ok(Halt::Interrupted);
                    }
                }
            }
            let keyframes = self.timeline.keyframes();
            let keyframe = keyframes.into_iter().map(run::seek::Timeline::at).rfind(|at| *at < end);
            let checkpoint = self.checkpoints.range(..end).next_back().map(|(at, _)| *at);
            let start = keyframe.max(checkpoint).unwrap_or(begin).max(begin);
            if start >= end {
                self.go(begin)?;
                return Ok(Halt::Begin);
            }
            self.go(start)?;
            places = self.places();
            let mut best: Option<(Position, u32, Halt)> = None;
            let reached = self.scan(end, false, &mut |hit| {
                if hit.before < here && best.as_ref().is_none_or(|(at, ..)| *at <= hit.before) {
                    best = Some((hit.before, hit.tid, hit.what.clone()));
                }
                false
            })?;
            if reached == Reached::Interrupted {
                self.go(here)?;
                return Ok(Halt::Interrupted);
            }
            if let Some(signal) = self.last_signal(start, end, here)?
                && best.as_ref().is_none_or(|(at, ..)| *at < signal.0)
            {
                best = Some(signal);
            }
            if let Some((at, tid, what)) = best {
                self.go(at)?;
                self.thread = tid;
                if let Halt::Signal(number) = what {
                    self.reported = Some((at, tid, number));
                }
                return Ok(what);
            }
            end = start;
        }
    }

    /// The last signal that stops, from `start` to before `end` and `here`.
    fn last_signal(
        &mut self,
        start: Position,
        end: Position,
        here: Position,
    ) -> Travelled<Option<(Position, u32, Halt)>> {
        let steps = start.step.0..=end.step.0;
        let signals: Vec<(u64, u32, u32)> = self
            .history
            .events
            .iter()
            .filter_map(|event| match event.what {
                What::Signal { number, .. }
                    if steps.contains(&event.step) && !self.passed.contains(&number) =>
                {
                    Some((event.step, event.tid, number))
                }
                _ => None,
            })
            .collect();
        for (step, tid, number) in signals.into_iter().rev() {
            let at = self.end_of(Step(step))?;
            if at >= start && at < end && at < here {
                return Ok(Some((at, tid, Halt::Signal(number))));
            }
        }
        Ok(None)
    }
}
