//! Who waits for what at the end of a run that hangs, and who holds it.

use std::collections::BTreeMap;

use debug::{
    kernel::Kernel,
    look::{self, Files, View},
    wait,
};
use serde::Serialize;
use vmm::address::Gva;

use crate::{
    base::{BaseError, Worker},
    decision::Decision,
    describe::{at, line_of, variable},
};

/// A thread that is there when the run hangs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stuck {
    /// Thread id.
    pub tid: u32,
    /// Program.
    pub program: String,
    /// Its line, and the function that is in.
    pub line: String,
    /// Function.
    pub function: String,
    /// What it does: "waits for the mutex forks+40", "waits in `read(3: pipe:[7])`", "runs".
    pub does: String,
    /// The thread or process it waits for, if that can be told.
    pub held_by: Option<u32>,
}

impl Stuck {
    /// One line of the report.
    pub fn text(&self) -> String {
        let mut text = format!("thread {} ({}) {}", self.tid, self.program, self.does);
        if let Some(holder) = self.held_by.filter(|_| self.does.contains("mutex")) {
            text.push_str(&format!(", held by thread {holder}"));
        }
        text.push_str(&at(&self.line, &self.function));
        text
    }
}

/// The circle of threads that wait for each other: "22 -> 23 -> 22".
pub fn circle(stuck: &[Stuck]) -> Option<String> {
    let next: BTreeMap<u32, u32> = stuck.iter().filter_map(|one| Some((one.tid, one.held_by?))).collect();
    for start in next.keys() {
        let mut seen = vec![*start];
        let mut here = *start;
        while let Some(&then) = next.get(&here) {
            if then == *start {
                seen.push(then);
                let names: Vec<String> = seen.iter().map(u32::to_string).collect();
                return Some(names.join(" -> "));
            }
            if seen.contains(&then) {
                break;
            }
            seen.push(then);
            here = then;
        }
    }
    None
}

impl Worker {
    /// Runs under `decisions` to the end, and looks at the threads of the job that are left.
    pub fn stuck(&mut self, decisions: &[Decision], files: &mut Files) -> Result<Vec<Stuck>, BaseError> {
        self.run_whole(decisions)?;
        let failed = |error: debug::kernel::ReadError| BaseError::Stop(error.to_string());
        let mut views = look::threads(self.machine(), files).map_err(failed)?;
        // TASK_DEAD (include/linux/sched.h): ended, and not yet waited for.
        views.retain(|view| {
            view.thread.name != 0 && view.thread.state & 0x80 == 0 && view.thread.mm.is_some()
        });
        let machine = self.machine();
        let Some(kernel) = look::kernel(machine) else { return Ok(Vec::new()) };
        let tids: Vec<(u32, u32)> = views.iter().map(|view| (view.thread.tid, view.thread.pid)).collect();
        let mut out = Vec::new();
        for view in &views {
            let (line, function) = line_of(view);
            let (does, held_by) = match futex(&kernel, view, &tids) {
                Some(Futex::Thread(tid)) => (format!("waits for thread {tid} to end"), Some(tid)),
                Some(Futex::Mutex { at, owner }) => {
                    (format!("waits for the mutex {}", name(machine, view, files, at)), owner)
                }
                Some(Futex::Condition { at }) => {
                    let name = name(machine, view, files, at);
                    (format!("waits for the condition variable {name} to be signalled"), None)
                }
                None => other(&kernel, view),
            };
            let (tid, program) = (view.thread.tid, view.thread.comm.clone());
            out.push(Stuck { tid, program, line, function, does, held_by });
        }
        Ok(out)
    }
}

fn name(machine: &vmm::Machine, view: &View, files: &mut Files, address: u64) -> String {
    variable(machine, view, files, address).unwrap_or_else(|| format!("at {address:#x}"))
}

/// What a futex that somebody waits on belongs to.
enum Futex {
    /// The thread id that the kernel clears when the thread has ended (`pthread_join`).
    Thread(u32),
    /// A lock, and who holds it.
    Mutex { at: u64, owner: Option<u32> },
    /// A condition variable.
    Condition { at: u64 },
}

/// Number of futex (arch/x86/entry/syscalls/syscall_64.tbl).
const FUTEX: u64 = 202;
/// RDI in the registers' order: the first argument.
const RDI: usize = 7;
/// Innermost functions looked at for what the C library is doing.
const DEEP: usize = 12;

fn futex(kernel: &Kernel<'_>, view: &View, tids: &[(u32, u32)]) -> Option<Futex> {
    let call = view.syscall.filter(|call| call.number == FUTEX && view.thread.state != 0)?;
    debug_assert_eq!(call.first, view.registers.gpr[RDI]);
    let address = call.first;
    let word = |at: u64| {
        let mut bytes = [0; 4];
        view.thread.read(kernel, Gva(at), &mut bytes).ok().map(|()| u32::from_le_bytes(bytes))
    };
    let inside = |part: &str| {
        let functions = view.stack.iter().take(DEEP).flat_map(|frame| frame.source.iter());
        functions.filter_map(|line| line.function.as_deref()).any(|function| function.contains(part))
    };
    let held = word(address)?;
    let same_process = |tid: u32| tids.contains(&(tid, view.thread.pid));
    if inside("cond_wait") || inside("cond_timedwait") || inside("cond_clockwait") {
        // The futex is one of two inside the variable, after the sequence counters (glibc, struct __pthread_cond_s).
        return Some(Futex::Condition { at: address });
    }
    if held != view.thread.tid && same_process(held) && (inside("join") || !inside("mutex")) {
        return Some(Futex::Thread(held));
    }
    if inside("mutex") || inside("lll_lock") {
        // The owner stands eight bytes behind the lock word (glibc, struct __pthread_mutex_s).
        let owner = word(address.wrapping_add(8)).filter(|owner| same_process(*owner) && held != 0);
        return Some(Futex::Mutex { at: address, owner });
    }
    None
}

/// Any other wait, from the system call.
fn other(kernel: &Kernel<'_>, view: &View) -> (String, Option<u32>) {
    let wait = wait::wait(kernel, view, None);
    let held_by = wait
        .syscall
        .as_deref()
        .and_then(|call| call.strip_prefix("wait4(process ")?.strip_suffix(')')?.parse().ok());
    match wait.syscall {
        Some(call) if view.thread.state != 0 => (format!("waits in {call}"), held_by),
        _ => (if view.thread.state == 0 { "runs".into() } else { format!("is {}", wait.state) }, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stuck(tid: u32, held_by: Option<u32>) -> Stuck {
        let (program, line, function) = ("p".into(), "p.c:3".into(), "f".into());
        Stuck { tid, program, line, function, does: "waits for the mutex m".into(), held_by }
    }

    #[test]
    fn finds_the_circle_and_not_the_tail() {
        let all = [stuck(21, Some(22)), stuck(22, Some(23)), stuck(23, Some(24)), stuck(24, Some(22))];
        assert_eq!(circle(&all).as_deref(), Some("22 -> 23 -> 24 -> 22"));
        assert_eq!(circle(&all[..3]), None);
        assert_eq!(all[0].text(), "thread 21 (p) waits for the mutex m, held by thread 22 at p.c:3 (f)");
    }
}
