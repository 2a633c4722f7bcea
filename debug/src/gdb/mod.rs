//! A gdb server over a run: the `gdbstub` crate speaks the protocol, [`crate::travel`] moves.

mod files;
mod front;
mod linker;
mod monitor;
pub mod registers;
mod session;
mod signals;
mod target;
mod tls;

pub use front::{ServeError, serve};
pub use session::{Program, Session};
