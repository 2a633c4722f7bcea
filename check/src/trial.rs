//! One schedule's run, boiled down to what properties and the report need.

use rewind_platform::job::OutputHash;
use run::outcome::End;
use serde::{Deserialize, Serialize};

use crate::property::{Assertion, Coverage};

/// A thread that was waiting when the machine stalled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiter {
    /// Thread name.
    pub thread: u64,
    /// Thread id.
    pub tid: u32,
    /// Program.
    pub comm: String,
    /// System call number, -1 if none.
    pub syscall: i64,
    /// The kernel function it sleeps in.
    pub channel: String,
    /// Futex it waits on and the value there (`None` if not resident).
    pub futex: Option<(u64, Option<u64>)>,
}

/// An assertion that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAssertion {
    /// Steps committed when it was reported.
    pub step: u64,
    /// Who reported it.
    pub tid: u32,
    /// What it said.
    pub assertion: Assertion,
}

/// A thread killed by a signal it did not handle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Crash {
    /// Steps committed when it was delivered.
    pub step: u64,
    /// Thread name.
    pub thread: u64,
    /// Thread id.
    pub tid: u32,
    /// Signal number.
    pub signal: i32,
    /// Faulting address, if the signal has one.
    pub address: u64,
    /// User instruction pointer.
    pub ip: u64,
}

/// One thing a program did, for the comparison of two runs: no steps, times, pids or addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    /// Step it belongs to (not compared).
    pub step: u64,
    /// Thread name.
    pub thread: u64,
    /// Thread id (not compared).
    pub tid: u32,
    /// In words.
    pub words: String,
}

/// What one run of the job under some decisions did.
#[derive(Clone, Debug)]
pub struct Trial {
    /// How it ended.
    pub ending: End,
    /// Last step.
    pub steps: u64,
    /// BLAKE3 of everything written to descriptors 1 and 2 of the job, one each.
    pub output: [[u8; 32]; 2],
    /// The first kilobytes of both, in order, for people.
    pub output_text: Vec<u8>,
    /// Declared outputs.
    pub outputs: Vec<OutputHash>,
    /// Assertions that failed.
    pub failed: Vec<FailedAssertion>,
    /// `sometimes` and `reachable` assertions.
    pub coverage: Coverage,
    /// It was cut off, and may have been because a thread of low rank never got its turn: no verdict.
    pub starved: bool,
    /// It was cut off because a thread computed and computed without entering the kernel.
    pub spins: bool,
    /// Fatal signals of any thread of the job, sent by the kernel or itself (not by kill from another process).
    pub crashes: Vec<Crash>,
    /// Who waited, if it stalled.
    pub waiters: Vec<Waiter>,
    /// For each decision, the step before which it was applied; `None` = its place was never reached.
    pub applied: Vec<Option<u64>>,
    /// What the job did, if asked for.
    pub deeds: Vec<Deed>,
}

impl Trial {
    /// First 12 hex digits of a hash over both outputs and the declared ones: equal iff `same-outcome` sees them
    /// equal (ending aside).
    pub fn output_id(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.output[0]);
        hasher.update(&self.output[1]);
        for output in &self.outputs {
            hasher.update(&(output.path.len() as u64).to_le_bytes());
            hasher.update(&output.path);
            hasher.update(&output.hash.map_or([0; 33], |hash| {
                let mut tagged = [1; 33];
                tagged[1..].copy_from_slice(&hash);
                tagged
            }));
        }
        hasher.finalize().to_hex()[..12].to_owned()
    }
}
