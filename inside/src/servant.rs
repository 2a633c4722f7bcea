//! The process that makes system calls for us.

use std::collections::BTreeSet;

use debug::{kernel::translate, process};
use rewind_platform::{
    control::{DECISION_STOP, DecisionEntry, SLOT_ARMED},
    state::{Fact, ST_RANKS, ST_SYSCALL, ST_THREAD, ST_TID},
};
use vmm::{
    EndReason, Machine, Stop, Until,
    address::{Gpa, Gva, Step},
    memory::PageSet,
};

use crate::{
    InsideError,
    regs::{Saved, physical, word},
};

/// Numbers of arch/x86/entry/syscalls/syscall_64.tbl.
pub(crate) mod nr {
    pub(crate) const READ: u64 = 0;
    pub(crate) const WRITE: u64 = 1;
    pub(crate) const CLOSE: u64 = 3;
    pub(crate) const FSTAT: u64 = 5;
    pub(crate) const POLL: u64 = 7;
    pub(crate) const MMAP: u64 = 9;
    pub(crate) const RT_SIGPROCMASK: u64 = 14;
    pub(crate) const IOCTL: u64 = 16;
    pub(crate) const DUP2: u64 = 33;
    pub(crate) const CLONE: u64 = 56;
    pub(crate) const EXECVE: u64 = 59;
    pub(crate) const EXIT_GROUP: u64 = 231;
    pub(crate) const WAIT4: u64 = 61;
    pub(crate) const KILL: u64 = 62;
    pub(crate) const SETSID: u64 = 112;
    pub(crate) const OPENAT: u64 = 257;
    pub(crate) const PIPE2: u64 = 293;
}

/// `syscall`.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Bytes of memory the servant has for arguments and results; the instruction lies in the page before.
pub(crate) const ROOM: u64 = 256 << 10;
const PAGE: u64 = 4096;
/// Steps to look for a place to begin at, and to wait for a new process.
const PATIENCE: u64 = 200_000;
/// The rank of everybody else: after the default, 0x8000_0000 (the kernel's step.c).
const LAST: u32 = 0xc000_0000;
/// CLONE_VFORK | SIGCHLD.
const CLONE: u64 = 0x4000 | 17;

/// A process at a commit, whose next system call is ours to choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) tid: u32,
    /// Its name in the creation tree; 0 outside the job.
    pub(crate) name: u64,
    /// System calls it has entered.
    syscalls: u64,
    /// Where a `syscall` instruction is in its memory.
    instruction: u64,
}

/// The servant, in the machine it lives in.
pub struct Servant<'m> {
    pub(crate) machine: &'m mut Machine,
    pub(crate) caller: Caller,
    /// Its memory for arguments and results: [`ROOM`] bytes.
    pub(crate) room: u64,
    began: u64,
}

impl<'m> Servant<'m> {
    /// Makes one at the machine's position, which is a commit or inside a step. The step it begins at is
    /// [`Servant::began`]: the machine's own, or a little later if no program is ready there.
    pub fn enter(machine: &'m mut Machine) -> Result<Servant<'m>, InsideError> {
        machine.set_trace_level(0);
        machine.set_no_progress_limit(None);
        machine.set_decisions(&[])?;
        let asked = machine.step().0;
        if !machine.at_commit() {
            // Inside a step: the thread's next return to user mode. In the middle of nothing: anybody's.
            next_commit(machine)?;
        }
        let (patched, instruction) = find_instruction(machine, asked)?;
        let began = machine.step().0;
        stand_aside(machine)?;
        let before = Saved::read(machine)?;
        let victim = caller(machine, instruction);
        let known: BTreeSet<u32> = tids(machine)?;
        before.calling(instruction, nr::CLONE, [CLONE, 0, 0, 0, 0, 0]).write(machine)?;
        let caller = new_process(machine, &known, victim, instruction)?;
        let mut servant = Servant { machine, caller, room: 0, began };
        let room = servant.call(
            "get memory",
            nr::MMAP,
            // PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE.
            [0, ROOM + PAGE, 7, 0x8022, u64::MAX, 0],
        )?;
        servant.write_code(room, &SYSCALL)?;
        if let Some((at, bytes)) = patched {
            servant.write_code(at, &bytes)?;
        }
        servant.caller.instruction = room;
        servant.room = room + PAGE;
        // No signal of the job's disturbs it, and nobody else goes on while it works.
        let mask = [0xff; 8];
        servant.put(0, &mask)?;
        servant.call("block signals", nr::RT_SIGPROCMASK, [0, servant.room, 0, 8, 0, 0])?;
        // All it may stop, but itself and init; that there is nobody (ESRCH) is no failure.
        servant.try_call(nr::KILL, [u64::MAX, 19, 0, 0, 0, 0])?;
        Ok(servant)
    }

    /// The step at which it was made.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Makes a system call; a result from -4095 to -1 is the negated error number.
    pub(crate) fn try_call(&mut self, number: u64, arguments: [u64; 6]) -> Result<i64, InsideError> {
        call(self.machine, &mut self.caller, number, arguments)
    }

    /// Makes a system call that must succeed; `what` says what for.
    pub(crate) fn call(&mut self, what: &str, number: u64, arguments: [u64; 6]) -> Result<u64, InsideError> {
        checked(what, self.try_call(number, arguments)?)
    }

    /// Writes to its room, `at` bytes in.
    pub(crate) fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), InsideError> {
        write_user(self.machine, self.room + at, bytes).map(drop)
    }

    /// Reads from its room.
    pub(crate) fn get(&mut self, at: u64, out: &mut [u8]) -> Result<(), InsideError> {
        let from = self.room + at;
        each_page(self.machine, from, out.len(), |memory, physical, range| {
            Ok(memory.read(physical, &mut out[range])?)
        })
    }

    /// Makes a child of it, which stands at its first commit while the servant waits for it to execute a program.
    pub(crate) fn child(&mut self) -> Result<Caller, InsideError> {
        let known = tids(self.machine)?;
        let instruction = self.caller.instruction;
        let regs = Saved::read(self.machine)?.calling(instruction, nr::CLONE, [CLONE, 0, 0, 0, 0, 0]);
        regs.write(self.machine)?;
        new_process(self.machine, &known, self.caller, instruction)
    }

    /// Makes the child execute a program, by the arguments of execve, and waits until the servant is back from its clone:
    /// the process's id, or the error number. Either of the two may come to a commit first.
    pub(crate) fn execute(
        &mut self,
        child: &mut Caller,
        [path, argv, env]: [u64; 3],
    ) -> Result<Result<u64, i32>, InsideError> {
        let instruction = child.instruction;
        let behind = instruction + SYSCALL.len() as u64;
        Saved::read(self.machine)?
            .calling(instruction, nr::EXECVE, [path, argv, env, 0, 0, 0])
            .write(self.machine)?;
        let mut executed = false;
        loop {
            next_commit(self.machine)?;
            let (now, regs) = (tid(self.machine), Saved::read(self.machine)?);
            let (rip, result) = (regs.get(word::RIP), regs.get(word::RAX) as i64);
            if now == child.tid && !executed {
                *child = caller(self.machine, instruction);
                if rip == behind && (-4095..0).contains(&result) {
                    return Ok(Err(-result as i32));
                }
                // At the instruction still: a page fault on the way.
                executed = rip != instruction;
            } else if now == self.caller.tid && rip == self.caller.instruction + SYSCALL.len() as u64 {
                self.caller = caller(self.machine, self.caller.instruction);
                return checked("start a process", result).map(Ok);
            }
        }
    }

    fn write_code(&mut self, at: u64, bytes: &[u8]) -> Result<(), InsideError> {
        write_code(self.machine, at, bytes)
    }
}

pub(crate) fn checked(what: &str, result: i64) -> Result<u64, InsideError> {
    match result {
        -4095..0 => Err(InsideError::Refused { what: format!("cannot {what}"), errno: -result as i32 }),
        result => Ok(result as u64),
    }
}

/// Makes a system call in `caller`, which stands at a commit.
pub(crate) fn call(
    machine: &mut Machine,
    caller: &mut Caller,
    number: u64,
    arguments: [u64; 6],
) -> Result<i64, InsideError> {
    Saved::read(machine)?.calling(caller.instruction, number, arguments).write(machine)?;
    caller.syscalls += 1;
    returned(machine, caller)
}

/// Runs until the call that was begun returns to user mode.
fn returned(machine: &mut Machine, caller: &mut Caller) -> Result<i64, InsideError> {
    loop {
        run_to(machine, caller)?;
        let regs = Saved::read(machine)?;
        if regs.get(word::RIP) == caller.instruction + SYSCALL.len() as u64 {
            return Ok(regs.get(word::RAX) as i64);
        }
        if regs.get(word::RIP) != caller.instruction {
            // Another program (after execve): what it returns means nothing.
            return Ok(0);
        }
        // A page fault on the way, or a call begun again: it goes on.
        caller.syscalls = machine.state_u64(ST_SYSCALL).unwrap_or(0) + 1;
    }
}

/// Runs until the caller's next commit after its present system call was entered.
fn run_to(machine: &mut Machine, caller: &Caller) -> Result<(), InsideError> {
    if caller.name == 0 {
        // Decisions name threads of the job only.
        loop {
            next_commit(machine)?;
            if tid(machine) == caller.tid {
                return Ok(());
            }
        }
    }
    let stop = |syscall, returns| DecisionEntry {
        thread: caller.name,
        syscall,
        returns,
        kind: DECISION_STOP,
        state: SLOT_ARMED,
        arg: 0,
    };
    // As it returns from the call; or, if it does not come to it, from a fault at the instruction.
    let now = (machine.state_u64(ST_SYSCALL).unwrap_or(0), returns(machine));
    machine.set_decisions(&[stop(caller.syscalls, 0), stop(now.0, now.1 + 1)])?;
    loop {
        match machine.run(&Until::END, &mut ())? {
            Stop::Decision => {
                machine.set_decisions(&[])?;
                return Ok(());
            }
            Stop::Interrupted => {}
            other => return Err(ended(other)),
        }
    }
}

/// What it means that the machine stopped there.
fn ended(stop: Stop) -> InsideError {
    InsideError::Ended(match stop {
        Stop::End(EndReason::PowerOff) => "all its processes were killed, or it was turned off".into(),
        Stop::End(EndReason::Restart) => "it was restarted".into(),
        Stop::End(EndReason::Panic { text }) => format!("its kernel panicked: {text}"),
        Stop::End(EndReason::Stalled) => "nothing in it could go on".into(),
        Stop::End(EndReason::Idling) => "nothing in it but the same timers went on".into(),
        Stop::Fault(fault) => fault.to_string(),
        other => format!("{other:?}"),
    })
}

fn tid(machine: &Machine) -> u32 {
    machine.state_u64(ST_TID & !7).map_or(0, |word| (word >> 32) as u32)
}

fn returns(machine: &Machine) -> u32 {
    machine.state_u64(rewind_platform::state::ST_RETURNS).map_or(0, |word| word as u32)
}

/// The thread whose commit this is.
fn caller(machine: &Machine, instruction: u64) -> Caller {
    let get = |offset| machine.state_u64(offset).unwrap_or(0);
    Caller { tid: tid(machine), name: get(ST_THREAD), syscalls: get(ST_SYSCALL), instruction }
}

fn next_commit(machine: &mut Machine) -> Result<(), InsideError> {
    let next = Step(machine.step().0 + 1);
    loop {
        match machine.run(&Until::step(next), &mut ())? {
            Stop::Step => return Ok(()),
            Stop::Decision | Stop::Interrupted => {}
            other => return Err(ended(other)),
        }
    }
}

fn tids(machine: &mut Machine) -> Result<BTreeSet<u32>, InsideError> {
    let Some(kernel) = debug::look::kernel(machine) else { return Ok(BTreeSet::new()) };
    Ok(process::threads(&kernel)?.into_iter().map(|thread| thread.tid).collect())
}

/// Everybody else runs only when nobody of ours can.
fn stand_aside(machine: &mut Machine) -> Result<(), InsideError> {
    let mut ranks = Vec::new();
    if let Some(kernel) = debug::look::kernel(machine) {
        let offset = kernel.fact(Fact::TaskRewindRank)?;
        for thread in process::threads(&kernel)? {
            ranks.push(physical(&kernel, Gva(thread.task.0.wrapping_add(offset)))?);
        }
    }
    for rank in ranks {
        machine.memory().write_u32(rank, LAST)?;
    }
    if let Some(page) = machine.state_page() {
        machine.memory().write_u64(Gpa(page.0 + ST_RANKS), 1)?;
    }
    Ok(())
}

/// Runs on to the first commit of a process that was not there before.
fn new_process(
    machine: &mut Machine,
    known: &BTreeSet<u32>,
    parent: Caller,
    instruction: u64,
) -> Result<Caller, InsideError> {
    for _ in 0..PATIENCE {
        next_commit(machine)?;
        let now = tid(machine);
        if !known.contains(&now) {
            return Ok(caller(machine, instruction));
        }
        let regs = Saved::read(machine)?;
        if now == parent.tid && regs.get(word::RIP) == instruction + SYSCALL.len() as u64 {
            checked("start a process", regs.get(word::RAX) as i64)?;
        }
    }
    Err(InsideError::Nobody(machine.step().0))
}

/// What stood where an instruction was put.
type Patched = Option<(u64, [u8; 2])>;

/// A `syscall` instruction in the memory of the current thread: the one it returns from, or one put where it would go on,
/// with what stood there. Where neither can be had (a program just executed has no page yet) the machine goes on a step.
fn find_instruction(machine: &mut Machine, asked: u64) -> Result<(Patched, u64), InsideError> {
    for _ in 0..PATIENCE {
        let rip = Saved::read(machine)?.get(word::RIP);
        for at in [rip.wrapping_sub(2), rip] {
            if read_two(machine, at)? == Some(SYSCALL) {
                return Ok((None, at));
            }
        }
        if let Some(there) = read_two(machine, rip)? {
            write_code(machine, rip, &SYSCALL)?;
            return Ok((Some((rip, there)), rip));
        }
        next_commit(machine)?;
    }
    Err(InsideError::Nobody(asked))
}

fn read_two(machine: &mut Machine, at: u64) -> Result<Option<[u8; 2]>, InsideError> {
    let mut bytes = [0; 2];
    let read =
        each_page(machine, at, 2, |memory, physical, range| Ok(memory.read(physical, &mut bytes[range])?));
    match read {
        Ok(()) => Ok(Some(bytes)),
        Err(InsideError::Read(debug::kernel::ReadError::Unmapped(_))) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes to user memory of the current thread; all of it must be there. Returns the pages.
fn write_user(machine: &mut Machine, at: u64, bytes: &[u8]) -> Result<PageSet, InsideError> {
    let mut pages = PageSet::new(machine.memory().pages());
    each_page(machine, at, bytes.len(), |memory, physical, range| {
        memory.write(physical, &bytes[range])?;
        if let Some(page) = memory.page_of(physical) {
            pages.insert(page);
        }
        Ok(())
    })?;
    Ok(pages)
}

/// As [`write_user`], of instructions.
fn write_code(machine: &mut Machine, at: u64, bytes: &[u8]) -> Result<(), InsideError> {
    let pages = write_user(machine, at, bytes)?;
    machine.engine().memory_changed(Some(&pages));
    Ok(())
}

/// For each piece of a range of user memory of the current thread that lies in one page.
fn each_page(
    machine: &mut Machine,
    at: u64,
    len: usize,
    mut piece: impl FnMut(&vmm::memory::GuestMemory, Gpa, std::ops::Range<usize>) -> Result<(), InsideError>,
) -> Result<(), InsideError> {
    // CR3 is the current thread's; its low bits are none of the address.
    let root = Gpa(machine.cpu()?.cr3 & !0xfff);
    let memory = machine.memory();
    let mut done = 0;
    while done < len {
        let here = Gva(at.wrapping_add(done as u64));
        let part = ((PAGE - here.0 % PAGE) as usize).min(len - done);
        let physical = translate(memory, root, here).ok_or(debug::kernel::ReadError::Unmapped(here))?;
        piece(memory, physical, done..done + part)?;
        done += part;
    }
    Ok(())
}
