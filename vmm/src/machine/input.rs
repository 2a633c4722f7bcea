//! Outside input: the log of deliveries, and giving what is not logged yet.
//!
//! The guest asks at a poll point (`rewind_platform::port::DEVICE`); the answer is in its control slot before it goes
//! on. A delivery's place is the guest's own count of polls, so a log replays exactly.

use std::{collections::VecDeque, sync::atomic::Ordering};

use rewind_platform::{
    control::{CTL_INPUT_LEN, CTL_INPUT_POLL, INPUT_CLOSED},
    layout::{CONTROL_BASE, INPUT_MAX, INPUT_OFFSET},
    state::{ST_INPUT_OPEN, ST_POLLS},
};
use serde::{Deserialize, Serialize};

use super::{Machine, MachineError};
use crate::address::{Gpa, Step};

/// One delivery of outside input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// Steps committed when it was delivered.
    pub step: Step,
    /// Poll points passed ([`ST_POLLS`]): its exact place.
    pub poll: u64,
    /// At most [`INPUT_MAX`] bytes; none means that the channel was closed.
    pub bytes: Vec<u8>,
}

/// Deliveries to come, and whether the guest waits inside its question.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    log: VecDeque<Input>,
    asked: bool,
}

impl Machine {
    /// The deliveries of a log, which happen by themselves where they did; what lies behind the machine is left out. To
    /// be set after [`Machine::restore`], and never at [`super::Stop::Input`].
    pub fn set_input_log(&mut self, log: impl IntoIterator<Item = Input>) {
        let passed = self.state_u64(ST_POLLS).unwrap_or(0);
        self.inputs = Inputs { log: log.into_iter().filter(|i| i.poll > passed).collect(), asked: false };
        self.next_input();
    }

    /// Forgets the log.
    pub(super) fn reset_inputs(&mut self) {
        self.inputs = Inputs::default();
        self.memory.control_u32(CTL_INPUT_LEN).store(0, Ordering::SeqCst);
        self.next_input();
    }

    fn next_input(&self) {
        let next = self.inputs.log.front().map_or(u64::MAX, |input| input.poll);
        self.memory.control_u64(CTL_INPUT_POLL).store(next, Ordering::SeqCst);
    }

    /// The guest asks. `true`: the log had an answer.
    pub(super) fn input_wanted(&mut self) -> Result<bool, MachineError> {
        let now = self.state_u64(ST_POLLS).unwrap_or(0);
        let due = self.inputs.log.pop_front_if(|input| input.poll <= now);
        self.next_input();
        self.inputs.asked = due.is_none();
        if let Some(input) = due {
            self.hand_over(&input.bytes)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn hand_over(&self, bytes: &[u8]) -> Result<(), MachineError> {
        if bytes.len() as u64 > INPUT_MAX {
            return Err(MachineError::InputTooLong { len: bytes.len(), max: INPUT_MAX });
        }
        self.memory.write(Gpa(CONTROL_BASE + INPUT_OFFSET), bytes)?;
        let len = if bytes.is_empty() { INPUT_CLOSED } else { bytes.len() as u32 };
        self.memory.control_u32(CTL_INPUT_LEN).store(len, Ordering::SeqCst);
        Ok(())
    }

    /// Answers [`super::Stop::Input`]: at most [`INPUT_MAX`] bytes, or none to close the channel for good. The delivery,
    /// for the log. Going on without an answer is right too: an idle guest asks again at once.
    pub fn give_input(&mut self, bytes: &[u8]) -> Result<Input, MachineError> {
        if !self.inputs.asked {
            return Err(MachineError::NoInputWanted);
        }
        self.hand_over(bytes)?;
        self.inputs.asked = false;
        Ok(Input { step: self.step(), poll: self.state_u64(ST_POLLS).unwrap_or(0), bytes: bytes.to_vec() })
    }

    /// May outside input still come?
    pub fn input_open(&self) -> bool {
        self.state_u64(ST_INPUT_OPEN).is_some_and(|open| open != 0)
    }
}
