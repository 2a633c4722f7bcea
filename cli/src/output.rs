//! Writing results.

use std::io::{self, Write};

use anyhow::Result;
use serde_json::Value;

/// One JSON object on its own line of standard output.
pub(crate) fn json(value: &Value) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{value}")?)
}

/// One line of standard output.
pub(crate) fn line(text: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
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
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
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
