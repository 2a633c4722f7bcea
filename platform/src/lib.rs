//! The guest/monitor contract ("the platform"), as constants and plain data.
//!
//! Both sides implement this page: the guest kernel through `guest-kernel/abi/rewind_abi.h`, the monitor
//! and guest init through this crate. A test compares the two, name by name. Any change of meaning
//! increments [`PLATFORM_VERSION`], which is part of every spec.
#![no_std]
extern crate alloc;

pub mod control;
pub mod device;
pub mod job;
pub mod layout;
pub mod port;
pub mod record;
pub mod state;

/// Version of everything in this crate. A monitor and a kernel of different versions refuse each other.
pub const PLATFORM_VERSION: u32 = 2;
