//! Blocks of the heap that were freed, or given out again, after the last write: seen at the calls of the allocator.

use std::ops::ControlFlow;

use debug::{kernel::read_virtual, look};
use run::{
    scan::{Hit, Look, Watcher},
    seek::Timeline,
};
use vmm::{
    Machine,
    address::{Gpa, Gva, Position},
};

use crate::{access::Who, current, error::BlameError, search::Options, target::Target};

/// What the allocator did with the block that holds the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where, before the call's first instruction.
    pub position: Position,
    /// By whom.
    pub who: Who,
    /// "free" or "realloc".
    pub call: &'static str,
    /// The block given to it.
    pub block: u64,
}

/// Calls watched: name of the symbol.
const CALLS: [&str; 2] = ["free", "realloc"];
/// RDI in [`vmm::engine::CpuState::gpr`]: the first argument.
const RDI: usize = 7;
/// Calls looked at before the search gives up: a busy program makes millions.
const MOST_CALLS: u64 = 300_000;
/// Windows looked through.
const MOST_WINDOWS: usize = 16;

/// The last call before the position asked at that freed the block the bytes are in, looked for back to the window
/// of the last write (`last`).
///
/// The size of a block is what glibc keeps before it (malloc/malloc.c, `mchunk_size`); with another allocator a
/// block is only recognised by its first byte.
pub fn freed(
    timeline: &mut Timeline<'_>,
    target: &Target,
    last: Option<Position>,
    options: Options<'_>,
) -> Result<Option<Event>, BlameError> {
    let (Some(address), Some(root), Some(space)) = (target.address, target.root, &target.sources) else {
        return Ok(None);
    };
    if !target.on_heap {
        return Ok(None);
    }
    let mut calls: Vec<(u64, &'static str)> = Vec::new();
    for loaded in space.modules() {
        for symbol in loaded.module.symbols.iter().filter(|symbol| !symbol.data) {
            let name = symbol.name.split('@').next().unwrap_or_default();
            if let Some(call) = CALLS.iter().find(|call| **call == name) {
                calls.push((symbol.address.wrapping_add(loaded.bias), call));
            }
        }
    }
    calls.sort_unstable();
    calls.dedup();
    if calls.is_empty() {
        return Ok(None);
    }
    let look =
        Look { watches: Vec::new(), breakpoints: calls.iter().map(|(address, _)| Gva(*address)).collect() };
    let mut seen = 0;
    for window in timeline.windows(target.at).into_iter().take(MOST_WINDOWS) {
        let mut found: Option<Event> = None;
        let mut on_hit = |machine: &mut Machine, hit: &Hit| {
            seen += 1;
            if seen > MOST_CALLS {
                return ControlFlow::Break(());
            }
            if hit.root == root {
                let call = calls.iter().find(|(at, _)| *at == hit.rip.0).map(|(_, call)| *call);
                if let Some(event) = call.and_then(|call| covers(machine, hit, call, root, address)) {
                    found = Some(event);
                }
            }
            ControlFlow::Continue(())
        };
        let watcher = Watcher { interrupted: options.interrupted, progress: &|_| {} };
        timeline.scan(&window, &look, watcher, &mut |_| {}, &mut on_hit)?;
        let past = last.is_some_and(|last| window.from <= last.step.0);
        if found.is_some() || past || seen > MOST_CALLS {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Does the block this call is given hold the address?
fn covers(machine: &mut Machine, hit: &Hit, call: &'static str, root: Gpa, address: u64) -> Option<Event> {
    let block = machine.cpu().ok()?.gpr[RDI];
    let kernel = look::kernel(machine)?;
    let mut word = [0; 8];
    let end = match read_virtual(kernel.memory(), root, Gva(block.checked_sub(8)?), &mut word) {
        // Flags in the low bits; the block ends with the next one's first word.
        Ok(()) => block.checked_add((u64::from_le_bytes(word) & !7).saturating_sub(8))?,
        Err(_) => block,
    };
    if !(block..end.max(block.checked_add(1)?)).contains(&address) {
        return None;
    }
    let task = current::task(&kernel).ok()?;
    let who = current::who(&kernel, task).ok()?;
    Some(Event { position: hit.position, who, call, block })
}
