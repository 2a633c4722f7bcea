//! The report as text. Nothing here depends on the host, on times or on how many jobs ran.

use std::fmt::Write as _;

use run::outcome::End;

use crate::{
    describe::{Described, at},
    difference::Difference,
    search::{Explained, Found, Judged},
    stuck::{Stuck, circle},
    trial::{Crash, Trial},
    verdict::Property,
};

/// One schedule's line.
pub fn schedule_line(judged: &Judged, run: Option<&str>) -> String {
    let output = if judged.violates.contains(&Property::SameOutcome) {
        String::new()
    } else {
        judged.trial.output_id()
    };
    let verdict = if judged.trial.starved {
        "no verdict: cut off while a thread of low rank waited for its turn".to_owned()
    } else if judged.violates.is_empty() {
        "holds".to_owned()
    } else {
        format!("violates {}", names(&judged.violates))
    };
    let run = run.map_or_else(String::new, |run| format!("run {run}  "));
    format!(
        "schedule {:>3}: {:<10} {:>8} steps  {output:<12}  {run}{verdict}",
        judged.index,
        judged.trial.ending.word(),
        judged.trial.steps
    )
}

fn names(properties: &[Property]) -> String {
    properties.iter().map(|property| property.name()).collect::<Vec<_>>().join(", ")
}

/// What was found out about the failing run's end.
#[derive(Clone, Debug, Default)]
pub struct EndFacts {
    /// Threads left at the end of a run that hangs.
    pub stuck: Vec<Stuck>,
    /// Line and function of the first crash.
    pub crash: (String, String),
    /// It was cut off by `--timeout`.
    pub out_of_time: bool,
}

/// What the failing run did, one line per violated property.
pub fn violations(explained: &Explained, reference: &Trial, end: &EndFacts) -> Vec<String> {
    let trial = &explained.failing;
    explained.violates.iter().map(|property| violation(*property, trial, reference, end)).collect()
}

fn violation(property: Property, trial: &Trial, reference: &Trial, end: &EndFacts) -> String {
    match property {
        Property::Sdk => match trial.failed.first() {
            Some(failed) => {
                let assertion = &failed.assertion;
                let mut text = format!(
                    "violates sdk: step {}: {} \"{}\" failed",
                    failed.step,
                    assertion.kind.name(),
                    assertion.name
                );
                if !assertion.details.is_empty() {
                    let _ = write!(text, ": {}", assertion.details);
                }
                if !assertion.place.is_empty() {
                    let _ = write!(text, " ({})", assertion.place);
                }
                text
            }
            None => "violates sdk".into(),
        },
        Property::NoCrash => match trial.crashes.first() {
            Some(crash) => {
                format!("violates no-crash: {}{}", crash_text(crash), at(&end.crash.0, &end.crash.1))
            }
            None => format!("violates no-crash: {}", detail(&trial.ending)),
        },
        Property::NoHang => {
            let mut text = format!("violates no-hang: {}", hang(trial, end));
            for one in &end.stuck {
                let _ = write!(text, "\n  {}", one.text());
            }
            if let Some(circle) = circle(&end.stuck) {
                let _ = write!(text, "\n  they wait in a circle: {circle}");
            }
            text
        }
        Property::SameOutcome if trial.ending != reference.ending => {
            format!("violates same-outcome: {}, schedule 0 {}", trial.ending.word(), reference.ending.word())
        }
        Property::SameOutcome if trial.output != reference.output => {
            format!(
                "violates same-outcome: {}",
                output_difference(&trial.output_text, &reference.output_text)
            )
        }
        Property::SameOutcome => "violates same-outcome: a declared output differs from schedule 0's".into(),
    }
}

fn detail(end: &End) -> String {
    match end.detail() {
        Some(detail) => format!("{}: {detail}", end.word()),
        None => end.word(),
    }
}

fn hang(trial: &Trial, end: &EndFacts) -> String {
    match trial.ending {
        End::Stalled => {
            format!("step {}: every thread waits and nothing will wake one (deadlock)", trial.steps)
        }
        _ if trial.spins => format!(
            "step {}: a thread computes without end and never enters the kernel, so no time passes (if it waits for \
             another one that way, try --clock work)",
            trial.steps
        ),
        End::Idling => format!("step {}: for an hour of virtual time only timers fired", trial.steps),
        _ if end.out_of_time => {
            format!("still running at step {}, when the time of --timeout was up", trial.steps)
        }
        _ => format!("still running at step {}, many times as long as schedule 0", trial.steps),
    }
}

fn crash_text(crash: &Crash) -> String {
    let name = match crash.signal {
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        31 => "SIGSYS",
        _ => "a signal",
    };
    let mut text = format!("step {}: thread {} is killed by {name}", crash.step, crash.tid);
    if matches!(crash.signal, 7 | 11) {
        let _ = write!(text, " at address {:#x}", crash.address);
    }
    text
}

/// The first line in which two outputs differ.
fn output_difference(left: &[u8], right: &[u8]) -> String {
    let (left, right) = (String::from_utf8_lossy(left), String::from_utf8_lossy(right));
    let (mut a, mut b) = (left.lines(), right.lines());
    let mut number = 0;
    loop {
        number += 1;
        match (a.next(), b.next()) {
            (None, None) => return "the output differs from schedule 0's".into(),
            (left, right) if left != right => {
                let show =
                    |line: Option<&str>| line.map_or_else(|| "nothing".into(), |line| format!("{line:?}"));
                return format!("output line {number} is {}, in schedule 0 {}", show(left), show(right));
            }
            _ => {}
        }
    }
}

/// Everything found out about a failing schedule.
#[derive(Debug)]
pub struct Story<'a> {
    /// The search's first failing schedule.
    pub judged: &'a Judged,
    /// Its smallest failing set.
    pub explained: &'a Explained,
    /// Schedule 0.
    pub reference: &'a Trial,
    /// Each decision in words.
    pub described: &'a [Described],
    /// Number (from 1) in `described` of the decision the passing partner leaves out.
    pub left_out: Option<usize>,
    /// What was found out about the end.
    pub end: &'a EndFacts,
    /// First difference between failing run and partner.
    pub difference: Option<&'a Difference>,
    /// Ids of the failing run and its partner, if they were kept.
    pub runs: (Option<&'a str>, Option<&'a str>),
}

/// The report on a failing schedule.
pub fn story(story: &Story<'_>) -> String {
    let mut text = String::new();
    let kept = story.explained.decisions.len();
    let from = story.judged.decisions.len();
    if story.judged.index == 0 {
        let _ = writeln!(text, "fails without any decision: no schedule is needed");
    } else {
        let _ = writeln!(
            text,
            "narrowed: {kept} decision{}, from {from} ({})",
            if kept == 1 { "" } else { "s" },
            story.judged.strategy
        );
    }
    if let Some(run) = story.runs.0 {
        let _ = writeln!(text, "failing: run {run}");
    }
    for (i, described) in story.described.iter().enumerate() {
        let _ = writeln!(text, "  {}. {}", i + 1, described.text());
    }
    for line in violations(story.explained, story.reference, story.end) {
        let _ = writeln!(text, "{line}");
    }
    if story.explained.partner.is_some() {
        let without = story
            .left_out
            .map_or_else(String::new, |number| format!(" (the same without decision {number})"));
        match story.runs.1 {
            Some(run) => {
                let _ = writeln!(text, "passing partner: run {run}{without}");
            }
            None => {
                let _ = writeln!(text, "passing partner: holds{without}");
            }
        }
    }
    if let Some(difference) = story.difference {
        let _ = writeln!(
            text,
            "first difference: at step {} thread {} {}; in the passing partner it {}",
            difference.step, difference.tid, difference.failing, difference.passing
        );
    }
    text
}

/// The last lines: how many failed, what was never reached, what the strategy promises.
pub fn summary(found: &Found, promise: &str) -> String {
    let mut text = String::new();
    for (kind, name) in found.coverage.missing() {
        let _ = writeln!(text, "never satisfied in any schedule tried: {} \"{name}\"", kind.name());
    }
    let _ = writeln!(text, "{promise}");
    let _ = writeln!(
        text,
        "{} of {} schedule{} tried violate{} a property",
        found.failing,
        found.tried,
        if found.tried == 1 { "" } else { "s" },
        if found.failing == 1 { "s" } else { "" }
    );
    text
}
