//! A software x86-64 CPU for the model `rewind-v2`. Knows registers, instructions and paging; knows nothing
//! of runs, traces or schedules.
//!
//! The host must itself be x86-64 with SSE4.2 (x86-64-v2): SSE, x87 and undefined-flag semantics come from
//! executing the same operation on the host where that is exact.

pub mod fp;
pub mod state;
