//! Answers kept with the run: asking again is instant.
//!
//! A run never changes, so an answer holds as long as the program that gave it and the question are the same. Debug
//! information and sources are not part of the run: their absence then is kept as it was.

use run::{durable, home::RunDir};

use crate::report::Report;

/// Changes with everything that changes answers.
const VERSION: u32 = 2;
/// Answers larger than this are not kept.
const MOST_BYTES: usize = 16 << 20;

/// Where the answer to a question is kept.
fn path(run: &RunDir, question: &str) -> std::path::PathBuf {
    let name = blake3::derive_key("rewind blame question 1", question.as_bytes());
    let hex: String = name.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    run.path().join("blame").join(format!("{hex}.json"))
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Kept {
    version: u32,
    question: String,
    report: Report,
}

/// The answer, if this question was asked before.
pub fn get(run: &RunDir, question: &str) -> Option<Report> {
    let bytes = std::fs::read(path(run, question)).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.version == VERSION && kept.question == question).then_some(kept.report)
}

/// Keeps an answer. One that cannot be kept is found again next time.
pub fn put(run: &RunDir, question: &str, report: &Report) -> Result<(), durable::WriteError> {
    let kept = Kept { version: VERSION, question: question.to_owned(), report: report.clone() };
    let Ok(bytes) = serde_json::to_vec(&kept) else { return Ok(()) };
    if bytes.len() > MOST_BYTES {
        return Ok(());
    }
    let path = path(run, question);
    if let Some(dir) = path.parent().filter(|dir| !dir.is_dir()) {
        durable::create_dir(dir)?;
    }
    durable::replace(&path, &bytes)
}
