//! The machine: engines behind one trait, guest memory, boot, platform devices, state capture and restore.
//!
//! Knows nothing of runs, traces kept on disk, or schedules: the layers above hand it an image, a job and
//! decisions, and take records and stops.

pub mod address;
pub mod engine;
pub mod memory;
