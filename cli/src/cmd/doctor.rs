//! `rewind doctor`: what this host can do, and what that means for the user.

use std::{path::Path, process::ExitCode};

use anyhow::Result;
use run::home::Home;
use serde_json::json;
use vmm::selftest::{self, Report};

use crate::{guest, output};

/// Free space below which recording is in danger: a run's keyframes and boot images are of this order.
const SPACE_WANTED: u64 = 2 << 30;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Test again instead of showing what was found since the host booted
    #[arg(long)]
    again: bool,
    /// One JSON object per line of the table
    #[arg(long)]
    json: bool,
}

/// A line of the table.
struct Line {
    name: String,
    tests: String,
    state: State,
    found: String,
    means: String,
    mend: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ok,
    /// Something is slower or missing; everything works.
    Note,
    /// Rewind cannot work.
    Bad,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Bad => "bad",
        }
    }
}

pub(crate) fn run(args: Args) -> Result<ExitCode> {
    let home = Home::default_path();
    let cache = home.as_ref().ok().map(|path| path.join("cache"));
    // First, since a new home must be empty when it is made.
    let home_line = home_line(home.as_deref().map_err(ToString::to_string));
    let report = match &cache {
        Some(cache) if !args.again => selftest::remembered(cache),
        _ => selftest::run(),
    };
    let mut lines = vec![guest_line(), home_line];
    if let Ok(path) = &home {
        lines.push(space_line(path));
    }
    lines.extend(kvm_lines(&report));
    lines.push(numbers_line());
    lines.push(engine_line(&report));
    for line in &lines {
        show(line, args.json)?;
    }
    let bad = lines.iter().any(|line| line.state == State::Bad);
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn show(line: &Line, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&json!({
            "name": line.name, "tests": line.tests, "state": line.state.name(), "found": line.found,
            "means": line.means, "mend": line.mend,
        }));
    }
    output::line(format_args!("{:<4}  {:<16} {}", line.state.name(), line.name, line.tests))?;
    let indent = |what: &str, text: &str| match text {
        "" => Ok(()),
        text => output::line(format_args!("{:23}{what}{text}", "")),
    };
    indent("", &line.found)?;
    if line.state != State::Ok {
        indent("so: ", &line.means)?;
        indent("to mend: ", &line.mend)?;
    }
    Ok(())
}

fn guest_line() -> Line {
    let (state, found) = match guest::found() {
        Ok(dir) => (State::Ok, format!("{} (platform {})", dir.display(), rewind_platform::PLATFORM_VERSION)),
        Err(error) => (State::Bad, format!("{error:#}")),
    };
    Line {
        name: "guest".into(),
        tests: "the guest kernel and init are there, of this platform version".into(),
        state,
        found,
        means: "nothing can be run".into(),
        mend: "run `make build` in the checkout, or set REWIND_GUEST to a folder with vmlinux and initramfs.cpio"
            .into(),
    }
}

fn home_line(path: Result<&Path, String>) -> Line {
    let opened = path.and_then(|path| {
        Home::open(path).map_err(|error| error.to_string())?;
        // Opening a home for reading succeeds where it cannot be written.
        let probe = path.join(format!("doctor.{}", std::process::id()));
        std::fs::write(&probe, b"")
            .and_then(|()| std::fs::remove_file(&probe))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path.display().to_string())
    });
    let (state, found) = match opened {
        Ok(path) => (State::Ok, path),
        Err(error) => (State::Bad, error),
    };
    Line {
        name: "home".into(),
        tests: "the home directory can be written".into(),
        state,
        found,
        means: "runs cannot be recorded".into(),
        mend: "set REWIND_HOME to a directory you can write".into(),
    }
}

fn space_line(path: &Path) -> Line {
    let (state, found) = match rustix::fs::statvfs(path) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            (
                if free >= SPACE_WANTED { State::Ok } else { State::Note },
                format!("{} free", output::bytes(free)),
            )
        }
        Err(error) => (State::Note, format!("{}: {error}", path.display())),
    };
    Line {
        name: "space".into(),
        tests: "the home directory's disk has room".into(),
        state,
        found,
        means: "recordings may stop for want of space".into(),
        mend: "`rewind gc` gives back what no run needs; or set REWIND_HOME to another disk".into(),
    }
}

fn kvm_lines(report: &Report) -> Vec<Line> {
    let line = |line: &selftest::Line| Line {
        name: format!("kvm {}", line.name),
        tests: line.tests.clone(),
        state: if line.failure.is_none() { State::Ok } else { State::Note },
        found: line.failure.clone().unwrap_or_default(),
        means: line.means.clone(),
        mend: line.mend.clone(),
    };
    report.lines.iter().map(line).collect()
}

/// Which CPUs give the same numbers.
fn numbers_line() -> Line {
    let (state, found) = match selftest::fingerprint() {
        Ok(fingerprint) => (State::Ok, format!("fingerprint {fingerprint}")),
        Err(error) => (State::Note, error.to_string()),
    };
    Line {
        name: "numbers".into(),
        tests:
            "what this CPU answers where the architecture leaves it open (RCP, RSQRT, x87 functions, flags)"
                .into(),
        state,
        found,
        means: "it is not known which other hosts give the same numbers".into(),
        mend: "allow programs of this user to make memory executable".into(),
    }
}

fn engine_line(report: &Report) -> Line {
    let choice = selftest::decide(report);
    Line {
        name: "engine".into(),
        tests: "what --engine auto takes".into(),
        state: State::Ok,
        found: choice.why,
        means: String::new(),
        mend: String::new(),
    }
}
