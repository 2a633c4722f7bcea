//! Runs: spec, trace, page store, keyframes, record, replay, seek, fork, export, import, gc.
//!
//! A run is a pure function of its spec. Nothing stored here depends on host time, map order or where the home
//! is; `recording` files alone say how and on what a run was recorded.

pub mod decision;
pub mod durable;
pub mod envelope;
pub mod gc;
pub mod home;
pub mod id;
pub mod input;
pub mod keyframe;
pub mod list;
pub mod outcome;
pub mod spec;
pub mod store;
pub mod trace;

#[cfg(test)]
mod testing;
