//! Why a question cannot be answered.

use debug::{
    expr::{EvalError, ParseError},
    kernel::ReadError,
};
use run::error::StageError;
use vmm::address::Position;

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlameError {
    /// The expression is not one.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// It has no place.
    #[error(transparent)]
    Eval(EvalError),
    /// Nothing is called so.
    #[error("no variable {name} is in scope {place}, and no global has that name{}", near_text(near))]
    Unknown {
        /// The name.
        name: String,
        /// "at bank.c:41 (teller)".
        place: String,
        /// Names much like it.
        near: Vec<String>,
    },
    /// A local of a function the thread is not in.
    #[error(
        "{name} is a local of {}; thread {tid} is not there, or not in the block that has it, at {at}{}",
        functions.join(", "),
        if threads.is_empty() { String::new() } else { format!(": ask for it with --tid {}", threads.join(" or --tid ")) }
    )]
    OutOfScope {
        /// The name.
        name: String,
        /// Functions that have such a local.
        functions: Vec<String>,
        /// The thread asked.
        tid: u32,
        /// Where.
        at: Position,
        /// Threads that are in one of them.
        threads: Vec<String>,
    },
    /// In no memory.
    #[error(
        "{what} is not in memory {place} but in a register (its value is {value}): ask for what it was computed \
         from, or at a position where it is in memory"
    )]
    NotMemory {
        /// The expression.
        what: String,
        /// Where.
        place: String,
        /// Its value.
        value: String,
    },
    /// A value, not a place.
    #[error("{what} is a value ({value}), not a place in memory: ask for *{what}, or @ADDRESS,SIZE")]
    NoPlace {
        /// The expression.
        what: String,
        /// Its value.
        value: String,
    },
    /// Nothing is mapped there.
    #[error("{what}: address {address:#x} is not mapped in process {pid} at {at}")]
    Unmapped {
        /// The expression.
        what: String,
        /// The first byte that is not there.
        address: u64,
        /// The process.
        pid: u32,
        /// Where.
        at: Position,
    },
    /// It is mapped, but nothing was ever there.
    #[error(
        "{what}: address {address:#x} of process {pid} is mapped, but had not been used yet at {at}: it reads as {reads}"
    )]
    NeverUsed {
        /// The expression.
        what: String,
        /// The first byte that is not there.
        address: u64,
        /// The process.
        pid: u32,
        /// Where.
        at: Position,
        /// "zero", or the file's content.
        reads: String,
    },
    /// That process or thread is not there.
    #[error("{what} is not alive at {at}{}", alive_text(alive))]
    NotAlive {
        /// "process 140", "the job".
        what: String,
        /// Where.
        at: Position,
        /// Those that are, "139 (bank)".
        alive: Vec<String>,
    },
    /// An engine that sees no accesses was asked for a file.
    #[error("on kvm only a process's memory can be asked about: leave out --engine")]
    OnlyMemory,
    /// No such file.
    #[error("{path}: {why}")]
    File {
        /// The path inside the guest.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// The machine.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The guest's kernel.
    #[error("the guest's kernel cannot be read: {0}")]
    Read(#[from] ReadError),
}

fn near_text(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

fn alive_text(alive: &[String]) -> String {
    if alive.is_empty() {
        "; nothing is: ask about a step at which it was, such as @crash (`rewind ps RUN --all` has when each ended)".into()
    } else {
        format!("; alive are {}", alive.join(", "))
    }
}

impl From<vmm::MachineError> for BlameError {
    fn from(error: vmm::MachineError) -> Self {
        BlameError::Stage(error.into())
    }
}
