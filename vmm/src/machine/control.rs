//! What the monitor writes to the control slot and the state page.

use std::sync::atomic::Ordering;

use bytemuck::Zeroable;
use rewind_platform::{
    PLATFORM_VERSION,
    control::{
        CTL_DECISIONS, CTL_INJECT_ARG, CTL_INJECT_KIND, CTL_JOB_LEN, CTL_NO_RECORDS, CTL_STOP_NOW,
        CTL_STOP_STEP, CTL_TRACE, CTL_VERSION, DecisionEntry, SLOT_ARMED, SLOT_DONE, decision_slot,
    },
    job::Job,
    layout::{CONTROL_BASE, DECISIONS_CAPACITY, DECISIONS_OFFSET, JOB_CAPACITY, JOB_OFFSET},
    state::{ST_HORIZON, ST_IDLING, ST_INPUT_OPEN, ST_PAGE_COST, ST_POLL_COST, ST_QUANTUM},
};

use super::{GuestFault, Machine, MachineError};
use crate::address::Gpa;

const ENTRY: u64 = size_of::<DecisionEntry>() as u64;

/// Encodes a job, if it fits its area.
pub(super) fn encode_job(job: &Job) -> Result<Vec<u8>, MachineError> {
    let bytes = postcard::to_allocvec(job).map_err(MachineError::JobEncoding)?;
    if bytes.len() as u64 > JOB_CAPACITY {
        return Err(MachineError::JobTooLong { len: bytes.len(), max: JOB_CAPACITY });
    }
    Ok(bytes)
}

fn entry_address(slot: u64) -> Gpa {
    Gpa(CONTROL_BASE + DECISIONS_OFFSET + slot * ENTRY)
}

impl Machine {
    /// The control slot as a guest that starts or is restored expects it: nothing to stop for, no decisions, an
    /// empty ring.
    pub(super) fn reset_control(&mut self) -> Result<(), MachineError> {
        self.memory.control_u32(CTL_VERSION).store(PLATFORM_VERSION, Ordering::SeqCst);
        self.memory.control_u32(CTL_STOP_NOW).store(0, Ordering::SeqCst);
        self.memory.control_u32(CTL_INJECT_KIND).store(0, Ordering::SeqCst);
        self.memory.control_u64(CTL_INJECT_ARG).store(0, Ordering::SeqCst);
        self.memory.control_u64(CTL_JOB_LEN).store(0, Ordering::SeqCst);
        self.set_stop_step(u64::MAX);
        self.set_trace_level(self.trace_level);
        self.memory.control_u32(CTL_NO_RECORDS).store(0, Ordering::SeqCst);
        self.reset_inputs();
        self.ring.reset(&self.memory);
        self.set_decisions(&[])
    }

    pub(super) fn set_stop_step(&self, step: u64) {
        self.memory.control_u64(CTL_STOP_STEP).store(step, Ordering::SeqCst);
    }

    /// Which richer records the guest writes (`rewind_platform::control::TRACE_*`).
    pub fn set_trace_level(&mut self, bits: u32) {
        self.trace_level = bits;
        self.memory.control_u32(CTL_TRACE).store(bits, Ordering::SeqCst);
    }

    /// Whether the guest writes records at all. It does until told otherwise, also after a restore; without them a run has
    /// the same steps and memory, but nothing to see.
    pub fn set_records(&mut self, wanted: bool) {
        self.memory.control_u32(CTL_NO_RECORDS).store(u32::from(!wanted), Ordering::SeqCst);
    }

    /// Replaces the decision table. All entries are armed, whatever their `state` says; entries for one place
    /// apply in the order given.
    pub fn set_decisions(&mut self, decisions: &[DecisionEntry]) -> Result<(), MachineError> {
        // One slot stays empty, so that every probe ends.
        let max = DECISIONS_CAPACITY - 1;
        if decisions.len() as u64 > max {
            return Err(MachineError::TooManyDecisions { count: decisions.len(), max });
        }
        let mut table = vec![DecisionEntry::zeroed(); DECISIONS_CAPACITY as usize];
        for decision in decisions {
            let mut slot = decision_slot(decision.thread, decision.syscall, decision.returns) as usize;
            while table[slot].state == SLOT_ARMED {
                slot = (slot + 1) % table.len();
            }
            table[slot] = DecisionEntry { state: SLOT_ARMED, ..*decision };
        }
        self.memory.write(entry_address(0), bytemuck::cast_slice(&table))?;
        self.memory.control_u32(CTL_DECISIONS).store(decisions.len() as u32, Ordering::SeqCst);
        Ok(())
    }

    /// The decisions the guest has applied, in table order.
    pub fn decisions_done(&self) -> Result<Vec<DecisionEntry>, MachineError> {
        let mut table = vec![DecisionEntry::zeroed(); DECISIONS_CAPACITY as usize];
        self.memory.read(entry_address(0), bytemuck::cast_slice_mut(&mut table))?;
        table.retain(|entry| entry.state == SLOT_DONE);
        Ok(table)
    }

    /// Hands the job and the run's parameters to the waiting init.
    pub(super) fn give_job(&mut self) -> Result<(), MachineError> {
        let (job, parameters) = self.job.as_ref().ok_or(MachineError::NoJob)?;
        let page = self.state_page.ok_or(MachineError::NoJob)?;
        self.memory.write(Gpa(CONTROL_BASE + JOB_OFFSET), job)?;
        self.memory.control_u64(CTL_JOB_LEN).store(job.len() as u64, Ordering::SeqCst);
        for (offset, value) in [
            (ST_QUANTUM, parameters.quantum),
            (ST_HORIZON, parameters.horizon),
            (ST_IDLING, parameters.idling),
            (ST_POLL_COST, parameters.poll_cost),
            (ST_PAGE_COST, parameters.page_cost),
            (ST_INPUT_OPEN, parameters.input_open.into()),
        ] {
            self.memory.write_u64(Gpa(page.0 + offset), value)?;
        }
        self.waiting_for_job = false;
        Ok(())
    }

    /// Takes the published state page, if it is one of this platform.
    pub(super) fn publish_state(&mut self, page_number: u32) -> Result<(), GuestFault> {
        use rewind_platform::state::{ST_MAGIC, ST_VERSION, STATE_MAGIC_VALUE};
        let port = rewind_platform::port::PLATFORM;
        let bad = |what: &str| GuestFault::Port { port, what: what.to_owned() };
        let page = Gpa(u64::from(page_number) << 12);
        if self.memory.page_of(page).is_none() {
            return Err(bad("the state page does not lie in memory"));
        }
        if self.state_page.is_some_and(|known| known != page) {
            return Err(bad("a second state page"));
        }
        let magic = self.memory.read_u64(Gpa(page.0 + ST_MAGIC)).map_err(|e| bad(&e.to_string()))?;
        let kernel = self.memory.read_u32(Gpa(page.0 + ST_VERSION)).map_err(|e| bad(&e.to_string()))?;
        if magic != STATE_MAGIC_VALUE {
            return Err(bad("the state page has no magic number"));
        }
        if kernel != PLATFORM_VERSION {
            return Err(GuestFault::PlatformVersion { kernel, monitor: PLATFORM_VERSION });
        }
        self.state_page = Some(page);
        Ok(())
    }
}
