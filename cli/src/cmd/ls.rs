//! `rewind ls`.

use std::process::ExitCode;

use anyhow::Result;
use run::{
    describe::{put_text, put_texts_hex},
    list::{Filter, State},
    outcome::Outcome,
};
use serde_json::{Map, Value, json};

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only runs whose command contains this
    #[arg(long, value_name = "TEXT")]
    command: Option<String>,
    /// Only runs that ended like this: `exited`, `exited:1`, `killed`, `stalled`, ...
    #[arg(long, value_name = "END", value_parser = ending)]
    end: Option<String>,
    /// Only forks of this run
    #[arg(long, value_name = "RUN")]
    forks_of: Option<String>,
    /// One JSON object a run
    #[arg(long)]
    json: bool,
}

/// Words for endings (`End::word`), those with a number after a colon first.
const ENDINGS: [&str; 11] = [
    "exited",
    "killed",
    "stalled",
    "idling",
    "out-of-memory",
    "kernel-panic",
    "guest-fault",
    "powered-off",
    "not-started",
    "timed-out",
    "interrupted",
];

/// `--end`.
fn ending(text: &str) -> Result<String, String> {
    let (word, number) = text.split_once(':').map_or((text, None), |(word, number)| (word, Some(number)));
    let numbered = ENDINGS[..2].contains(&word) && number.is_some_and(|number| number.parse::<u8>().is_ok());
    if ENDINGS.contains(&word) && (number.is_none() || numbered) {
        return Ok(text.into());
    }
    Err(format!("no run ends so; endings are {} (also exited:N and killed:N)", ENDINGS.join(", ")))
}

/// An outcome by stable names.
pub(crate) fn outcome_json(outcome: &Outcome) -> Map<String, Value> {
    let outputs: Vec<Value> = outcome
        .outputs
        .iter()
        .map(|output| {
            let mut object = Map::new();
            put_text(&mut object, "path", &output.path);
            object.insert("hash".into(), json!(output.hash.map(|hash| run::id::hex(&hash))));
            Value::Object(object)
        })
        .collect();
    let value = json!({
        "end": outcome.end.word(),
        "detail": outcome.end.detail(),
        "steps": outcome.steps,
        "virtual_ns": outcome.virtual_ns,
        "started": outcome.started,
        "events": outcome.records,
        "trace": outcome.trace_hash.to_string(),
        "outputs": outputs,
        "missed_decisions": outcome.missed,
    });
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let parent = args.forks_of.map(|prefix| home.find(&prefix)).transpose()?;
    let filter = Filter { command: args.command, end: args.end, parent };
    let (runs, broken) = run::list::runs(&home, &filter);
    for run in &runs {
        if args.json {
            let mut value = run.outcome.as_ref().map(outcome_json).unwrap_or_default();
            value.insert("run".into(), run.id.to_string().into());
            value.insert("state".into(), json!(run.state));
            value.insert("command".into(), run.spec.command().into());
            put_texts_hex(&mut value, "argv", run.spec.job.argv.iter().map(Vec::as_slice));
            value.insert("seed".into(), run::id::hex(&run.spec.job.seed).into());
            value.insert("parent".into(), json!(run.parent.map(|(id, step)| (id.to_string(), step))));
            value.insert("keyframes".into(), json!(run.keyframes));
            value.insert("bytes".into(), run.bytes.into());
            output::json(&value.into())?;
            continue;
        }
        let end = match (&run.outcome, run.state) {
            (Some(outcome), State::Finished) => outcome.end.word(),
            (_, State::Recording) => "recording".into(),
            (_, _) => "died".into(),
        };
        let steps = run.outcome.as_ref().map_or(String::from("-"), |outcome| outcome.steps.to_string());
        let fork = run.parent.map_or(String::new(), |(id, step)| format!("  fork of {id} at {step}"));
        output::line(format_args!(
            "{}  {end:<14} {steps:>9} steps  {:>8}  {}{fork}",
            run.id,
            output::bytes(run.bytes),
            output::one_line(&run.spec.command()),
        ))?;
    }
    for error in broken {
        context::notice(&error.to_string());
    }
    if !args.json {
        let pages = output::bytes(home.pages().disk_bytes());
        let all = output::bytes(run::gc::disk_bytes(home.path()));
        let (count, plural) = (runs.len(), if runs.len() == 1 { "" } else { "s" });
        output::say!("{count} run{plural}; {all} in {} ({pages} pages)", home.path().display());
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use run::outcome::End;

    #[test]
    fn every_ending_can_be_asked_for_and_nothing_else() {
        let text = String::new;
        let all = [
            End::Exited(3),
            End::Killed(9),
            End::Stalled,
            End::Idling,
            End::OutOfMemory,
            End::KernelPanic(text()),
            End::GuestFault(text()),
            End::PoweredOff,
            End::NotStarted(text()),
            End::TimedOut,
            End::Interrupted,
        ];
        for end in all.map(|end| end.word()) {
            assert_eq!(super::ending(&end), Ok(end));
        }
        for wrong in ["nonsense", "", "exited:x", "stalled:1", "exited:256"] {
            assert!(super::ending(wrong).unwrap_err().contains("out-of-memory"), "{wrong}");
        }
    }
}
