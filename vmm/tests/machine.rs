//! The machine over micro-guests: steps, positions, capture, and guests that say impossible things.

mod common;
mod machine_clock;
mod machine_ports;
mod machine_steps;
