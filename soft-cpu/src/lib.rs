//! A software x86-64 CPU for the model `rewind-v2`. Knows registers, instructions and paging; knows nothing
//! of runs, traces or schedules.
//!
//! The host must itself be x86-64 with SSE4.2 (x86-64-v2): SSE, x87 and undefined-flag semantics come from
//! executing the same operation on the host where that is exact.

mod access;
#[allow(dead_code, reason = "the fast forms use it")]
mod block;
pub mod cpu;
mod decode;
mod event;
mod exec;
mod fault;
mod flags;
pub mod fp;
#[allow(dead_code, unused_imports, reason = "the fast forms use it")]
mod handler;
#[allow(dead_code, reason = "filled in step by step")]
mod hot;
#[allow(dead_code, reason = "the fast forms use it")]
mod insn;
mod lower;
pub mod memory;
mod run;
pub mod state;
mod tlb;
mod watch;

pub use cpu::{Counts, Cpu, CpuidLeaf, Exit, Limits};
pub use memory::Region;
pub use watch::{Accessed, Kind, Stream, Watch, WatchHit, WatchRange};
