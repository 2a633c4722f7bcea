//! `rewind ls`.

use std::process::ExitCode;

use anyhow::Result;
use run::{
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
    #[arg(long, value_name = "END")]
    end: Option<String>,
    /// Only forks of this run
    #[arg(long, value_name = "RUN")]
    forks_of: Option<String>,
    /// One JSON object a run
    #[arg(long)]
    json: bool,
}

/// An outcome by stable names.
pub(crate) fn outcome_json(outcome: &Outcome) -> Map<String, Value> {
    let outputs: Vec<Value> = outcome
        .outputs
        .iter()
        .map(|output| {
            json!({
                "path": String::from_utf8_lossy(&output.path),
                "hash": output.hash.map(|hash| run::id::hex(&hash)),
            })
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
            value.insert("seed".into(), run::id::hex(&run.spec.job.seed).into());
            value.insert("parent".into(), json!(run.parent.map(|(id, step)| (id.to_string(), step))));
            value.insert("keyframes".into(), json!(run.keyframes));
            value.insert("bytes".into(), run.bytes.into());
            output::json(&value.into())?;
            continue;
        }
        let end = match (&run.outcome, run.state) {
            (Some(outcome), _) => outcome.end.word(),
            (None, State::Recording) => "recording".into(),
            (None, _) => "died".into(),
        };
        let steps = run.outcome.as_ref().map_or(String::from("-"), |outcome| outcome.steps.to_string());
        let fork = run.parent.map_or(String::new(), |(id, step)| format!("  fork of {id} at {step}"));
        output::line(format_args!(
            "{}  {end:<14} {steps:>9} steps  {:>8}  {}{fork}",
            run.id,
            output::bytes(run.bytes),
            output::printable(&run.spec.command()).replace('\n', "\\n"),
        ))?;
    }
    for error in broken {
        eprintln!("rewind: {error}");
    }
    if !args.json {
        let pages = output::bytes(home.pages().disk_bytes());
        let all = output::bytes(run::gc::disk_bytes(home.path()));
        eprintln!("{} runs; {all} in {} ({pages} pages)", runs.len(), home.path().display());
    }
    Ok(ExitCode::SUCCESS)
}
