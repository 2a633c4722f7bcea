//! Meaning: what the bytes of a stopped guest are. Reads from outside; never changes the guest.

pub mod cfi;
pub mod dwarf;
pub mod expr;
pub mod files;
pub mod gather;
pub mod gdb;
pub mod kernel;
pub mod look;
pub mod maps;
pub mod module;
pub mod modules;
pub mod process;
mod sections;
pub mod separate;
pub mod sources;
pub mod steps;
pub mod symbols;
pub mod travel;
pub mod unwind;
pub mod wait;
