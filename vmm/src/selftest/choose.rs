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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest::checks;

    fn line(name: &str, essential: bool, failure: Option<&str>) -> Line {
        Line {
            name: name.into(),
            tests: "something holds".into(),
            essential,
            failure: failure.map(Into::into),
            means: String::new(),
            mend: String::new(),
        }
    }

    #[test]
    fn kvm_is_taken_only_where_everything_essential_holds() {
        let good = Report {
            lines: vec![line("opens", true, None), line("data-watch", false, Some("it does not stop"))],
        };
        assert_eq!(decide(&good).engine, EngineKind::Kvm);
        let bad =
            Report { lines: vec![line("opens", true, None), line("tsd", true, Some("exception 6 instead"))] };
        let choice = decide(&bad);
        assert_eq!(choice.engine, EngineKind::Soft);
        assert_eq!(choice.why, "soft: this host's KVM fails \"something holds\" (exception 6 instead)");
    }

    #[test]
    fn a_kvm_that_does_not_open_is_said_with_its_remedy() {
        for (failure, remedy) in [
            ("cannot open /dev/kvm: Permission denied (os error 13)", "usermod -aG kvm"),
            ("cannot open /dev/kvm: No such file or directory (os error 2)", "modprobe kvm"),
            ("cannot create a KVM machine: Device or resource busy (os error 16)", "newer host kernel"),
        ] {
            let line = checks::opened(Some(failure.into()));
            assert!(line.essential && line.mend.contains(remedy), "{line:?}");
            let choice = decide(&Report { lines: vec![line] });
            assert_eq!((choice.engine, choice.why), (EngineKind::Soft, format!("soft: {failure}")));
        }
    }
}
