//! `--engine auto`.

use std::path::Path;

use super::{Line, Report, remembered};
use crate::engine::EngineKind;

/// Which engine, and why in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: EngineKind,
    /// Why, for the user.
    pub why: String,
}

/// `kvm` where its self-test holds, else `soft`; or what was asked for. Asking for `kvm` where it is refused is an
/// error, whose text says why. `cache` is where the self-test's result is kept.
pub fn choose(asked: Option<EngineKind>, cache: &Path) -> Result<Choice, String> {
    if asked == Some(EngineKind::Soft) {
        return Ok(Choice { engine: EngineKind::Soft, why: "soft: asked for".into() });
    }
    let report = remembered(cache);
    match report.refused() {
        Some(line) if asked == Some(EngineKind::Kvm) => Err(format!(
            "the kvm engine cannot be used: {}; {} (see `rewind doctor`)",
            reason(line),
            line.mend
        )),
        _ => Ok(decide(&report)),
    }
}

/// What a self-test's result means for the choice.
pub fn decide(report: &Report) -> Choice {
    match report.refused() {
        None => Choice { engine: EngineKind::Kvm, why: "kvm: this host's KVM passes the self-test".into() },
        Some(line) => Choice { engine: EngineKind::Soft, why: format!("soft: {}", reason(line)) },
    }
}

fn reason(line: &Line) -> String {
    let seen = line.failure.as_deref().unwrap_or("unknown");
    match line.name.as_str() {
        "opens" => seen.to_owned(),
        _ => format!("this host's KVM fails \"{}\" ({seen})", line.tests),
    }
}
