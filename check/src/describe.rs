//! Says in words where a decision happens and what it changes.

use debug::look::{self, Files, View};
use serde::Serialize;
use vmm::{
    address::{Instructions, Position, Step},
    machine::{Machine, Stop, Until},
};

use crate::{
    base::{BaseError, Worker},
    decision::{Action, Decision, words},
    facts::Facts,
    search::Explained,
};

/// A decision for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Described {
    /// Thread id.
    pub tid: u32,
    /// Program.
    pub program: String,
    /// What happens: "is preempted".
    pub action: String,
    /// The step that would have been committed next, or inside which it happens.
    pub step: u64,
    /// User instructions into that step; 0 = at its commit.
    pub offset: u64,
    /// "write(1)"; empty if the thread is not in a system call.
    pub syscall: String,
    /// "bank.c:38"; empty without debug information.
    pub line: String,
    /// Function.
    pub function: String,
    /// The access to shared memory it stands next to: "after it has written done"; empty if none is known.
    pub access: String,
    /// Who runs instead, and where it goes on: "thread 141 goes on at bank.c:41 (deposit)"; empty if nobody.
    pub instead: String,
}

impl Described {
    /// One line of the report.
    pub fn text(&self) -> String {
        let inside = if self.offset > 0 { format!("+{}", self.offset) } else { String::new() };
        let mut text =
            format!("thread {} ({}) {} at step {}{inside}", self.tid, self.program, self.action, self.step);
        if !self.syscall.is_empty() {
            text.push_str(&format!(", in {}", self.syscall));
        }
        text.push_str(&at(&self.line, &self.function));
        if !self.access.is_empty() {
            text.push_str(&format!(", {}", self.access));
        }
        if !self.instead.is_empty() {
            text.push_str(&format!("; {}", self.instead));
        }
        text
    }
}

/// " at bank.c:38 (deposit)", with what is known of it.
pub(crate) fn at(line: &str, function: &str) -> String {
    match (line.is_empty(), function.is_empty()) {
        (false, false) => format!(" at {line} ({function})"),
        (false, true) => format!(" at {line}"),
        (true, false) => format!(" in {function}"),
        (true, true) => String::new(),
    }
}

fn syscall_text(view: &View) -> String {
    // Of these calls the first argument is a descriptor, which says something.
    const WITH_DESCRIPTOR: [u64; 12] = [0, 1, 3, 17, 18, 19, 20, 42, 44, 45, 46, 47];
    match view.syscall {
        Some(call) if WITH_DESCRIPTOR.contains(&call.number) => {
            format!("{}({})", debug::wait::syscall_name(call.number), call.first as i32)
        }
        Some(call) => debug::wait::syscall_name(call.number),
        None => String::new(),
    }
}

/// "bank.c:38", "deposit" of the thread's own innermost line.
pub fn line_of(view: &View) -> (String, String) {
    let Some(frame) = view.own_line() else { return (String::new(), String::new()) };
    let file = frame.file.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let line = match frame.line {
        Some(line) if !file.is_empty() => format!("{file}:{line}"),
        _ => String::new(),
    };
    (line, frame.function.clone().unwrap_or_default())
}

/// "balance" or "forks+40": the variable with a fixed place that covers an address of the thread's.
pub(crate) fn variable(machine: &Machine, view: &View, files: &mut Files, address: u64) -> Option<String> {
    let kernel = look::kernel(machine)?;
    let space = look::address_space(&kernel, &view.thread, files).ok()?;
    space.modules().iter().find_map(|loaded| {
        let (symbol, into) = loaded.module.symbol(address.wrapping_sub(loaded.bias))?;
        let known = symbol.data && into < symbol.size;
        let name = debug::module::demangle(&symbol.name);
        known.then(|| if into == 0 { name } else { format!("{name}+{into}") })
    })
}

fn failed(error: debug::kernel::ReadError) -> BaseError {
    BaseError::Stop(error.to_string())
}

impl Worker {
    /// Runs under `others` until the place of `decision`, and looks at its thread there.
    pub(crate) fn look_at(
        &mut self,
        decision: &Decision,
        others: &[Decision],
        files: &mut Files,
    ) -> Result<Option<(u64, View)>, BaseError> {
        if !self.stop_at(others, &decision.place)? {
            return Ok(None);
        }
        let step = self.machine().step();
        if decision.place.offset > 0 {
            let position = Position { step, offset: Instructions(decision.place.offset) };
            if self.machine().run(&Until::position(position), &mut ())? != Stop::Position {
                return Ok(None);
            }
        }
        let view = look::committed(self.machine(), files).map_err(failed)?;
        Ok(view.map(|view| (step.0, view)))
    }

    /// Describes each decision of a failing set in the order in which they were applied.
    pub fn describe(
        &mut self,
        explained: &Explained,
        facts: &Facts,
        files: &mut Files,
    ) -> Result<Vec<Described>, BaseError> {
        let mut order: Vec<usize> = (0..explained.decisions.len()).collect();
        order.sort_by_key(|&i| explained.failing.applied.get(i).copied().flatten());
        let ranks = explained.decisions.iter().filter(|decision| decision.action.is_rank()).count();
        let mut out = Vec::new();
        let mut before: Vec<Decision> = Vec::new();
        for i in order {
            let decision = explained.decisions[i];
            let looked = self.look_at(&decision, &before, files)?;
            before.push(decision);
            let Some((step, view)) = looked else { continue };
            let (line, function) = line_of(&view);
            let access = self.access_at(&decision, facts, &view, files);
            let instead = self.who_runs_instead(&before, &decision, step, view.thread.tid, files)?;
            out.push(Described {
                tid: view.thread.tid,
                program: view.thread.comm.clone(),
                action: words(decision.action, ranks),
                step,
                offset: decision.place.offset,
                syscall: if decision.place.offset == 0 { syscall_text(&view) } else { String::new() },
                line,
                function,
                access,
                instead,
            });
        }
        Ok(out)
    }

    /// The access to shared memory right before or after the place.
    fn access_at(&mut self, decision: &Decision, facts: &Facts, view: &View, files: &mut Files) -> String {
        let place = decision.place;
        if place.offset == 0 {
            return String::new();
        }
        let found = |offset| {
            let at = crate::decision::Place { offset, ..place };
            facts.accesses.iter().find(|access| access.place == at)
        };
        let (access, after) = match (place.offset.checked_sub(1).and_then(found), found(place.offset)) {
            (Some(access), _) => (access, true),
            (None, Some(access)) => (access, false),
            (None, None) => return String::new(),
        };
        let name = variable(self.machine(), view, files, access.address)
            .unwrap_or_else(|| format!("shared memory at {:#x}", access.address));
        match (after, access.write) {
            (true, true) => format!("after it has written {name}"),
            (true, false) => format!("after it has read {name}"),
            (false, true) => format!("before it writes {name}"),
            (false, false) => format!("before it reads {name}"),
        }
    }

    /// With the decision in force, the first thread of the job to commit, if it is another one.
    fn who_runs_instead(
        &mut self,
        decisions: &[Decision],
        decision: &Decision,
        step: u64,
        tid: u32,
        files: &mut Files,
    ) -> Result<String, BaseError> {
        /// Commits looked through, of threads outside the job.
        const MOST: u64 = 64;
        let from = if decision.place.offset > 0 { step + 1 } else { step };
        if matches!(decision.action, Action::LateTimer(_)) || !self.run_to(decisions, from)? {
            return Ok(String::new());
        }
        for _ in 0..MOST {
            let view = look::committed(self.machine(), files).map_err(failed)?;
            match view {
                Some(view) if view.thread.name != 0 && view.thread.tid != tid => {
                    let (line, function) = line_of(&view);
                    let (tid, program) = (view.thread.tid, &view.thread.comm);
                    return Ok(format!("thread {tid} ({program}) goes on{}", at(&line, &function)));
                }
                Some(view) if view.thread.name != 0 => return Ok(String::new()),
                _ => {}
            }
            let next = Step(self.machine().step().0 + 1);
            match self.machine().run(&Until::step(next), &mut ())? {
                Stop::Step => {}
                _ => return Ok(String::new()),
            }
        }
        Ok(String::new())
    }
}
