//! Capture and restore of everything that is not guest memory.

use serde::{Deserialize, Serialize};

use super::{Clock, Machine, MachineError, Place};
use crate::memory::PageSet;
use crate::{
    address::{Branches, Gpa},
    engine::CpuState,
};

/// The machine without its memory, as plain data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineState {
    /// The CPU.
    pub cpu: CpuState,
    /// Guest-physical address of the state page, once published.
    pub state_page: Option<Gpa>,
    place: Place,
    waiting_for_job: bool,
    ended: bool,
    slice_left: Branches,
    console: Vec<u8>,
}

impl Machine {
    /// Everything but memory. Port instructions are complete: restoring this and the memory goes on behind them.
    pub fn capture(&mut self) -> Result<MachineState, MachineError> {
        Ok(MachineState {
            cpu: self.engine.cpu()?,
            state_page: self.state_page,
            place: self.place,
            waiting_for_job: self.waiting_for_job,
            ended: self.ended,
            slice_left: self.slice_left,
            console: self.console.clone(),
        })
    }

    /// Goes on from a captured state. The caller has put the memory back (and marked it, by writing through
    /// guest memory); images, job, decisions and trace level are set by the caller as for a new machine.
    pub fn restore(&mut self, state: &MachineState) -> Result<(), MachineError> {
        self.put_back(state, None)
    }

    /// As [`Machine::restore`], for a machine whose memory differed from the state's only in `pages` before the
    /// caller put them back: what the engine derived from the others (translations, decoded code) stays.
    pub fn reset(&mut self, state: &MachineState, pages: &PageSet) -> Result<(), MachineError> {
        self.put_back(state, Some(pages))
    }

    fn put_back(&mut self, state: &MachineState, pages: Option<&PageSet>) -> Result<(), MachineError> {
        if state.state_page.is_some_and(|page| self.memory.page_of(page).is_none()) {
            return Err(MachineError::State("its state page does not lie in memory".into()));
        }
        if matches!(self.clock, Clock::Work { slice } if state.slice_left.0 > slice) {
            return Err(MachineError::State("it belongs to a clock with longer slices".into()));
        }
        self.engine.set_cpu(&state.cpu)?;
        self.engine.memory_changed(pages);
        // It has been told of all that was put back.
        self.memory.take_untold();
        self.state_page = state.state_page;
        self.place = state.place;
        self.waiting_for_job = state.waiting_for_job;
        self.ended = state.ended;
        self.slice_left = match self.clock {
            Clock::Work { slice } if state.slice_left.0 == 0 => Branches(slice),
            _ => state.slice_left,
        };
        self.console.clone_from(&state.console);
        self.reset_control()
    }
}
