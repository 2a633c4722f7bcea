//! Instructions of a step, counted by running it.

use run::{error::StageError, seek::Timeline};
use vmm::{
    Stop, Until,
    address::{Instructions, Position, Step},
};

/// More user instructions than a step is ever asked for.
const ALL: Instructions = Instructions(u64::MAX >> 1);

/// How many user instructions `step` has: the offset at which its thread is in the kernel, or faults. Leaves the
/// machine somewhere else.
pub fn user_instructions(timeline: &mut Timeline<'_>, step: Step) -> Result<Instructions, StageError> {
    timeline.seek(Position { step, offset: Instructions(0) })?;
    let machine = timeline.stage().machine();
    if machine.ended() || !machine.at_commit() {
        return Ok(Instructions(0));
    }
    let before = machine.engine().counters().user_instructions;
    // Stops at the next commit, before anything of the step after it.
    let stop = machine.run(&Until::position(Position { step, offset: ALL }), &mut ())?;
    let after = machine.engine().counters().user_instructions;
    debug_assert!(matches!(stop, Stop::Step | Stop::End(_) | Stop::Decision), "{stop:?}");
    Ok(Instructions(after.0 - before.0))
}

/// The last place of `step` at which its thread is in user mode: before the instruction that faults, or before the
/// system call that leaves it.
pub fn last_user_instruction(timeline: &mut Timeline<'_>, step: Step) -> Result<Position, StageError> {
    let count = user_instructions(timeline, step)?;
    let at = Position { step, offset: count };
    timeline.seek(at)?;
    let user = timeline.stage().machine().cpu()?.cs.selector & 3 == 3;
    let back = u64::from(!user && count.0 > 0);
    Ok(Position { step, offset: Instructions(count.0 - back) })
}
