//! The last change of a value found by reading it again at every step: what an engine can do that sees no accesses.
//!
//! A write that stores what was there already is no change and is not found; nor is a read.

use std::ops::ControlFlow;

use debug::{kernel::read_virtual, look};
use run::{scan::Watcher, seek::Timeline};
use vmm::{
    Machine,
    address::{Gva, Instructions, Position, Step},
};

use crate::{
    error::BlameError,
    piece::{self, Piece},
    search::Options,
    target::Target,
};

/// Windows looked through and the step in which the value last changed, if it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The step; the change is after its commit and before the next one's (or before the position asked at).
    pub step: Option<Step>,
    /// Windows run.
    pub windows: u64,
}

/// Looks for the last change of `target`'s bytes before its position, the latest window first. `timeline` may be on any
/// engine.
pub fn last_change(
    timeline: &mut Timeline<'_>,
    target: &Target,
    options: Options<'_>,
) -> Result<Change, BlameError> {
    let (Some(address), Some(root)) = (target.address, target.root) else {
        return Err(BlameError::OnlyMemory);
    };
    let mut change = Change::default();
    let windows = timeline.windows(target.at);
    for (number, window) in windows.iter().enumerate() {
        (options.progress)(number as u64, windows.len() as u64);
        let mut before: Option<Vec<u8>> = None;
        // Through the page tables each time: the frame may change.
        let value = |machine: &Machine| {
            let mut bytes = vec![0; target.len as usize];
            read_virtual(machine.memory(), root, Gva(address), &mut bytes).ok().map(|()| bytes)
        };
        let mut on_step = |machine: &mut Machine, step: Step| {
            let now = value(machine);
            if before != now && step.0 > window.from {
                change.step = Some(Step(step.0 - 1));
            }
            before = now;
            ControlFlow::Continue(())
        };
        let watcher = Watcher { interrupted: options.interrupted, progress: &|_| {} };
        timeline.each_step(window, watcher, &mut on_step)?;
        change.windows += 1;
        // Within the step that the position lies in: its value there is known.
        if number == 0 && target.at.offset > Instructions(0) && before.as_ref() != Some(&target.bytes) {
            change.step = Some(target.at.step);
        }
        if change.step.is_some() {
            break;
        }
    }
    Ok(change)
}

/// The bytes of `target` where a step in which they changed is over: where to look for the instruction.
pub fn behind(
    timeline: &mut Timeline<'_>,
    target: &Target,
    step: Step,
) -> Result<(Position, Vec<Piece>), BlameError> {
    if step == target.at.step {
        return Ok((target.at, target.pieces.clone()));
    }
    let at = Position { step: Step(step.0 + 1), offset: Instructions(0) };
    let (Some(address), Some(root)) = (target.address, target.root) else {
        return Err(BlameError::OnlyMemory);
    };
    timeline.seek(at)?;
    let unmapped =
        |address| BlameError::Unmapped { what: target.text.clone(), address, pid: target.who.pid, at };
    let kernel = look::kernel(timeline.looking()).ok_or_else(|| unmapped(address))?;
    let pieces = piece::split(&kernel, root, address, target.len, at).map_err(unmapped)?;
    Ok((at, pieces))
}
