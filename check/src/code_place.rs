//! Places inside a step by the code that runs there, so that a saved schedule survives a recompile.

use std::ops::ControlFlow;

use debug::look::{self, Files};
use serde::{Deserialize, Serialize};
use vmm::{
    address::{Instructions, Position},
    machine::{Stop, Until},
};

use crate::{
    base::{BaseError, Worker},
    decision::{Decision, Place},
};

/// Instructions of a step looked through.
const MOST: u64 = 200_000;

/// The code at a place inside a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodePlace {
    /// Function.
    pub function: String,
    /// "bank.c:38"; empty without debug information.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub line: String,
    /// How often the thread had come to this line within the step, this time included.
    pub visit: u32,
    /// Instructions of the line that had run.
    pub after: u64,
}

/// Counts visits to lines while a step is gone through.
#[derive(Debug, Default)]
struct Visits {
    here: (String, String),
    since: u64,
    counts: std::collections::BTreeMap<(String, String), u32>,
}

impl Visits {
    fn note(&mut self, offset: u64, line: (String, String)) {
        if self.here != line || offset == 0 {
            *self.counts.entry(line.clone()).or_default() += 1;
            (self.here, self.since) = (line, offset);
        }
    }

    fn visit(&self) -> u32 {
        self.counts.get(&self.here).copied().unwrap_or(0)
    }
}

impl Worker {
    /// Goes through the step of `place` under `others`, telling (instructions run, (line, function)) of each
    /// instruction.
    fn lines(
        &mut self,
        others: &[Decision],
        place: &Place,
        files: &mut Files,
        mut each: impl FnMut(u64, (String, String)) -> ControlFlow<()>,
    ) -> Result<(), BaseError> {
        if !self.stop_at(others, place)? {
            return Ok(());
        }
        let machine = self.machine();
        let failed = |error: debug::kernel::ReadError| BaseError::Stop(error.to_string());
        let Some(view) = look::committed(machine, files).map_err(failed)? else { return Ok(()) };
        let Some(kernel) = look::kernel(machine) else { return Ok(()) };
        let space = look::address_space(&kernel, &view.thread, files).map_err(failed)?;
        let step = machine.step();
        for offset in 0..MOST {
            let source = space.source(machine.cpu()?.rip);
            let line = source.first().map_or((String::new(), String::new()), |frame| {
                let file = frame.file.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
                let line = frame.line.map_or(String::new(), |line| format!("{file}:{line}"));
                (line, frame.function.clone().unwrap_or_default())
            });
            if each(offset, line).is_break() {
                break;
            }
            let position = Position { step, offset: Instructions(offset + 1) };
            if machine.run(&Until::position(position), &mut ())? != Stop::Position {
                break;
            }
        }
        Ok(())
    }

    /// The code at a place inside a step, reached under `others`.
    pub fn code_at(
        &mut self,
        others: &[Decision],
        place: &Place,
        files: &mut Files,
    ) -> Result<Option<CodePlace>, BaseError> {
        let mut visits = Visits::default();
        let mut found = None;
        self.lines(others, place, files, |offset, line| {
            visits.note(offset, line);
            if offset < place.offset {
                return ControlFlow::Continue(());
            }
            let (line, function) = visits.here.clone();
            found = Some(CodePlace { function, line, visit: visits.visit(), after: offset - visits.since });
            ControlFlow::Break(())
        })?;
        Ok(found.filter(|found| !found.function.is_empty()))
    }

    /// The place in this build's step at which `code` runs: the saved offset if the same code is there, else where
    /// the line is come to for the same time. `None` if it is not.
    pub fn find_code(
        &mut self,
        others: &[Decision],
        place: &Place,
        code: &CodePlace,
        files: &mut Files,
    ) -> Result<Option<Place>, BaseError> {
        if self.code_at(others, place, files)?.as_ref() == Some(code) {
            return Ok(Some(*place));
        }
        let mut visits = Visits::default();
        let (mut found, mut same_function) = (None, None);
        self.lines(others, place, files, |offset, line| {
            if offset == place.offset && line.1 == code.function {
                same_function = Some(offset);
            }
            let own = line.0 == code.line && line.1 == code.function;
            visits.note(offset, line);
            if own && visits.visit() == code.visit {
                // The line may have fewer instructions than it had.
                found = Some(offset);
                if offset - visits.since >= code.after {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        // Lines move when others are added above them: then the function and the count of instructions must do.
        Ok(found.or(same_function).map(|offset| Place { offset, ..*place }))
    }
}
