//! Who wrote a value, and who read it: watches over windows of a recorded run, searched backward.
//!
//! The history of a byte of a process is the history of the page frames it has lived in: it is watched by its
//! physical address, so that writes of the kernel and of other processes that share the page are seen, and followed
//! from a frame to the one it was copied from (copy on write).

pub mod access;
pub mod cache;
mod current;
pub mod error;
pub mod file;
pub mod follow;
pub mod gather;
pub mod heap;
mod kernel_copy;
pub mod names;
pub mod piece;
pub mod plot;
pub mod report;
pub mod reread;
pub mod scope;
pub mod search;
pub mod slice;
pub mod target;
pub mod text;
