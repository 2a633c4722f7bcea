//! Says in words where a decision happens and what it changes.

use debug::look::{self, Files, View};
use serde::Serialize;
use vmm::machine::{Stop, Until};

use crate::{
    base::{BaseError, Worker},
    decision::{Decision, words},
    search::Explained,
    trial::Trial,
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
    /// The step that would have been committed next.
    pub step: u64,
    /// "write(1)"; empty if the thread is not in a system call.
    pub syscall: String,
    /// "bank.c:38"; empty without debug information.
    pub line: String,
    /// Function.
    pub function: String,
    /// Who runs instead, and where it goes on: "thread 141 goes on at bank.c:41 (deposit)"; empty if nobody.
    pub instead: String,
}

impl Described {
    /// One line of the report.
    pub fn text(&self) -> String {
        let mut text =
            format!("thread {} ({}) {} at step {}", self.tid, self.program, self.action, self.step);
        if !self.syscall.is_empty() {
            text.push_str(&format!(", in {}", self.syscall));
        }
        match (self.line.is_empty(), self.function.is_empty()) {
            (false, false) => text.push_str(&format!(" at {} ({})", self.line, self.function)),
            (false, true) => text.push_str(&format!(" at {}", self.line)),
            (true, false) => text.push_str(&format!(" in {}", self.function)),
            (true, true) => {}
        }
        if !self.instead.is_empty() {
            text.push_str(&format!("; {}", self.instead));
        }
        text
    }
}

/// The name of a system call.
pub fn syscall_name(number: u64) -> String {
    let name = usize::try_from(number).ok().and_then(syscalls::Sysno::new);
    name.map_or_else(|| format!("syscall {number}"), |name| name.name().to_owned())
}

fn syscall_text(view: &View) -> String {
    // Of these calls the first argument is a descriptor, which says something.
    const WITH_DESCRIPTOR: [u64; 12] = [0, 1, 3, 17, 18, 19, 20, 42, 44, 45, 46, 47];
    match view.syscall {
        Some(call) if WITH_DESCRIPTOR.contains(&call.number) => {
            format!("{}({})", syscall_name(call.number), call.first as i32)
        }
        Some(call) => syscall_name(call.number),
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

impl Worker {
    /// Runs under `others` until `place` of `decision`, and looks at its thread there; with `acting`, the decision
    /// then acts and the thread that commits next is looked at too.
    fn look_at(
        &mut self,
        decision: &Decision,
        others: &[Decision],
        files: &mut Files,
    ) -> Result<Option<(u64, View)>, BaseError> {
        let mut stop = *decision;
        stop.place.offset = 0;
        if !self.stop_at(others, &stop.place)? {
            return Ok(None);
        }
        let step = self.machine().step();
        if decision.place.offset > 0 {
            let offset = vmm::address::Instructions(decision.place.offset);
            let position = vmm::address::Position { step, offset };
            if self.machine().run(&Until::position(position), &mut ())? != Stop::Position {
                return Ok(None);
            }
        }
        let view =
            look::committed(self.machine(), files).map_err(|error| BaseError::Stop(error.to_string()))?;
        Ok(view.map(|view| (step.0, view)))
    }

    /// Describes each decision of a failing set in the order in which they were applied.
    pub fn describe(
        &mut self,
        explained: &Explained,
        files: &mut Files,
    ) -> Result<Vec<Described>, BaseError> {
        let mut order: Vec<usize> = (0..explained.decisions.len()).collect();
        order.sort_by_key(|&i| explained.failing.applied.get(i).copied().flatten());
        let mut out = Vec::new();
        let mut before = Vec::new();
        for i in order {
            let decision = explained.decisions[i];
            if let Some((step, view)) = self.look_at(&decision, &before, files)? {
                let (line, function) = line_of(&view);
                before.push(decision);
                let instead = self.who_runs_instead(&before, step, view.thread.tid, files)?;
                out.push(Described {
                    tid: view.thread.tid,
                    program: view.thread.comm.clone(),
                    action: words(decision.action),
                    step,
                    syscall: if decision.place.offset == 0 { syscall_text(&view) } else { String::new() },
                    line,
                    function,
                    instead,
                });
            } else {
                before.push(decision);
            }
        }
        Ok(out)
    }

    /// With the decision in force, the first thread to commit at or after `step`, if it is another one.
    fn who_runs_instead(
        &mut self,
        decisions: &[Decision],
        step: u64,
        tid: u32,
        files: &mut Files,
    ) -> Result<String, BaseError> {
        if self.run_to(decisions, step)? {
            let view =
                look::committed(self.machine(), files).map_err(|error| BaseError::Stop(error.to_string()))?;
            if let Some(view) = view.filter(|view| view.thread.tid != tid && view.thread.pid != 1) {
                let (line, function) = line_of(&view);
                let place = match (line.is_empty(), function.is_empty()) {
                    (false, _) => format!(" at {line} ({function})"),
                    (true, false) => format!(" in {function}"),
                    (true, true) => String::new(),
                };
                return Ok(format!("thread {} ({}) goes on{place}", view.thread.tid, view.thread.comm));
            }
        }
        Ok(String::new())
    }
}

/// Where two runs of the program first do different things, thread by thread; steps and ids are not compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Thread id in the failing run.
    pub tid: u32,
    /// Step in the failing run.
    pub step: u64,
    /// What it does in the failing run; "nothing more" if it has ended.
    pub failing: String,
    /// What it does in the passing one.
    pub passing: String,
}

/// The first difference by the failing run's steps; `None` if each thread did the same.
pub fn first_difference(failing: &Trial, passing: &Trial) -> Option<Difference> {
    let mut names: Vec<u64> = failing.deeds.iter().chain(&passing.deeds).map(|deed| deed.thread).collect();
    names.sort_unstable();
    names.dedup();
    let nothing = || "nothing more".to_owned();
    let differences = names.into_iter().filter_map(|name| {
        let of =
            |trial: &'_ Trial| trial.deeds.iter().filter(|d| d.thread == name).cloned().collect::<Vec<_>>();
        let (left, right) = (of(failing), of(passing));
        let at = (0..left.len().max(right.len()))
            .find(|&i| left.get(i).map(|d| &d.words) != right.get(i).map(|d| &d.words))?;
        let step = left.get(at).or(left.last()).map_or(failing.steps, |deed| deed.step);
        let tid = left.first().or(right.first()).map_or(0, |deed| deed.tid);
        Some(Difference {
            tid,
            step,
            failing: left.get(at).map_or_else(nothing, |deed| deed.words.clone()),
            passing: right.get(at).map_or_else(nothing, |deed| deed.words.clone()),
        })
    });
    differences.min_by_key(|difference| (difference.step, difference.tid))
}
