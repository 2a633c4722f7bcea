//! Writing results, and what is said beside them.

use std::{
    fmt,
    io::{self, Write},
    sync::Mutex,
};

use anyhow::Result;
use blame::error::BlameError;
use run::{archive::ArchiveError, error::StageError};
use serde_json::Value;

/// One of our own outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Results, and a program's own output.
    Out,
    /// Its own errors, and what we say.
    Err,
}

/// An output took no more.
#[derive(Debug)]
pub(crate) struct CannotWrite {
    to: Stream,
    source: io::Error,
}

impl fmt::Display for CannotWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = match self.to {
            Stream::Out => "output",
            Stream::Err => "error",
        };
        write!(f, "cannot write to standard {to}: {}", self.source)
    }
}

impl std::error::Error for CannotWrite {}

impl CannotWrite {
    /// Standard output.
    pub(crate) fn out(source: io::Error) -> Self {
        CannotWrite { to: Stream::Out, source }
    }
}

/// Writes all of it, at once.
pub(crate) fn write(to: Stream, bytes: &[u8]) -> Result<(), CannotWrite> {
    let written = match to {
        Stream::Out => {
            let mut out = io::stdout().lock();
            out.write_all(bytes).and_then(|()| out.flush())
        }
        Stream::Err => io::stderr().write_all(bytes),
    };
    written.map_err(|source| CannotWrite { to, source })
}

/// One JSON object on its own line of standard output.
pub(crate) fn json(value: &Value) -> Result<()> {
    line(value)
}

/// One line of standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    Ok(write(Stream::Out, format!("{text}\n").as_bytes())?)
}

/// One line of standard error. Where that cannot be written, nobody could be told so.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::said(format_args!($($text)*)) };
}
pub(crate) use say;

pub(crate) fn said(text: std::fmt::Arguments<'_>) {
    let _ = write(Stream::Err, format!("{text}\n").as_bytes());
}

/// The first failure of [`pass`].
static FAILED: Mutex<Option<CannotWrite>> = Mutex::new(None);

/// Writes what a program said while it is recorded, which goes on whether that can be written or not: a failure is told at
/// the end ([`passed`]). A reader that went away is none.
pub(crate) fn pass(to: Stream, bytes: &[u8]) {
    let mut failed = FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // A stream that took no more would only get pieces.
    if failed.as_ref().is_some_and(|failed| failed.to == to) {
        return;
    }
    if let Err(error) = write(to, bytes)
        && error.source.kind() != io::ErrorKind::BrokenPipe
    {
        failed.get_or_insert(error);
    }
}

/// Was all written that was passed on?
pub(crate) fn passed() -> Result<()> {
    let failed = FAILED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    Ok(failed.map_or(Ok(()), Err)?)
}

/// An error with its causes, each said once: many already hold the text of theirs.
pub(crate) fn error(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| match cause.to_string() {
        cause if text.is_empty() => cause,
        cause if text.contains(&cause) => text,
        cause => format!("{text}: {cause}"),
    })
}

/// Did the reader of our output go away?
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let source = error.downcast_ref::<CannotWrite>().map(|error| &error.source);
    let source = source.or(error.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Was it Ctrl-C?
pub(crate) fn is_interrupt(error: &anyhow::Error) -> bool {
    // These say nothing of their own: the error in them is no cause of theirs.
    let stage = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(ArchiveError::Stage(stage)), _) | (_, Some(BlameError::Stage(stage))) => Some(stage),
        _ => error.downcast_ref(),
    };
    matches!(stage, Some(StageError::Interrupted))
}

/// Virtual or wall nanoseconds as seconds for people.
pub(crate) fn seconds(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{:.3} ms", ns as f64 / 1e6),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

/// Bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{n} B"),
        10_000..10_000_000 => format!("{} kB", n / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", n / 1_000_000),
        _ => format!("{} GB", n / 1_000_000_000),
    }
}

/// As [`printable`], all on one line.
pub(crate) fn one_line(text: &str) -> String {
    printable(text).replace('\n', "\\n")
}

/// Text of the guest without anything that moves the terminal; line ends and tabs stay.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            let plain = !c.is_control() || matches!(c, '\n' | '\t');
            let escaped = (!plain).then(|| c.escape_default());
            plain.then_some(c).into_iter().chain(escaped.into_iter().flatten())
        })
        .collect()
}
