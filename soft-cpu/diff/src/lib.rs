//! Tests of the software CPU against the host CPU it runs on.
//!
//! [`generate`] makes cases, [`native`] runs them on the host in a child process, and [`drive`] compares.

pub mod case;
pub mod compare;
pub mod convert;
pub mod drive;
pub mod fuzz;
pub mod generate;
pub mod layout;
pub mod native;
pub mod soft;
pub mod values;
