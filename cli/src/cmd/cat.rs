//! `rewind cat`.

use std::{ffi::OsString, io, os::unix::ffi::OsStrExt, process::ExitCode};

use anyhow::{Result, bail};
use inside::{FileKind, Servant};
use run::describe::put_text;
use serde_json::json;

use crate::{
    context::{self, Engine},
    output::{self, Stream},
    position,
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
    if args.path.is_empty() {
        bail!("an empty path names no file");
    }
    let home = context::home()?;
    let mut timeline = context::throw_away(&home, &args.run, context::engine(args.engine))?;
    let at = position::parse(&args.at, &timeline)?;
    timeline.seek(at)?;
    let id = timeline.run().id();
    let mut servant = Servant::enter(timeline.stage().machine())?;
    tell_if_later(at.step.0, servant.began());
    if !args.json {
        let mut failed = None;
        let read = servant.read_file(args.path.as_bytes(), &mut |_, bytes| {
            output::write(Stream::Out, bytes).map_err(|error| {
                failed = Some(error);
                io::Error::other("standard output")
            })
        });
        return match (failed, read) {
            (Some(error), _) => Err(error.into()),
            (None, read) => {
                read?;
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
        "run": id.to_string(), "step": at.step.0, "offset": at.offset.0,
        "regular": file.kind == FileKind::Regular, "size": content.len(), "mode": format!("{:o}", file.mode),
        "uid": file.uid, "gid": file.gid, "blake3": blake3::hash(&content).to_string(),
    });
    if let Some(object) = value.as_object_mut() {
        put_text(object, "path", args.path.as_bytes());
    }
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
