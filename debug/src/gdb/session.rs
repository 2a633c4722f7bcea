//! One debugging session: the traveller, the program's files, what gdb asked for.

use std::{collections::BTreeMap, fmt::Write as _, num::NonZeroUsize};

use gdbstub::{
    common::{Signal, Tid},
    stub::MultiThreadStopReason,
    target::ext::{base::reverse_exec::ReplayLogPosition, breakpoints::WatchKind},
};
use rewind_platform::state::Fact;
use vmm::address::{Gva, Position};

use super::{linker::Places, registers, signals};
use crate::{
    files,
    look::{self, Files},
    maps::{self, Mapping},
    process::Thread,
    travel::{Halt, Kind, Travel, TravelError},
    wait,
};

/// What gdb asked to be done next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Plan {
    #[default]
    Continue,
    Step(u32),
    Range(u32, u64, u64),
    BackStep,
    BackContinue,
}

/// The program of the process where it is.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// Its executable inside the guest.
    pub executable: Vec<u8>,
    /// Its working directory.
    pub directory: Vec<u8>,
    /// What the kernel told it at its start (AT_* pairs, 16 bytes each).
    pub auxv: Vec<u8>,
    /// Its mappings.
    pub mappings: Vec<Mapping>,
}

/// A session.
pub struct Session<'h> {
    pub(super) travel: Travel<'h>,
    pub(super) files: Files,
    pub(super) program: Program,
    pub(super) plan: Plan,
    /// The thread gdb looks at.
    pub(super) selected: u32,
    /// Breakpoints gdb calls hardware.
    pub(super) hardware: BTreeMap<u64, u32>,
    pub(super) description: String,
    pub(super) open: BTreeMap<u32, Vec<u8>>,
    /// Files mapped now whose content was needed.
    mapped: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) bookmarks: BTreeMap<String, Position>,
    pub(super) threads: Vec<Thread>,
    /// Text for gdb's console, written before the next stop.
    pub(super) messages: Vec<String>,
    /// Added to the next stop's packet.
    pub(super) suffix: Option<String>,
    /// gdb understands exec events.
    pub(super) exec_events: bool,
    /// Places in the files that breakpoints were set in.
    pub(super) linkers: BTreeMap<Vec<u8>, Places>,
    notice: Box<dyn Fn(&str)>,
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.travel)
    }
}

/// More auxiliary entries than the kernel makes (fs/binfmt_elf.c: AT_VECTOR_SIZE).
const MOST_AUXV: usize = 64;

impl<'h> Session<'h> {
    /// Over `travel`; `files` are those of the run's root; `notice` tells the user something at once.
    pub fn new(
        travel: Travel<'h>,
        files: Files,
        notice: Box<dyn Fn(&str)>,
    ) -> Result<Session<'h>, TravelError> {
        let mut session = Session {
            selected: travel.thread(),
            travel,
            files,
            program: Program::default(),
            plan: Plan::Continue,
            hardware: BTreeMap::new(),
            description: registers::description(),
            open: BTreeMap::new(),
            mapped: BTreeMap::new(),
            bookmarks: BTreeMap::new(),
            threads: Vec::new(),
            messages: Vec::new(),
            suffix: None,
            exec_events: false,
            linkers: BTreeMap::new(),
            notice,
        };
        session.refresh()?;
        Ok(session)
    }

    /// The traveller.
    pub fn travel(&mut self) -> &mut Travel<'h> {
        &mut self.travel
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Content of a file as the process has it mapped, or of the run's root.
    pub fn content(&mut self, path: &[u8]) -> Option<Vec<u8>> {
        let path = &self.absolute(path)[..];
        let mapping =
            self.program.mappings.iter().find(|mapping| mapping.path.as_deref() == Some(path)).cloned();
        if let (Some(mapping), Some(kernel)) = (mapping, look::kernel(self.travel.machine()))
            && let Some(content) = self.files.mapped_content(&kernel, &mapping)
        {
            return Some(content);
        }
        self.files.content(path)
    }

    /// A path as the process means it.
    fn absolute(&self, path: &[u8]) -> Vec<u8> {
        if path.starts_with(b"/") {
            return path.to_vec();
        }
        let path = path.strip_prefix(b"./").unwrap_or(path);
        [self.program.directory.as_slice(), b"/", path].concat()
    }

    /// Looks at the process anew, after the machine was moved.
    pub(super) fn refresh(&mut self) -> Result<(), TravelError> {
        self.threads = self.travel.threads()?;
        self.threads.sort_by_key(|thread| thread.tid);
        let machine = self.travel.machine();
        let Some(kernel) = look::kernel(machine) else { return Ok(()) };
        let Some((thread, mm)) = self.threads.iter().find_map(|thread| Some((thread, thread.mm?))) else {
            return Ok(());
        };
        let mappings = maps::mappings(&kernel, mm)?;
        if mappings != self.program.mappings {
            self.mapped.clear();
            self.program.mappings = mappings;
        }
        let exe = kernel.field(mm, Fact::MmExeFile)?;
        self.program.executable = if exe == 0 { Vec::new() } else { files::file_path(&kernel, Gva(exe))? };
        let fs = Gva(kernel.field(thread.task, Fact::TaskFs)?);
        if fs.0 != 0 {
            let pwd = kernel.address_of(fs, Fact::FsPwd)?;
            let (mnt, dentry) = (kernel.field(pwd, Fact::PathMnt)?, kernel.field(pwd, Fact::PathDentry)?);
            self.program.directory = files::path_of(&kernel, Gva(mnt), Gva(dentry))?;
        }
        self.program.auxv = auxv(thread, &kernel, kernel.field(mm, Fact::MmStartStack)?);
        Ok(())
    }

    /// Does what gdb asked for.
    pub(super) fn go(&mut self) -> MultiThreadStopReason<u64> {
        let plan = std::mem::take(&mut self.plan);
        let thread = if self.threads.iter().any(|thread| thread.tid == self.selected) {
            self.selected
        } else {
            self.travel.thread()
        };
        let left = self.travel.left();
        let halt = match plan {
            Plan::Continue => self.travel.forward(),
            Plan::Step(tid) => self.travel.step(tid),
            Plan::Range(tid, start, end) => self.travel.step_range(tid, start..end),
            Plan::BackStep => self.travel.step_back(thread),
            Plan::BackContinue => self.travel.backward(),
        };
        if left.is_some() && self.travel.left().is_none() {
            self.messages.push("rewind: back on the recording; what was changed is forgotten\n".into());
        }
        let halt = halt.unwrap_or_else(|error| {
            self.messages.push(format!("rewind: {error}\n"));
            Halt::Done
        });
        if let Err(error) = self.refresh() {
            self.messages.push(format!("rewind: cannot look at the process: {error}\n"));
        }
        self.reason(halt)
    }

    /// The thread a stop is told of.
    pub(super) fn stop_thread(&self) -> u32 {
        let thread = self.travel.thread();
        if self.threads.iter().any(|own| own.tid == thread) {
            return thread;
        }
        self.threads.first().map_or(thread, |own| own.tid)
    }

    fn reason(&mut self, halt: Halt) -> MultiThreadStopReason<u64> {
        let number = self.stop_thread();
        self.selected = number;
        let tid = tid(number);
        let signal = |number| MultiThreadStopReason::SignalWithThread { tid, signal: Signal(number) };
        match halt {
            Halt::Done => signal(5),
            Halt::Breakpoint => {
                let at = self.registers(number).map(|file| gdbstub::arch::Registers::pc(&file));
                if at.is_some_and(|at| self.hardware.contains_key(&at)) {
                    MultiThreadStopReason::HwBreak(tid)
                } else {
                    MultiThreadStopReason::SwBreak(tid)
                }
            }
            Halt::Watch(at, kind) => MultiThreadStopReason::Watch {
                tid,
                kind: match kind {
                    Kind::Write => WatchKind::Write,
                    Kind::Read => WatchKind::Read,
                    Kind::Access => WatchKind::ReadWrite,
                },
                addr: at.0,
            },
            Halt::Signal(number) => signal(signals::to_gdb(number)),
            Halt::Exec(path) => {
                if self.exec_events {
                    // The file itself: what the program gave may be relative, or a link.
                    let mut text = String::from("exec:");
                    self.program.executable.iter().for_each(|byte| {
                        let _ = write!(text, "{byte:02x}");
                    });
                    text.push(';');
                    self.suffix = Some(text);
                } else {
                    self.messages.push(format!("rewind: the process has executed {path}\n"));
                }
                signal(5)
            }
            Halt::Begin => MultiThreadStopReason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::Begin },
            Halt::End => MultiThreadStopReason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::End },
            Halt::Interrupted => signal(2),
        }
    }

    /// All registers of a thread.
    pub(super) fn registers(&mut self, tid: u32) -> Option<registers::File> {
        let thread = self.threads.iter().find(|thread| thread.tid == tid)?.clone();
        registers::read(self.travel.machine(), &thread).ok()
    }

    /// Writes registers of a thread; false if it cannot be.
    pub(super) fn write_registers(&mut self, tid: u32, new: &registers::File) -> bool {
        let Some(thread) = self.threads.iter().find(|thread| thread.tid == tid).cloned() else {
            return false;
        };
        let done = registers::write(self.travel.machine(), &thread, new);
        self.changed();
        done.unwrap_or(false)
    }

    /// Reads memory of the process as it would: what is not in memory yet comes from the file that is mapped there,
    /// or is zero. How many bytes, up to the first that is not mapped.
    pub(super) fn read_memory(&mut self, start: u64, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() {
            let at = start.wrapping_add(done as u64);
            let piece = ((4096 - at % 4096) as usize).min(out.len() - done);
            let part = &mut out[done..done + piece];
            if !self.travel.read(Gva(at), part) && !self.read_absent(at, part) {
                break;
            }
            done += piece;
        }
        done
    }

    /// Reads what lies in a mapping but not in memory, within a page.
    fn read_absent(&mut self, at: u64, out: &mut [u8]) -> bool {
        let found = self.program.mappings.iter().find(|mapping| (mapping.start..mapping.end).contains(&at));
        let Some(mapping) = found.filter(|mapping| mapping.flags & 7 != 0).cloned() else { return false };
        let Some(path) = mapping.path.clone() else {
            out.fill(0);
            return true;
        };
        if !self.mapped.contains_key(&path) {
            let Some(kernel) = look::kernel(self.travel.machine()) else { return false };
            let Some(content) = self.files.mapped_content(&kernel, &mapping) else { return false };
            self.mapped.insert(path.clone(), content);
        }
        let Some(content) = self.mapped.get(&path) else { return false };
        let offset = at - mapping.start + mapping.offset;
        // Behind the end of the file a page is zero.
        out.fill(0);
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
        let length = out.len().min(content.len() - from);
        out[..length].copy_from_slice(&content[from..from + length]);
        true
    }

    /// Writes memory of the process; false if it is not there.
    pub(super) fn write_memory(&mut self, at: u64, bytes: &[u8]) -> bool {
        let Some(root) = self.threads.iter().find_map(|thread| thread.root) else { return false };
        let machine = self.travel.machine();
        let memory = machine.memory().clone();
        let done = registers::write_virtual(&memory, root, Gva(at), bytes).is_ok();
        machine.engine().memory_changed(None);
        self.changed();
        done
    }

    fn changed(&mut self) {
        if self.travel.changed() {
            (self.notice)(&format!(
                "changed at {}: from here on this is no longer the recording; going back returns to it",
                self.travel.position()
            ));
        }
    }

    /// The signal about to be delivered where this is.
    pub(super) fn signal_here(&mut self) -> Option<u32> {
        self.travel.signal_here().ok().flatten().map(|(_, number, ..)| number)
    }

    /// Its siginfo_t (include/uapi/asm-generic/siginfo.h), as far as the recording has it.
    pub(super) fn signal_info(&mut self) -> Option<Vec<u8>> {
        let (_, number, code, address) = self.travel.signal_here().ok().flatten()?;
        let mut info = vec![0; 128];
        info[0..4].copy_from_slice(&number.to_le_bytes());
        info[8..12].copy_from_slice(&code.to_le_bytes());
        info[16..24].copy_from_slice(&address.to_le_bytes());
        Some(info)
    }

    /// The list of threads as gdb reads it: ids, names, what they do.
    pub(super) fn threads_text(&mut self) -> String {
        let pid = self.travel.pid();
        let mut text = String::from("<?xml version=\"1.0\"?>\n<threads>\n");
        for thread in self.threads.clone() {
            let what = self.describe(thread.tid).unwrap_or_default();
            let (tid, name) = (thread.tid, escaped(&thread.comm));
            let _ =
                writeln!(text, "<thread id=\"p{pid:x}.{tid:x}\" name=\"{name}\">{}</thread>", escaped(&what));
        }
        text.push_str("</threads>\n");
        text
    }

    /// What a thread does, in a line.
    pub(super) fn describe(&mut self, tid: u32) -> Option<String> {
        let thread = self.threads.iter().find(|thread| thread.tid == tid)?.clone();
        let machine = self.travel.machine();
        let cpu = machine.cpu().ok()?;
        let kernel = look::kernel(machine)?;
        let user = thread.registers(&kernel, &cpu).ok()?;
        let on_cpu = crate::process::current(&kernel, &cpu).ok()? == thread.task;
        let state = if on_cpu { "on the CPU" } else { wait::state_word(thread.state) };
        let call = if user.orig_rax < 1024 && !on_cpu {
            format!(" in {}", wait::syscall_name(user.orig_rax))
        } else {
            String::new()
        };
        Some(format!("{state}{call}"))
    }
}

/// Text of the guest inside XML.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

/// A thread id as gdbstub has it; 0 is none of ours.
pub(super) fn tid(number: u32) -> Tid {
    NonZeroUsize::new(number as usize).unwrap_or(NonZeroUsize::MIN)
}

/// The auxiliary vector: behind the arguments and the environment on the stack a program begins with (System V ABI
/// x86-64, 3.4.1). The program could have overwritten it: bounded.
fn auxv(thread: &Thread, kernel: &crate::kernel::Kernel<'_>, stack: u64) -> Vec<u8> {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        thread.read(kernel, Gva(at), &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
    };
    let Some(count) = word(stack).filter(|count| *count < 1 << 20) else { return Vec::new() };
    let mut at = stack.wrapping_add(8 * (count + 2));
    for _ in 0..1 << 16 {
        match word(at) {
            Some(0) => break,
            Some(_) => at = at.wrapping_add(8),
            None => return Vec::new(),
        }
    }
    let mut out = Vec::new();
    for _ in 0..MOST_AUXV {
        at = at.wrapping_add(8);
        let (Some(kind), Some(value)) = (word(at), word(at.wrapping_add(8))) else { return Vec::new() };
        out.extend(kind.to_le_bytes());
        out.extend(value.to_le_bytes());
        if kind == 0 {
            break;
        }
        at = at.wrapping_add(8);
    }
    out
}
