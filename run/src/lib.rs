//! Runs: spec, trace, page store, keyframes, record, replay, seek, fork, export, import, gc.
//!
//! A run is a pure function of its spec. Nothing stored here depends on host time, map order or where the home
//! is; `recording` files alone say how and on what a run was recorded.

pub mod archive;
pub mod boot;
pub mod clock;
pub mod decision;
pub mod describe;
pub mod diff;
pub mod durable;
pub mod ending;
pub mod envelope;
pub mod error;
pub mod gc;
pub mod home;
pub mod id;
pub mod input;
pub mod kept;
pub mod keyframe;
pub mod list;
pub mod origin;
pub mod outcome;
pub mod processes;
pub mod record;
pub mod replay;
pub mod root;
pub mod scan;
pub mod seek;
pub mod spec;
pub mod stage;
pub mod store;
pub mod trace;
pub mod verify;

#[cfg(test)]
mod testing;
