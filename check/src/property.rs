//! What guest programs say about themselves: assertions and marks, one JSON line each.
//!
//! Two forms are read: the project's own (`sdk/`), and that of the Antithesis SDKs' local fallback
//! (`antithesis_assert`, as their public SDK documentation gives it).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an assertion demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AssertionKind {
    /// Holds each time.
    Always,
    /// Holds at least once over all schedules.
    Sometimes,
    /// Reached at least once over all schedules.
    Reachable,
    /// Never reached.
    Unreachable,
}

impl AssertionKind {
    /// As the user wrote it.
    pub fn name(self) -> &'static str {
        match self {
            AssertionKind::Always => "always",
            AssertionKind::Sometimes => "sometimes",
            AssertionKind::Reachable => "reachable",
            AssertionKind::Unreachable => "unreachable",
        }
    }
}

/// One assertion as reported by a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assertion {
    /// What it demands.
    pub kind: AssertionKind,
    /// Its name.
    pub name: String,
    /// The line was reached (false for an entry that only declares that the line exists).
    pub hit: bool,
    /// The condition held.
    pub holds: bool,
    /// It must be reached in some schedule.
    pub must_hit: bool,
    /// `file:line`, if given.
    pub place: String,
    /// Details as text.
    pub details: String,
}

impl Assertion {
    /// Was it reached and violated? (`sometimes` and `reachable` only fail over all schedules.)
    pub fn fails(&self) -> bool {
        self.hit
            && match self.kind {
                AssertionKind::Always => !self.holds,
                AssertionKind::Unreachable => true,
                AssertionKind::Sometimes | AssertionKind::Reachable => false,
            }
    }
}

/// Reads one line from `/dev/rewind`. `None` if it is not an assertion (a mark, another key, not JSON): such
/// lines stay in the trace and demand nothing.
pub fn parse(line: &[u8]) -> Option<Assertion> {
    let value: Value = serde_json::from_slice(line).ok()?;
    if let Some(own) = value.get("property") {
        let kind = match own.get("kind")?.as_str()? {
            "always" => AssertionKind::Always,
            "sometimes" => AssertionKind::Sometimes,
            "reachable" => AssertionKind::Reachable,
            "unreachable" => AssertionKind::Unreachable,
            _ => return None,
        };
        let place = place(own.get("file"), own.get("line"));
        return Some(Assertion {
            kind,
            name: own.get("name")?.as_str()?.to_owned(),
            hit: true,
            holds: own.get("holds").and_then(Value::as_bool).unwrap_or(kind != AssertionKind::Unreachable),
            must_hit: matches!(kind, AssertionKind::Sometimes | AssertionKind::Reachable),
            place,
            details: text(own.get("details")),
        });
    }
    let theirs = value.get("antithesis_assert")?;
    let condition = theirs.get("condition").and_then(Value::as_bool).unwrap_or(false);
    let must_hit = theirs.get("must_hit").and_then(Value::as_bool).unwrap_or(false);
    let kind = match theirs.get("assert_type")?.as_str()? {
        "always" => AssertionKind::Always,
        "sometimes" => AssertionKind::Sometimes,
        "reachability" if must_hit => AssertionKind::Reachable,
        "reachability" => AssertionKind::Unreachable,
        _ => return None,
    };
    let location = theirs.get("location");
    let field = |name: &str| location.and_then(|location| location.get(name));
    Some(Assertion {
        kind,
        name: theirs.get("message").or(theirs.get("id"))?.as_str()?.to_owned(),
        hit: theirs.get("hit").and_then(Value::as_bool).unwrap_or(true),
        holds: condition && kind != AssertionKind::Unreachable,
        must_hit,
        place: place(field("file"), field("begin_line")),
        details: text(theirs.get("details")),
    })
}

fn place(file: Option<&Value>, line: Option<&Value>) -> String {
    match (file.and_then(Value::as_str), line.and_then(Value::as_u64)) {
        (Some(file), Some(line)) => format!("{file}:{line}"),
        (Some(file), None) => file.to_owned(),
        _ => String::new(),
    }
}

fn text(details: Option<&Value>) -> String {
    match details {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Object(map)) if map.is_empty() => String::new(),
        Some(other) => other.to_string(),
    }
}

/// Which `sometimes` and `reachable` assertions exist, and whether any schedule satisfied them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    seen: BTreeMap<(AssertionKind, String), bool>,
}

impl Coverage {
    /// Notes one assertion.
    pub fn note(&mut self, assertion: &Assertion) {
        if assertion.must_hit {
            let satisfied = assertion.hit && (assertion.holds || assertion.kind != AssertionKind::Sometimes);
            *self.seen.entry((assertion.kind, assertion.name.clone())).or_default() |= satisfied;
        }
    }

    /// Adds what another schedule saw.
    pub fn merge(&mut self, other: &Coverage) {
        for (key, satisfied) in &other.seen {
            *self.seen.entry(key.clone()).or_default() |= satisfied;
        }
    }

    /// Those no schedule satisfied.
    pub fn missing(&self) -> Vec<(AssertionKind, String)> {
        self.seen.iter().filter(|(_, satisfied)| !**satisfied).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_antithesis_forms() {
        let own = parse(
            br#"{"property":{"kind":"always","name":"b","holds":false,"file":"a.c","line":7,"details":"x"}}"#,
        );
        let own = own.unwrap();
        assert_eq!((own.kind, own.holds, own.place.as_str()), (AssertionKind::Always, false, "a.c:7"));
        let theirs = parse(
            br#"{"antithesis_assert":{"hit":false,"must_hit":true,"assert_type":"reachability","message":"m","condition":true,"location":{"file":"f.go","begin_line":3}}}"#,
        )
        .unwrap();
        assert_eq!(
            (theirs.kind, theirs.hit, theirs.place.as_str()),
            (AssertionKind::Reachable, false, "f.go:3")
        );
        assert_eq!(parse(b"{\"mark\":{\"name\":\"x\"}}"), None);
        assert_eq!(parse(b"\xff{"), None);
    }

    #[test]
    fn sometimes_is_missing_until_it_held_once() {
        let mut coverage = Coverage::default();
        let line =
            |holds: bool| format!(r#"{{"property":{{"kind":"sometimes","name":"hit","holds":{holds}}}}}"#);
        coverage.note(&parse(line(false).as_bytes()).unwrap());
        assert_eq!(coverage.missing(), [(AssertionKind::Sometimes, "hit".to_owned())]);
        let mut other = Coverage::default();
        other.note(&parse(line(true).as_bytes()).unwrap());
        coverage.merge(&other);
        assert!(coverage.missing().is_empty());
    }
}
