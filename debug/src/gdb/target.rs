//! What `gdbstub` asks of a target.

use gdbstub::{
    common::{Pid, Signal, Tid},
    target::{
        Target, TargetError, TargetResult,
        ext::{
            auxv::{Auxv, AuxvOps},
            base::{
                BaseOps,
                multithread::{
                    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps,
                    MultiThreadResume, MultiThreadResumeOps, MultiThreadSchedulerLocking,
                    MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
                },
                reverse_exec::{ReverseCont, ReverseContOps, ReverseStep, ReverseStepOps},
                single_register_access::{SingleRegisterAccess, SingleRegisterAccessOps},
            },
            breakpoints::{
                Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps,
                SwBreakpoint, SwBreakpointOps, WatchKind,
            },
            exec_file::{ExecFile, ExecFileOps},
            extended_mode::{
                Args, AttachKind, CurrentActivePid, CurrentActivePidOps, ExtendedMode, ExtendedModeOps,
                ShouldTerminate,
            },
            host_io::HostIoOps,
            monitor_cmd::{ConsoleOutput, MonitorCmd, MonitorCmdOps},
            target_description_xml_override::{
                TargetDescriptionXmlOverride, TargetDescriptionXmlOverrideOps,
            },
            thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps},
        },
    },
};
use vmm::address::Gva;

use super::{
    files::part,
    registers::{File, Register, X86_64, place},
    session::{Plan, Session, tid},
};
use crate::travel::{Kind, Watchpoint};

/// Nothing of a session is fatal to the protocol.
#[derive(Debug, thiserror::Error)]
pub enum Never {}

impl Target for Session<'_> {
    type Arch = X86_64;
    type Error = Never;

    fn base_ops(&mut self) -> BaseOps<'_, X86_64, Never> {
        BaseOps::MultiThread(self)
    }
    fn guard_rail_implicit_sw_breakpoints(&self) -> bool {
        true
    }
    fn use_fork_stop_reason(&self) -> bool {
        false
    }
    fn use_vfork_stop_reason(&self) -> bool {
        false
    }
    fn use_vforkdone_stop_reason(&self) -> bool {
        false
    }
    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
    fn support_monitor_cmd(&mut self) -> Option<MonitorCmdOps<'_, Self>> {
        Some(self)
    }
    fn support_extended_mode(&mut self) -> Option<ExtendedModeOps<'_, Self>> {
        Some(self)
    }
    fn support_target_description_xml_override(
        &mut self,
    ) -> Option<TargetDescriptionXmlOverrideOps<'_, Self>> {
        Some(self)
    }
    fn support_host_io(&mut self) -> Option<HostIoOps<'_, Self>> {
        Some(self)
    }
    fn support_exec_file(&mut self) -> Option<ExecFileOps<'_, Self>> {
        Some(self)
    }
    fn support_auxv(&mut self) -> Option<AuxvOps<'_, Self>> {
        Some(self)
    }
}

fn number(tid: Tid) -> u32 {
    u32::try_from(tid.get()).unwrap_or(0)
}

impl MultiThreadBase for Session<'_> {
    fn read_registers(&mut self, regs: &mut File, tid: Tid) -> TargetResult<(), Self> {
        *regs = self.registers(number(tid)).ok_or(TargetError::NonFatal)?;
        Ok(())
    }

    fn write_registers(&mut self, regs: &File, tid: Tid) -> TargetResult<(), Self> {
        Session::write_registers(self, number(tid), regs).then_some(()).ok_or(TargetError::NonFatal)
    }

    fn support_single_register_access(&mut self) -> Option<SingleRegisterAccessOps<'_, Tid, Self>> {
        Some(self)
    }

    fn read_addrs(&mut self, start: u64, data: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        let done = self.read_memory(start, data);
        if done == 0 { Err(TargetError::Errno(14)) } else { Ok(done) }
    }

    fn write_addrs(&mut self, start: u64, data: &[u8], _: Tid) -> TargetResult<(), Self> {
        self.write_memory(start, data).then_some(()).ok_or(TargetError::Errno(14))
    }

    fn list_active_threads(&mut self, thread_is_active: &mut dyn FnMut(Tid)) -> Result<(), Never> {
        self.threads.iter().for_each(|thread| thread_is_active(tid(thread.tid)));
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl SingleRegisterAccess<Tid> for Session<'_> {
    fn read_register(&mut self, tid: Tid, register: Register, buf: &mut [u8]) -> TargetResult<usize, Self> {
        let file = self.registers(number(tid)).ok_or(TargetError::NonFatal)?;
        let value = file.get(register.0).ok_or(TargetError::NonFatal)?;
        let length = value.len().min(buf.len());
        buf[..length].copy_from_slice(&value[..length]);
        Ok(length)
    }

    fn write_register(&mut self, tid: Tid, register: Register, value: &[u8]) -> TargetResult<(), Self> {
        let mut file = self.registers(number(tid)).ok_or(TargetError::NonFatal)?;
        let (at, size) =
            place(register.0).filter(|(_, size)| *size == value.len()).ok_or(TargetError::NonFatal)?;
        file.bytes[at..at + size].copy_from_slice(value);
        Session::write_registers(self, number(tid), &file).then_some(()).ok_or(TargetError::NonFatal)
    }
}

impl ThreadExtraInfo for Session<'_> {
    fn thread_extra_info(&self, tid: Tid, buf: &mut [u8]) -> Result<usize, Never> {
        // What it does needs the machine, which this cannot have: the front answers; this is for its absence.
        let found = self.threads.iter().find(|thread| thread.tid == number(tid));
        Ok(found.map_or(0, |thread| part(thread.comm.as_bytes(), 0, buf.len(), buf)))
    }
}

impl MultiThreadResume for Session<'_> {
    fn resume(&mut self) -> Result<(), Never> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Never> {
        self.plan = Plan::Continue;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Never> {
        Ok(())
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }

    fn support_reverse_step(&mut self) -> Option<ReverseStepOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_reverse_cont(&mut self) -> Option<ReverseContOps<'_, Tid, Self>> {
        Some(self)
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }
}

/// A recording has one order of threads: holding others back is not possible, and none is let past what it did.
impl MultiThreadSchedulerLocking for Session<'_> {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Never> {
        Ok(())
    }
}

impl MultiThreadSingleStep for Session<'_> {
    fn set_resume_action_step(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), Never> {
        self.plan = Plan::Step(number(tid));
        Ok(())
    }
}

impl MultiThreadRangeStepping for Session<'_> {
    fn set_resume_action_range_step(&mut self, tid: Tid, start: u64, end: u64) -> Result<(), Never> {
        self.plan = Plan::Range(number(tid), start, end);
        Ok(())
    }
}

impl ReverseStep<Tid> for Session<'_> {
    /// gdb names "any" thread here whichever it shows: the one it looks at is meant.
    fn reverse_step(&mut self, _: Tid) -> Result<(), Never> {
        self.plan = Plan::BackStep;
        Ok(())
    }
}

impl ReverseCont<Tid> for Session<'_> {
    fn reverse_cont(&mut self) -> Result<(), Never> {
        self.plan = Plan::BackContinue;
        Ok(())
    }
}

impl Breakpoints for Session<'_> {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }
    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }
    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl SwBreakpoint for Session<'_> {
    fn add_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        self.note_linker(at);
        self.travel.add_breakpoint(at);
        Ok(true)
    }
    fn remove_sw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.travel.remove_breakpoint(at))
    }
}

impl HwBreakpoint for Session<'_> {
    fn add_hw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        *self.hardware.entry(at).or_insert(0) += 1;
        self.note_linker(at);
        self.travel.add_breakpoint(at);
        Ok(true)
    }
    fn remove_hw_breakpoint(&mut self, at: u64, _: usize) -> TargetResult<bool, Self> {
        if let Some(count) = self.hardware.get_mut(&at) {
            *count -= 1;
            if *count == 0 {
                self.hardware.remove(&at);
            }
        }
        Ok(self.travel.remove_breakpoint(at))
    }
}

fn watchpoint(at: u64, len: u64, kind: WatchKind) -> Watchpoint {
    let kind = match kind {
        WatchKind::Write => Kind::Write,
        WatchKind::Read => Kind::Read,
        WatchKind::ReadWrite => Kind::Access,
    };
    Watchpoint { at: Gva(at), len, kind }
}

impl HwWatchpoint for Session<'_> {
    fn add_hw_watchpoint(&mut self, at: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        if len == 0 || at.checked_add(len).is_none() {
            return Ok(false);
        }
        self.travel.add_watchpoint(watchpoint(at, len, kind));
        Ok(true)
    }
    fn remove_hw_watchpoint(&mut self, at: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        Ok(self.travel.remove_watchpoint(&watchpoint(at, len, kind)))
    }
}

impl MonitorCmd for Session<'_> {
    fn handle_monitor_cmd(&mut self, command: &[u8], mut out: ConsoleOutput<'_>) -> Result<(), Never> {
        let text = self.monitor(&String::from_utf8_lossy(command));
        out.write_raw(text.as_bytes());
        Ok(())
    }
}

impl ExtendedMode for Session<'_> {
    fn run(&mut self, _: Option<&[u8]>, _: Args<'_, '_>) -> TargetResult<Pid, Self> {
        Err(TargetError::Errno(1))
    }
    fn attach(&mut self, _: Pid) -> TargetResult<(), Self> {
        Err(TargetError::Errno(1))
    }
    fn query_if_attached(&mut self, _: Pid) -> TargetResult<AttachKind, Self> {
        Ok(AttachKind::Attach)
    }
    fn kill(&mut self, _: Option<Pid>) -> TargetResult<ShouldTerminate, Self> {
        Ok(ShouldTerminate::Yes)
    }
    fn restart(&mut self) -> Result<(), Never> {
        Ok(())
    }
    fn support_current_active_pid(&mut self) -> Option<CurrentActivePidOps<'_, Self>> {
        Some(self)
    }
}

impl CurrentActivePid for Session<'_> {
    fn current_active_pid(&mut self) -> Result<Pid, Never> {
        Ok(tid(self.travel.pid()))
    }
}

impl TargetDescriptionXmlOverride for Session<'_> {
    fn target_description_xml(
        &self,
        annex: &[u8],
        offset: u64,
        length: usize,
        buf: &mut [u8],
    ) -> TargetResult<usize, Self> {
        if annex != b"target.xml" {
            return Err(TargetError::Errno(2));
        }
        Ok(part(self.description.as_bytes(), offset, length, buf))
    }
}

impl ExecFile for Session<'_> {
    fn get_exec_file(
        &self,
        _: Option<Pid>,
        offset: u64,
        length: usize,
        buf: &mut [u8],
    ) -> TargetResult<usize, Self> {
        Ok(part(&self.program.executable, offset, length, buf))
    }
}

impl Auxv for Session<'_> {
    fn get_auxv(&self, offset: u64, length: usize, buf: &mut [u8]) -> TargetResult<usize, Self> {
        Ok(part(&self.program.auxv, offset, length, buf))
    }
}
