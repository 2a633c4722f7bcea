//! `--engine auto`.

use std::path::Path;

use super::{Report, remembered};
use crate::engine::EngineKind;

/// Which engine, and why in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The engine.
    pub engine: EngineKind,
    /// Why, for the user.
    pub why: String,
    /// The self-test that decided, unless nothing had to be decided.
    pub report: Option<Report>,
}

/// `kvm` where its self-test holds, else `soft`; or what was asked for. Asking for `kvm` where it is refused is an
/// error, whose text says why. `cache` is where the self-test's result is kept.
pub fn choose(asked: Option<EngineKind>, cache: &Path) -> Result<Choice, String> {
    if asked == Some(EngineKind::Soft) {
        return Ok(Choice { engine: EngineKind::Soft, why: "soft, as asked".into(), report: None });
    }
    let report = remembered(cache);
    match report.refused() {
        None => Ok(Choice {
            engine: EngineKind::Kvm,
            why: if asked.is_some() { "kvm, as asked" } else { "kvm: this host's KVM passes the self-test" }
                .into(),
            report: Some(report),
        }),
        Some(line) => {
            let reason = format!(
                "this host's KVM fails the self-test \"{}\": {}",
                line.tests,
                line.failure.as_deref().unwrap_or("unknown")
            );
            match asked {
                Some(_) => Err(format!(
                    "the kvm engine cannot be used: {reason}; {} (see `rewind doctor`)",
                    line.mend
                )),
                None => Ok(Choice {
                    engine: EngineKind::Soft,
                    why: format!("soft: {reason}"),
                    report: Some(report),
                }),
            }
        }
    }
}
