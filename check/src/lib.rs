//! Finds the thread schedule that breaks a program, narrows it to the decisions that matter, and says why.

pub mod base;
pub mod code_place;
pub mod commit_place;
mod crash;
pub mod decision;
pub mod describe;
pub mod difference;
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
pub mod stops;
pub mod strategy;
pub mod stuck;
pub mod trial;
pub mod verdict;
