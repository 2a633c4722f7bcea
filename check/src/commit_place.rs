//! Commits by the system call and the function they belong to, so that a saved schedule survives a program that makes more
//! or fewer calls than it did.

use std::{collections::BTreeMap, ops::ControlFlow};

use debug::look::{self, Files, View};
use rewind_platform::state::{ST_RETURNS, ST_SYSCALL};
use serde::{Deserialize, Serialize};
use vmm::{
    address::Step,
    machine::{Stop, Until},
};

use crate::{
    base::{BaseError, Worker},
    decision::{Decision, Place},
    describe::line_of,
};

/// Commits of the thread looked at.
const MOST: usize = 20_000;

/// Which of a thread's commits a place is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitPlace {
    /// Name of the system call it returns from; empty after anything else, such as a page fault.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub call: String,
    /// The program's own function there; empty without symbols.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// How often the thread had committed there since the base, this time included.
    pub visit: u32,
}

/// "write", "print".
fn key(view: &View) -> (String, String) {
    let call = view.syscall.map_or_else(String::new, |call| debug::wait::syscall_name(call.number));
    (call, line_of(view).1)
}

impl Worker {
    /// Goes through the commits of `place`'s thread under `others`, telling (place, call and function) of each.
    fn commits(
        &mut self,
        others: &[Decision],
        thread: u64,
        files: &mut Files,
        mut each: impl FnMut(Place, (String, String)) -> ControlFlow<()>,
    ) -> Result<(), BaseError> {
        self.begin(others)?;
        let limit = self.base().limit;
        let mut observer = self.base().observer(false);
        let mut applied = vec![None; others.len()];
        let mut here = false;
        let mut seen = 0;
        while self.machine().step() < limit && seen < MOST {
            let machine = self.machine();
            let next = Step(machine.step().0 + 1);
            if !here
                && !matches!(machine.run(&Until::step(next), &mut observer)?, Stop::Step | Stop::Decision)
            {
                break;
            }
            let get = |offset| machine.state_u64(offset).unwrap_or(0);
            let name = machine.thread();
            let place =
                Place { thread: name, syscall: get(ST_SYSCALL), returns: get(ST_RETURNS) as u32, offset: 0 };
            if name == thread {
                seen += 1;
                let view =
                    look::committed(machine, files).map_err(|error| BaseError::Stop(error.to_string()))?;
                if let Some(view) = view
                    && each(place, key(&view)).is_break()
                {
                    break;
                }
            }
            let step = self.machine().step();
            if self.act_inside(others, &mut applied, &mut observer)?.is_some() {
                break;
            }
            // The step was over before a place inside it: the next commit has come already.
            here = self.machine().step() != step;
        }
        Ok(())
    }

    /// Which commit `place` (its offset aside) is, reached under `others`.
    pub fn commit_at(
        &mut self,
        others: &[Decision],
        place: &Place,
        files: &mut Files,
    ) -> Result<Option<CommitPlace>, BaseError> {
        let place = Place { offset: 0, ..*place };
        let mut visits: BTreeMap<(String, String), u32> = BTreeMap::new();
        let mut found = None;
        self.commits(others, place.thread, files, |at, key| {
            let visit = visits.entry(key.clone()).or_default();
            *visit += 1;
            if at != place {
                return ControlFlow::Continue(());
            }
            found = Some(CommitPlace { call: key.0, function: key.1, visit: *visit });
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    /// The place in this build at which the thread of `place` comes to `commit`: the saved one if it is the same, else the
    /// same visit of that call and function. `None` if there is none.
    pub fn find_commit(
        &mut self,
        others: &[Decision],
        place: &Place,
        commit: &CommitPlace,
        files: &mut Files,
    ) -> Result<Option<Place>, BaseError> {
        let mut visit = 0;
        let mut found = None;
        self.commits(others, place.thread, files, |at, (call, function)| {
            visit += u32::from(call == commit.call && function == commit.function);
            if visit < commit.visit {
                return ControlFlow::Continue(());
            }
            found = Some(Place { offset: place.offset, ..at });
            ControlFlow::Break(())
        })?;
        Ok(found)
    }
}
