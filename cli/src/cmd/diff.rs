//! `rewind diff`.

use std::process::ExitCode;

use anyhow::Result;
use run::{describe, diff::Compared};
use serde_json::json;

use crate::{context, output};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// One run
    a: String,
    /// And another
    b: String,
    /// Events to show before the first difference
    #[arg(long, value_name = "N", default_value_t = 3)]
    context: usize,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

/// Exits 1 when they differ, as diff(1) does.
pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let (a, b) = (context::find(&home, &args.a)?, context::find(&home, &args.b)?);
    let compared = run::diff::diff(&context::trace(&a)?, &context::trace(&b)?, args.context)?;
    let ends = |run: &run::home::RunDir| -> Result<String> {
        Ok(run.outcome()?.map_or("unfinished".into(), |outcome| {
            format!("{} after {} steps", outcome.end.word(), outcome.steps)
        }))
    };
    let end = |run: &run::home::RunDir| -> Result<_> {
        Ok(run.outcome()?.map(|outcome| (outcome.end, outcome.steps)))
    };
    let same_end = end(&a)? == end(&b)?;
    match compared {
        Compared::Same { events } if !same_end && args.json => {
            output::json(
                &json!({ "same": false, "events": events, "a_end": ends(&a)?, "b_end": ends(&b)? }),
            )?;
            return Ok(ExitCode::FAILURE);
        }
        Compared::Same { events } if !same_end => {
            output::line(format_args!("{}: {}\n{}: {}", a.id(), ends(&a)?, b.id(), ends(&b)?))?;
            output::line(format_args!("the same {events} events, and another end"))?;
            return Ok(ExitCode::FAILURE);
        }
        Compared::Same { events } if args.json => {
            output::json(&json!({ "same": true, "events": events }))?;
        }
        Compared::Same { events } => output::line(format_args!("the same {events} events"))?,
        Compared::Differ { difference, before } if args.json => {
            output::json(&json!({
                "same": false, "event": difference.number,
                "before": before.iter().map(describe::to_json).collect::<Vec<_>>(),
                "a": difference.recorded.as_ref().map(describe::to_json),
                "b": difference.happened.as_ref().map(describe::to_json),
            }))?;
            return Ok(ExitCode::FAILURE);
        }
        Compared::Differ { difference, before } => {
            output::line(format_args!("{}: {}\n{}: {}", a.id(), ends(&a)?, b.id(), ends(&b)?))?;
            output::line(format_args!("the same until event {}:", difference.number))?;
            for record in &before {
                output::line(format_args!("  {}", describe::line(record)))?;
            }
            let sides = [&difference.recorded, &difference.happened].map(Option::as_ref);
            let lines = sides.map(|record| record.map_or("nothing more".into(), describe::line));
            // What a line leaves out, such as the time, may be all that differs.
            let hidden = lines[0] == lines[1];
            for ((run, record), line) in [&a, &b].into_iter().zip(sides).zip(&lines) {
                let all = record.filter(|_| hidden).map(|record| format!("  {}", describe::to_json(record)));
                output::line(format_args!("{}: {line}{}", run.id(), all.unwrap_or_default()))?;
            }
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}
