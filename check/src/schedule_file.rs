//! A failing schedule as a file, for a regression test (`rewind check --save`, `--replay`).
//!
//! Threads are named by their path in the creation tree, places by the thread's own progress, so the file
//! survives a recompile as long as the places exist.

use serde::{Deserialize, Serialize};

use crate::{
    code_place::CodePlace,
    commit_place::CommitPlace,
    decision::{Action, Decision, Place},
    facts,
};

/// Version of the file's form.
pub const VERSION: u32 = 1;

/// The file, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleFile {
    /// Always "rewind schedule".
    pub format: String,
    /// [`VERSION`].
    pub version: u32,
    /// Properties the schedule violated when it was saved.
    pub violates: Vec<String>,
    /// The decisions.
    pub decisions: Vec<SavedDecision>,
}

/// One decision of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedDecision {
    /// Path of the thread in the creation tree, as "0.2".
    pub thread: String,
    /// Its own system call number.
    pub syscall: u64,
    /// Its commits since.
    pub returns: u32,
    /// Which commit of the thread that is, by call and function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<CommitPlace>,
    /// User instructions after that commit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u64,
    /// The code there, for a place inside a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<CodePlace>,
    /// What happens there.
    pub action: Action,
    /// Where that was when it was saved, for people; not read back.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub was: String,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// Not JSON of this form.
    #[error("not a schedule file of `rewind check --save`: {0}")]
    Form(#[from] serde_json::Error),
    /// Some other file.
    #[error("not a schedule file of `rewind check --save` (its \"format\" is {0:?})")]
    Format(String),
    /// Made by another version.
    #[error("schedule file of version {found}, this program reads version {VERSION}: save it again")]
    Version {
        /// What the file says.
        found: u32,
    },
    /// A thread that is no path.
    #[error("decision {number}: {thread:?} is not a thread path such as \"0.2\"")]
    Thread {
        /// Which decision, from 1.
        number: usize,
        /// What stands there.
        thread: String,
    },
}

impl ScheduleFile {
    /// Of decisions, each with its commit, its code and its words, in the order in which they are applied.
    pub fn new(
        decisions: &[(Decision, Option<CommitPlace>, Option<CodePlace>, String)],
        violates: Vec<String>,
        path: impl Fn(u64) -> Option<String>,
    ) -> Option<Self> {
        let decisions = decisions
            .iter()
            .map(|(decision, commit, code, was)| {
                Some(SavedDecision {
                    thread: path(decision.place.thread)?,
                    syscall: decision.place.syscall,
                    returns: decision.place.returns,
                    commit: commit.clone(),
                    offset: decision.place.offset,
                    code: code.clone(),
                    action: decision.action,
                    was: was.clone(),
                })
            })
            .collect::<Option<_>>()?;
        Some(ScheduleFile { format: "rewind schedule".into(), version: VERSION, violates, decisions })
    }

    /// Reads a file's text.
    pub fn parse(text: &[u8]) -> Result<Self, FileError> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            format: String,
            #[serde(default)]
            version: u32,
        }
        let head: Head = serde_json::from_slice(text)?;
        if head.format != "rewind schedule" {
            return Err(FileError::Format(head.format));
        }
        if head.version != VERSION {
            return Err(FileError::Version { found: head.version });
        }
        Ok(serde_json::from_slice(text)?)
    }

    /// The decisions by thread name.
    pub fn decisions(&self) -> Result<Vec<Decision>, FileError> {
        let decision = |(i, saved): (usize, &SavedDecision)| {
            let thread = facts::name_of_path(&saved.thread)
                .ok_or_else(|| FileError::Thread { number: i + 1, thread: saved.thread.clone() })?;
            let place =
                Place { thread, syscall: saved.syscall, returns: saved.returns, offset: saved.offset };
            Ok(Decision { place, action: saved.action })
        };
        self.decisions.iter().enumerate().map(decision).collect()
    }

    /// The text to write.
    pub fn to_text(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain data has a JSON form");
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use rewind_platform::control::{THREAD_ROOT, thread_name};

    use super::*;

    #[test]
    fn survives_a_round_trip_and_refuses_other_files() {
        let place = Place { thread: thread_name(THREAD_ROOT, 2), syscall: 17, returns: 1, offset: 3 };
        let decisions = [Decision { place, action: Action::Stall(5) }];
        let code = CodePlace { function: "teller".into(), line: "bank.c:38".into(), visit: 2, after: 1 };
        let commit = CommitPlace { call: "write".into(), function: "print".into(), visit: 3 };
        let saved = [(decisions[0], Some(commit), Some(code), "x".to_owned())];
        let file = ScheduleFile::new(&saved, vec!["sdk".into()], |_| Some("0.2".into())).unwrap();
        let again = ScheduleFile::parse(file.to_text().as_bytes()).unwrap();
        assert_eq!(again.decisions().unwrap(), decisions);
        assert!(matches!(ScheduleFile::parse(b"{}"), Err(FileError::Format(_))));
        assert!(matches!(ScheduleFile::parse(b"[1"), Err(FileError::Form(_))));
        let newer = file.to_text().replace("\"version\": 1", "\"version\": 9");
        assert!(matches!(ScheduleFile::parse(newer.as_bytes()), Err(FileError::Version { found: 9 })));
    }
}
