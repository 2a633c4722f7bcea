//! The machine: engines behind one trait, guest memory, boot, platform devices, state capture and restore.
//!
//! Knows nothing of runs, traces kept on disk, or schedules: the layers above hand it an image, a job and
//! decisions, and take records and stops.

pub mod address;
pub mod block;
pub mod boot;
pub mod cpu_model;
pub mod engine;
mod kvm;
pub mod machine;
pub mod memory;
pub mod micro;
mod ring;
pub mod selftest;
pub mod soft;

pub use block::BlockImage;
pub use boot::KernelFiles;
pub use engine::EngineKind;
pub use machine::{
    Clock, EndReason, GuestFault, Interrupter, Machine, MachineConfig, MachineError, MachineState,
    RecordSink, RunParameters, Stop, Until,
};
