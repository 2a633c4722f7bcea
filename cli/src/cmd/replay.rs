//! `rewind replay`.

use std::process::ExitCode;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use run::replay::{Options, Verdict};
use serde_json::json;

use crate::{
    context::{self, Engine},
    output, position,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// Begin at the latest keyframe at or before this step
    #[arg(long, value_name = "STEP")]
    from: Option<String>,
    /// Engine; auto = the one it was recorded on
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// One JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let mut timeline = context::timeline(&home, &args.run, context::engine(args.engine))?;
    let from = args.from.map(|text| position::step(&text, timeline.run())).transpose()?;
    let bar = ProgressBar::new(timeline.last());
    if let Ok(style) = ProgressStyle::with_template("replaying {bar:30} {pos}/{len} steps {eta}") {
        bar.set_style(style);
    }
    let progress = |step| bar.set_position(step);
    let interrupted = context::interrupted()?;
    let options = Options { from, level: 0, on_record: None, interrupted, progress: &progress };
    let verdict = run::replay::replay(&mut timeline, options);
    bar.finish_and_clear();
    let id = timeline.run().id();
    let (value, text, same) = match verdict? {
        Verdict::Identical { events, steps } => (
            json!({ "run": id.to_string(), "identical": true, "events": events, "steps": steps }),
            format!("run {id}: identical, {events} events over {steps} steps"),
            true,
        ),
        Verdict::Differs(difference) => (
            json!({
                "run": id.to_string(), "identical": false, "event": difference.number,
                "recorded": difference.recorded.as_ref().map(run::describe::to_json),
                "happened": difference.happened.as_ref().map(run::describe::to_json),
            }),
            format!("run {id}: differs at {difference}"),
            false,
        ),
        Verdict::EndsOtherwise { recorded, now } => (
            json!({
                "run": id.to_string(), "identical": false,
                "recorded_end": recorded.0.word(), "recorded_steps": recorded.1,
                "end": now.0.word(), "steps": now.1,
            }),
            format!(
                "run {id}: all events are the same, but it ends {} at step {}; recorded {} at step {}",
                now.0.word(),
                now.1,
                recorded.0.word(),
                recorded.1
            ),
            false,
        ),
    };
    if args.json {
        output::json(&value)?
    } else {
        output::line(output::printable(&text))?
    }
    Ok(if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
