//! Positions as a user types them: `3291`, `3291+120`, `@job`, `@crash`, `@end`.

use anyhow::{Context, Result, bail};
use rewind_platform::record::REC_SIGNAL;
use run::{describe::long, seek::Timeline};
use vmm::address::{Instructions, Position, Step};

/// What `text` means in this run.
pub(crate) fn parse(text: &str, timeline: &Timeline<'_>) -> Result<Position> {
    let at = |step| Position { step: Step(step), offset: Instructions(0) };
    match text {
        "@end" => return Ok(at(timeline.last())),
        "@job" => {
            let started = timeline.outcome().and_then(|outcome| outcome.started);
            let started =
                started.with_context(|| format!("run {} never came to its job", timeline.run().id()))?;
            // The record is made before the step that follows it.
            return Ok(at((started + 1).min(timeline.last())));
        }
        "@crash" => return crash(timeline).map(at),
        _ => {}
    }
    let (step, offset) = text.split_once('+').unwrap_or((text, "0"));
    let number = |part: &str| {
        part.parse::<u64>().with_context(|| {
            format!("\"{text}\" is no position: a step (3291), a step and instructions (3291+120), @job, @crash or @end")
        })
    };
    Ok(Position { step: Step(number(step)?), offset: Instructions(number(offset)?) })
}

/// As [`parse`], to the instruction: `@crash` is the one that faulted, or the system call that raised the signal.
pub(crate) fn find(text: &str, timeline: &mut Timeline<'_>) -> Result<Position> {
    let at = parse(text, timeline)?;
    if text != "@crash" {
        return Ok(at);
    }
    Ok(debug::steps::last_user_instruction(timeline, at.step)?)
}

/// The step at which the last fatal signal that nobody handled was delivered.
fn crash(timeline: &Timeline<'_>) -> Result<u64> {
    /// Signals a fault or an abort gives: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
    const CRASHES: [u32; 7] = [4, 5, 6, 7, 8, 11, 31];
    let mut found = None;
    for record in timeline.trace().iter() {
        let record = record?;
        let header = &record.header;
        if header.kind == REC_SIGNAL && CRASHES.contains(&header.aux) && long(&record.payload, 3) == 0 {
            found = Some(header.step);
        }
    }
    match found {
        Some(step) => Ok(step),
        None => bail!("nothing crashed in run {}: no @crash", timeline.run().id()),
    }
}
