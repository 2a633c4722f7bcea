//! A place in memory to come back to: cheaper than a keyframe, and anywhere, inside a step too.

use std::collections::BTreeMap;

use rewind_platform::control::{DECISION_STOP, DecisionEntry};
use vmm::{MachineState, address::Position};

use super::Stage;
use crate::{
    error::StageError,
    keyframe::KeyframeError,
    store::{PAGE_SIZE, PageHash},
};

/// The whole machine at a position, over the keyframe it was last restored from.
pub struct Checkpoint {
    position: Position,
    state: MachineState,
    /// Decisions taken by then.
    taken: Vec<DecisionEntry>,
    /// As [`Stage::placed`] was.
    placed: BTreeMap<u64, PageHash>,
    /// Pages that may differ from that keyframe.
    pages: BTreeMap<u64, Box<[u8; PAGE_SIZE]>>,
}

impl std::fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Checkpoint({}, {} pages)", self.position, self.pages.len())
    }
}

impl Checkpoint {
    /// Where it is.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Bytes of memory it takes, about.
    pub fn bytes(&self) -> usize {
        self.pages.len() * (PAGE_SIZE + 64) + self.placed.len() * 64
    }
}

impl Stage {
    /// Remembers the machine where it stands (not inside a port access: after a stop).
    pub fn checkpoint(&mut self) -> Result<Checkpoint, StageError> {
        self.collect_dirty()?;
        let mut pages = BTreeMap::new();
        let memory = self.machine.memory().clone();
        for page in self.dirty.iter() {
            let mut content = Box::new([0; PAGE_SIZE]);
            memory.read(memory.address_of(page), &mut content[..])?;
            pages.insert(page, content);
        }
        let state = self.machine.capture()?;
        // Stops are no decisions: the one behind a decision inside a step is made again.
        let done = self.machine.decisions_done()?.into_iter().filter(|entry| entry.kind != DECISION_STOP);
        let taken = self.taken.iter().copied().chain(done).collect();
        Ok(Checkpoint { position: self.position(), state, taken, placed: self.placed.clone(), pages })
    }

    /// Back to a checkpoint of this stage, from wherever the machine is.
    pub fn return_to(&mut self, checkpoint: &Checkpoint) -> Result<(), StageError> {
        self.collect_dirty()?;
        let mut wrong = self.dirty.clone();
        let (now, then) = (&self.placed, &checkpoint.placed);
        let differing = then.iter().filter(|(page, hash)| now.get(page) != Some(hash)).map(|(page, _)| page);
        for page in differing.chain(now.keys().filter(|page| !then.contains_key(page))) {
            wrong.insert(*page);
        }
        for page in checkpoint.pages.keys() {
            wrong.insert(*page);
        }
        let memory = self.machine.memory().clone();
        let mut content = [0; PAGE_SIZE];
        for page in wrong.iter() {
            match (checkpoint.pages.get(&page), then.get(&page)) {
                (Some(own), _) => memory.write(memory.address_of(page), &own[..])?,
                (None, Some(hash)) => {
                    let (run, step) = (String::from("of a checkpoint"), checkpoint.position.step.0);
                    self.store.get(*hash, &mut content).map_err(|source| KeyframeError::Page {
                        run,
                        step,
                        page,
                        source,
                    })?;
                    memory.write(memory.address_of(page), &content)?;
                }
                (None, None) => {
                    self.boot_page(page, &mut content)?;
                    memory.write(memory.address_of(page), &content)?;
                }
            }
        }
        self.machine.reset(&checkpoint.state, &wrong)?;
        self.placed.clone_from(then);
        self.forget_dirty()?;
        for page in checkpoint.pages.keys() {
            self.dirty.insert(*page);
        }
        self.arm(checkpoint.position.step.0, checkpoint.taken.clone())?;
        self.decide_inside();
        // What acts before this place has acted.
        let here = checkpoint.position;
        self.due.retain(|(at, _)| *at >= here);
        Ok(())
    }
}
