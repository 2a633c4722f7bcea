//! `rewind cat`.

use std::{
    ffi::OsString,
    io::{self, Write},
    os::unix::ffi::OsStrExt,
    process::ExitCode,
};

use anyhow::Result;
use inside::{FileKind, InsideError, Servant};
use serde_json::json;

use crate::{
    context::{self, Engine},
    output, position,
};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run
    run: String,
    /// The file, as the job sees it; relative to the working directory of the thread that runs there
    path: OsString,
    /// Where: a step, a position (3291+120), @job, @crash or @end
    #[arg(long, value_name = "P", default_value = "@end")]
    at: String,
    /// Engine to go there with; auto = the one it was recorded on
    #[arg(long, value_enum, default_value = "auto")]
    engine: Engine,
    /// One JSON object with the content in it
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = context::home()?;
    let mut timeline = context::throw_away(&home, &args.run, context::engine(args.engine))?;
    let at = position::parse(&args.at, &timeline)?;
    timeline.seek(at)?;
    let id = timeline.run().id();
    let mut servant = Servant::enter(timeline.stage().machine())?;
    tell_if_later(at.step.0, servant.began());
    if !args.json {
        let mut out = io::stdout().lock();
        let read = servant.read_file(args.path.as_bytes(), &mut |_, bytes| out.write_all(bytes));
        // Told as output::is_closed_pipe knows it.
        return match read {
            Err(InsideError::Host { source, .. }) => Err(source.into()),
            other => {
                other?;
                out.flush()?;
                Ok(ExitCode::SUCCESS)
            }
        };
    }
    let mut content = Vec::new();
    let file = servant.read_file(args.path.as_bytes(), &mut |_, bytes| {
        content.extend_from_slice(bytes);
        Ok(())
    })?;
    let mut value = json!({
        "run": id.to_string(), "step": at.step.0, "offset": at.offset.0, "path": args.path.to_string_lossy(),
        "regular": file.kind == FileKind::Regular, "size": content.len(), "mode": format!("{:o}", file.mode),
        "uid": file.uid, "gid": file.gid, "blake3": blake3::hash(&content).to_string(),
    });
    match std::str::from_utf8(&content) {
        Ok(text) => value["text"] = text.into(),
        Err(_) => value["hex"] = run::id::hex(&content).into(),
    }
    output::json(&value)?;
    Ok(ExitCode::SUCCESS)
}

/// Where no program is ready at the position asked for, the next one is taken.
pub(crate) fn tell_if_later(asked: u64, began: u64) {
    if began > asked {
        context::notice(&format!("no program is ready at step {asked}; this is step {began}"));
    }
}
