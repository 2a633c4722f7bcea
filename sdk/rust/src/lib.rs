//! Assertions and marks for programs that run inside Rewind; no-ops outside it. No dependencies.
//!
//! ```
//! rewind_sdk::always!(1 + 1 == 2, "arithmetic works");
//! rewind_sdk::sometimes!(false, "cache was hit", "entries {}", 3);
//! rewind_sdk::mark!("after the test");
//! ```

use std::{fs::File, io::Write as _, sync::OnceLock};

/// What an assertion demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Must hold each time it is reached.
    Always,
    /// Must hold at least once over all schedules.
    Sometimes,
    /// Must be reached at least once over all schedules.
    Reachable,
    /// Must never be reached.
    Unreachable,
    /// A named place on the timeline; demands nothing.
    Mark,
}

/// Longest line `/dev/rewind` takes, bytes.
const LONGEST: usize = 2000;

fn device() -> Option<&'static File> {
    static DEVICE: OnceLock<Option<File>> = OnceLock::new();
    DEVICE.get_or_init(|| File::options().write(true).open("/dev/rewind").ok()).as_ref()
}

/// True inside Rewind.
pub fn inside() -> bool {
    device().is_some()
}

/// One report; use the macros. Writes one line with one system call, from any thread.
pub fn report(kind: Kind, holds: bool, name: &str, file: &str, line: u32, details: std::fmt::Arguments<'_>) {
    let Some(mut device) = device() else { return };
    let mut text = line_of(kind, holds, name, file, line, &details.to_string());
    if text.len() > LONGEST {
        text = line_of(kind, holds, name, file, line, "(details too long)");
    }
    // A program under test must not fail because its report did.
    let _ = device.write(text.as_bytes());
}

fn line_of(kind: Kind, holds: bool, name: &str, file: &str, line: u32, details: &str) -> String {
    let head = match kind {
        Kind::Always => "{\"property\":{\"kind\":\"always\"",
        Kind::Sometimes => "{\"property\":{\"kind\":\"sometimes\"",
        Kind::Reachable => "{\"property\":{\"kind\":\"reachable\"",
        Kind::Unreachable => "{\"property\":{\"kind\":\"unreachable\"",
        Kind::Mark => "{\"mark\":{\"kind\":\"mark\"",
    };
    format!(
        "{head},\"name\":{},\"holds\":{holds},\"file\":{},\"line\":{line},\"details\":{}}}}}\n",
        quote(name),
        quote(file),
        quote(details)
    )
}

fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// `always!(holds, "name")` or `always!(holds, "name", "format", args...)`.
#[macro_export]
macro_rules! always {
    ($holds:expr, $name:expr) => { $crate::always!($holds, $name, "") };
    ($holds:expr, $name:expr, $($details:tt)+) => {
        $crate::report($crate::Kind::Always, $holds, $name, file!(), line!(), format_args!($($details)+))
    };
}

/// `sometimes!(holds, "name")`, with optional details as in [`always!`].
#[macro_export]
macro_rules! sometimes {
    ($holds:expr, $name:expr) => { $crate::sometimes!($holds, $name, "") };
    ($holds:expr, $name:expr, $($details:tt)+) => {
        $crate::report($crate::Kind::Sometimes, $holds, $name, file!(), line!(), format_args!($($details)+))
    };
}

/// `reachable!("name")`, with optional details as in [`always!`].
#[macro_export]
macro_rules! reachable {
    ($name:expr) => { $crate::reachable!($name, "") };
    ($name:expr, $($details:tt)+) => {
        $crate::report($crate::Kind::Reachable, true, $name, file!(), line!(), format_args!($($details)+))
    };
}

/// `unreachable_here!("name")`, with optional details as in [`always!`].
#[macro_export]
macro_rules! unreachable_here {
    ($name:expr) => { $crate::unreachable_here!($name, "") };
    ($name:expr, $($details:tt)+) => {
        $crate::report($crate::Kind::Unreachable, false, $name, file!(), line!(), format_args!($($details)+))
    };
}

/// `mark!("name")`, with optional details as in [`always!`].
#[macro_export]
macro_rules! mark {
    ($name:expr) => { $crate::mark!($name, "") };
    ($name:expr, $($details:tt)+) => {
        $crate::report($crate::Kind::Mark, true, $name, file!(), line!(), format_args!($($details)+))
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_json_object_whatever_the_name() {
        let line = line_of(Kind::Always, false, "a \"b\"\n\\", "x.rs", 3, "");
        assert_eq!(
            line,
            "{\"property\":{\"kind\":\"always\",\"name\":\"a \\\"b\\\"\\u000a\\\\\",\"holds\":false,\
             \"file\":\"x.rs\",\"line\":3,\"details\":\"\"}}\n"
        );
    }
}
