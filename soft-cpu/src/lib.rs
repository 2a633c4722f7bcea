//! A software x86-64 CPU for the model `rewind-v2`. Knows registers, instructions and paging; knows nothing
//! of runs, traces or schedules.
//!
//! The host must itself be x86-64 with SSE4.2 (x86-64-v2): SSE, x87 and undefined-flag semantics come from
//! executing the same operation on the host where that is exact.

mod access;
mod block;
mod control_registers;
pub mod cpu;
mod decode;
mod event;
mod exec;
mod fault;
mod flags;
pub mod fp;
mod handler;
mod hot;
mod insn;
mod jit;
mod lower;
mod marks;
pub mod memory;
mod paging;
mod run;
pub mod state;
mod tlb;
mod watch;

pub use cpu::{Counts, Cpu, CpuidLeaf, Exit, Limits, OutsideModel};
pub use jit::Compile;
pub use memory::Region;
pub use watch::{Accessed, Kind, Stream, Watch, WatchHit, WatchRange};
