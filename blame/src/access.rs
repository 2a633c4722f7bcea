//! One access to the bytes in question.

use serde::{Deserialize, Serialize};
use vmm::address::{Gpa, Position};

/// Ranges up to this size are kept whole with each access; of larger ones, the first bytes accessed.
pub const WHOLE: usize = 64;

/// A thread, for people and for finding it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Program name.
    pub program: String,
    /// Thread name in the creation tree; 0 outside the job.
    pub name: u64,
    /// Address of its task_struct.
    pub task: u64,
}

/// A system call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// Its arguments.
    pub arguments: [u64; 6],
}

/// How the bytes were accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    /// By an instruction of the program.
    Program,
    /// By the kernel at the program's address: for a system call, a signal frame and the like.
    Kernel,
    /// By the kernel at its own address of the page: the page cache, another process's memory.
    KernelPage,
    /// By the image's block device.
    Device,
}

/// A byte the kernel copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Its linear address: the program's, or the kernel's own of a page.
    pub address: u64,
    /// Page-table root in force.
    pub root: Gpa,
    /// Where it was.
    pub gpa: Gpa,
}

/// One access.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Where: before the instruction (see `run::scan`).
    pub position: Position,
    /// A write; else a read.
    pub write: bool,
    /// How.
    pub how: How,
    /// Which thread's work it is.
    pub who: Who,
    /// Instruction: of the program, or of the kernel.
    pub rip: u64,
    /// The system call that thread is in, for what the kernel does.
    pub call: Option<Call>,
    /// Linear address of the first byte accessed, as the accessor has it mapped.
    pub address: u64,
    /// First byte accessed, from the beginning of the range.
    pub offset: u64,
    /// Bytes of the range accessed.
    pub len: u64,
    /// Value before: of the whole range if it has at most [`WHOLE`] bytes, else of the first bytes accessed.
    pub old: Vec<u8>,
    /// Value after.
    pub new: Vec<u8>,
    /// Where the kernel copied the first byte accessed from.
    pub source: Option<Source>,
    /// Line, function and text, where they could be had at once.
    pub place: Option<Place>,
}

/// A place in the program's source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// "bank.c:41"; empty without debug information.
    pub line: String,
    /// Function; empty if unknown.
    pub function: String,
    /// The line's text; empty if the source was not found.
    pub text: String,
    /// What it called that did it: a function of a library ("memcpy"); empty if it did it itself.
    pub inside: String,
    /// The program or library, where there is no line.
    pub module: String,
}
