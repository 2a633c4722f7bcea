//! Finds the thread schedule that breaks a program, narrows it to the decisions that matter, and says why.

pub mod base;
pub mod decision;
pub mod describe;
pub mod facts;
pub mod learn;
pub mod narrow;
mod observe;
pub mod pool;
pub mod property;
pub mod report;
mod rng;
pub mod schedule_file;
pub mod search;
pub mod strategy;
pub mod trial;
pub mod verdict;
