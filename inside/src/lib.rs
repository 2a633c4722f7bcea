//! Running things inside a throw-away fork of a run: system calls of our own, reading files, a shell.
//!
//! The machine stands at a position of the run. The thread that is about to run user code there is made to call
//! `clone(CLONE_VFORK)`, so that it stands still in the kernel while its child lives; the child, the *servant*, makes the
//! system calls asked of it, one after the other, by having its saved user registers changed at each commit to user mode.
//! All other threads of the job get a worse rank and are stopped. The guest needs nothing for this: no device, no program
//! of ours, no entry in its image; and what it sees is what the job sees, its root, its user and its working directory.
//!
//! Nothing of it goes into the run: the machine is thrown away, or put back by the next seek.

mod error;
mod file;
mod regs;
mod servant;
mod session;

pub use error::InsideError;
pub use file::{FileKind, Metadata};
pub use servant::Servant;
pub use session::{Ended, Host, Program, run};
