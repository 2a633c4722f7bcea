//! Replaying a run and comparing every event with the recording.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use vmm::{RecordSink, Stop, Until, address::Step};

use crate::{
    ending::Facts,
    error::StageError,
    outcome::End,
    seek::Timeline,
    verify::{Difference, OnRecord, Verifier},
};

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything happened as recorded.
    Identical {
        /// Events compared.
        events: u64,
        /// Steps run.
        steps: u64,
    },
    /// An event did not.
    Differs(Box<Difference>),
    /// All events did, but the run ended otherwise.
    EndsOtherwise {
        /// As recorded.
        recorded: (End, u64),
        /// Now.
        now: (End, u64),
    },
}

/// How to replay.
pub struct Options<'a> {
    /// From the latest keyframe at or before this step; none = from the boot keyframe.
    pub from: Option<u64>,
    /// Richer records (`TRACE_*`).
    pub level: u32,
    /// Told every record.
    pub on_record: Option<OnRecord<'a>>,
    /// Set by Ctrl-C.
    pub interrupted: Arc<AtomicBool>,
    /// Told the step now and then.
    pub progress: &'a dyn Fn(u64),
}

/// Replays to the end.
pub fn replay(timeline: &mut Timeline<'_>, options: Options<'_>) -> Result<Verdict, StageError> {
    let keyframes = timeline.keyframes();
    let from = options.from.unwrap_or(0).max(timeline.first());
    if from > timeline.last() {
        return Err(StageError::PastEnd { id: timeline.run().id(), asked: from, end: timeline.last() });
    }
    let start = keyframes.into_iter().rfind(|step| *step <= from).unwrap_or(timeline.first());
    timeline.restore(start)?;
    let (id, first) = (timeline.run().id(), timeline.records());
    let outcome = timeline.outcome().cloned();
    // A run that was stopped from outside has no end of its own: it is replayed as far as it got.
    let last = outcome.as_ref().filter(|outcome| !outcome.end.is_final()).map(|outcome| outcome.steps);
    let trace = timeline.run().trace()?;
    let stage = timeline.stage();
    let mut verifier = Verifier::new(trace.from_record(first), first).stopping(stage.machine().interrupter());
    if let Some(on_record) = options.on_record {
        verifier = verifier.showing(on_record);
    }
    stage.machine().set_trace_level(options.level);
    let mut sink = Both { verifier, facts: Facts::default() };
    let ended = loop {
        let now = stage.machine().step().0;
        (options.progress)(now);
        let mut next = now + 20_000;
        if let Some(last) = last {
            if now >= last {
                break None;
            }
            next = next.min(last);
        }
        let stop = stage.run(&Until::step(Step(next)), &mut sink)?;
        if let Some(difference) = sink.verifier.check()? {
            return Ok(Verdict::Differs(Box::new(difference)));
        }
        if options.interrupted.load(Ordering::Relaxed) {
            return Err(StageError::Interrupted);
        }
        match stop {
            Stop::Step | Stop::Interrupted => {}
            stop => break sink.facts.end(&stop),
        }
    };
    let steps = stage.machine().step().0;
    stage.machine().set_trace_level(0);
    let events = sink.verifier.number() - first;
    if last.is_none()
        && let Some(difference) = sink.verifier.finish()?
    {
        return Ok(Verdict::Differs(Box::new(difference)));
    }
    match (outcome, ended) {
        (Some(outcome), Some(end)) if outcome.end.is_final() => {
            // Facts from before the keyframe are not seen again: without them the end's kind may be unknown.
            let same_end = end == outcome.end || end == End::PoweredOff;
            if !same_end || steps != outcome.steps {
                let recorded = (outcome.end, outcome.steps);
                return Ok(Verdict::EndsOtherwise { recorded, now: (end, steps) });
            }
            Ok(Verdict::Identical { events, steps: steps - start })
        }
        (Some(_), None) | (None, _) => Ok(Verdict::Identical { events, steps: steps - start }),
        (Some(outcome), Some(end)) if end.is_final() => {
            let recorded = (outcome.end, outcome.steps);
            let _ = id;
            Ok(Verdict::EndsOtherwise { recorded, now: (end, steps) })
        }
        _ => Ok(Verdict::Identical { events, steps: steps - start }),
    }
}

struct Both<'a> {
    verifier: Verifier<'a>,
    facts: Facts,
}

impl RecordSink for Both<'_> {
    fn record(&mut self, header: &rewind_platform::record::RecordHeader, payload: &[u8]) {
        self.facts.add(header, payload);
        self.verifier.record(header, payload);
    }
}
