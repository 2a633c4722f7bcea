//! What can go wrong inside.

use run::error::StageError;

/// Why something could not be done inside the throw-away fork.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsideError {
    /// The machine or the run.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The guest's kernel could not be read.
    #[error(transparent)]
    Read(#[from] debug::kernel::ReadError),
    /// No thread runs user code there, nor soon after.
    #[error("nothing can be started inside the guest at step {0}: no program runs there; take a later step")]
    Nobody(u64),
    /// The guest ended meanwhile.
    #[error("the machine ended while something was done inside: {0}")]
    Ended(String),
    /// The guest's kernel refused a system call.
    #[error("{what}: {}", in_words(*.errno))]
    Refused {
        /// What was asked.
        what: String,
        /// The kernel's error number.
        errno: i32,
    },
    /// A file of a kind that has no content.
    #[error("{path} is {what}")]
    Kind {
        /// The file.
        path: String,
        /// What it is.
        what: &'static str,
    },
    /// No such program.
    #[error("no program {0} in the guest: give one of the root's after --")]
    NoProgram(String),
    /// The host's end of a shell.
    #[error("cannot {what}: {source}")]
    Host {
        /// What was being done.
        what: &'static str,
        /// The host's error.
        source: std::io::Error,
    },
}

impl From<vmm::MachineError> for InsideError {
    fn from(error: vmm::MachineError) -> Self {
        InsideError::Stage(error.into())
    }
}

impl From<vmm::memory::MemoryError> for InsideError {
    fn from(error: vmm::memory::MemoryError) -> Self {
        InsideError::Stage(error.into())
    }
}

/// An error number of the guest in words; the host's are the same (both are x86-64 Linux).
fn in_words(number: i32) -> String {
    let text = std::io::Error::from_raw_os_error(number).to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}
