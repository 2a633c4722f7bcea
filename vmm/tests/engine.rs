//! What every engine must do, tested with micro-guests. One module per subject; every test runs on each engine
//! that is usable on this host (`kvm` in the test bench, `soft` everywhere).

mod common;
mod engine_basic;
mod engine_count;
mod engine_debug;
