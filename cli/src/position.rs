//! Positions as a user types them: `3291`, `3291+120`, `@job`, `@crash`, `@end`.

use anyhow::{Context, Result, bail};
use rewind_platform::record::REC_SIGNAL;
use run::{
    describe::long,
    home::RunDir,
    id::RunId,
    outcome::{End, Outcome},
    seek::Timeline,
    trace::{Record, TraceReader},
};
use vmm::{
    Until,
    address::{Instructions, Position, Step},
};

/// What `text` means in this run.
pub(crate) fn parse(text: &str, timeline: &Timeline<'_>) -> Result<Position> {
    meaning(text, timeline.run().id(), timeline.outcome(), timeline.trace())
}

/// As [`parse`], to the instruction: `@crash` is the one that faulted, or the system call that raised the signal; `@end`
/// of a run in which everything waits is the one that did last.
pub(crate) fn find(text: &str, timeline: &mut Timeline<'_>) -> Result<Position> {
    let at = parse(text, timeline)?;
    let within = text == "@crash" || text == "@end" && all_wait(timeline);
    Ok(if within { debug::steps::last_user_instruction(timeline, at.step)? } else { at })
}

/// Puts the machine there, and at `@end` of a run in which everything waits on into that waiting, which is no position:
/// the last step has begun, and no other follows.
pub(crate) fn go(text: &str, timeline: &mut Timeline<'_>) -> Result<Position> {
    let at = find(text, timeline)?;
    timeline.seek(at)?;
    if text == "@end" && all_wait(timeline) {
        timeline.go_on(&Until::END)?;
    }
    Ok(at)
}

/// Did the run end because nothing could go on?
fn all_wait(timeline: &Timeline<'_>) -> bool {
    timeline.outcome().is_some_and(|outcome| matches!(outcome.end, End::Stalled | End::Idling))
}

/// The step `text` means in a run that nobody goes about in; it must not lie past the end.
pub(crate) fn step(text: &str, run: &RunDir) -> Result<u64> {
    let (trace, outcome) = (run.trace()?, run.outcome()?);
    let (step, last) = (step_of(text, run.id(), outcome.as_ref(), &trace)?, last(outcome.as_ref(), &trace));
    if step > last {
        bail!("step {step} is past the end of run {}: it ends at step {last}", run.id());
    }
    Ok(step)
}

/// As [`step`], of an upper bound: one past the end means the end.
pub(crate) fn step_at_most(text: &str, run: &RunDir) -> Result<u64> {
    let (trace, outcome) = (run.trace()?, run.outcome()?);
    let step = step_of(text, run.id(), outcome.as_ref(), &trace)?;
    Ok(step.min(last(outcome.as_ref(), &trace)))
}

/// A place between steps. What is said of a run's steps is not said of instructions in one, and whether there are so many
/// only a machine could tell.
fn step_of(text: &str, id: RunId, outcome: Option<&Outcome>, trace: &TraceReader) -> Result<u64> {
    let at = meaning(text, id, outcome, trace)?;
    if at.offset.0 != 0 {
        bail!("\"{text}\" is inside a step, and this command goes by whole steps: give {}", at.step.0);
    }
    Ok(at.step.0)
}

fn last(outcome: Option<&Outcome>, trace: &TraceReader) -> u64 {
    outcome.map_or(trace.last_step(), |outcome| outcome.steps)
}

fn meaning(text: &str, id: RunId, outcome: Option<&Outcome>, trace: &TraceReader) -> Result<Position> {
    let at = |step| Position { step: Step(step), offset: Instructions(0) };
    let last = last(outcome, trace);
    match text {
        "@end" => return Ok(at(last)),
        "@job" => {
            let started = outcome.and_then(|outcome| outcome.started);
            let started = started.with_context(|| format!("run {id} never came to its job"))?;
            // The record is made before the step that follows it.
            return Ok(at((started + 1).min(last)));
        }
        "@crash" => return crash(id, trace).map(at),
        _ => {}
    }
    let (step, offset) = text.split_once('+').unwrap_or((text, "0"));
    let number = |part: &str| {
        // u64's own parser takes a sign.
        let digits = part.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| part.parse::<u64>().ok()).flatten().with_context(|| {
            format!("\"{text}\" is no position: a step (3291), a step and instructions (3291+120), @job, @crash or @end")
        })
    };
    Ok(Position { step: Step(number(step)?), offset: Instructions(number(offset)?) })
}

/// Is it a fatal signal that nobody handled?
pub(crate) fn crashes(record: &Record) -> bool {
    /// Signals a fault or an abort gives: SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS.
    const CRASHES: [u32; 7] = [4, 5, 6, 7, 8, 11, 31];
    let header = &record.header;
    header.kind == REC_SIGNAL && CRASHES.contains(&header.aux) && long(&record.payload, 3) == 0
}

/// The step at which the last fatal signal that nobody handled was delivered.
fn crash(id: RunId, trace: &TraceReader) -> Result<u64> {
    let mut found = None;
    for record in trace.iter() {
        let record = record?;
        if crashes(&record) {
            found = Some(record.header.step);
        }
    }
    found.with_context(|| format!("nothing crashed in run {id}: no @crash"))
}
