//! What the unperturbed run (schedule 0) taught: its threads and its scheduling points.

use std::collections::BTreeMap;

use crate::decision::Place;

/// A thread of the job in the base run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadFacts {
    /// Name: a hash of its place in the creation tree.
    pub name: u64,
    /// Parent's name; 0 for the job's first.
    pub parent: u64,
    /// It is its parent's n-th clone; 0 for the job's first.
    pub nth: u64,
    /// Thread id (display only).
    pub tid: u32,
    /// Process id (display only).
    pub pid: u32,
    /// Scheduling points it has.
    pub points: u64,
}

/// One scheduling point: a commit of a thread of the job while another one could have run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The step that was committed.
    pub step: u64,
    /// Where, with offset 0.
    pub place: Place,
}

/// One access to a location that two threads share, at least one of them writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedAccess {
    /// Place of the accessing instruction (its offset is the instructions retired before it).
    pub place: Place,
    /// First byte, guest-virtual.
    pub address: u64,
    /// It writes.
    pub write: bool,
}

/// Everything strategies may know.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Threads in order of first appearance.
    pub threads: Vec<ThreadFacts>,
    /// Scheduling points in order.
    pub points: Vec<Point>,
    /// Accesses to shared locations, in order; only gathered for the strategy that wants them.
    pub accesses: Vec<SharedAccess>,
}

impl Facts {
    /// n: threads that have a scheduling point.
    pub fn thread_count(&self) -> u64 {
        self.threads.iter().filter(|thread| thread.points > 0).count() as u64
    }

    /// k: scheduling points.
    pub fn point_count(&self) -> u64 {
        self.points.len() as u64
    }

    /// Tree path of a thread, "0" for the job's first process, "0.2" for its second clone.
    pub fn path(&self, name: u64) -> Option<String> {
        path(&self.threads.iter().map(|t| (t.name, (t.parent, t.nth))).collect(), name)
    }
}

/// Tree path of `name` given each thread's (parent, n).
pub fn path(tree: &BTreeMap<u64, (u64, u64)>, name: u64) -> Option<String> {
    let mut parts = Vec::new();
    let mut at = name;
    while at != rewind_platform::control::THREAD_ROOT {
        let (parent, nth) = tree.get(&at)?;
        if parts.len() > tree.len() {
            return None;
        }
        parts.push(nth.to_string());
        at = *parent;
    }
    parts.push("0".into());
    parts.reverse();
    Some(parts.join("."))
}

/// The name a tree path stands for; `None` if it is not one.
pub fn name_of_path(path: &str) -> Option<u64> {
    let mut parts = path.split('.');
    if parts.next()? != "0" {
        return None;
    }
    let mut name = rewind_platform::control::THREAD_ROOT;
    for part in parts {
        let nth: u64 = part.parse().ok()?;
        if nth == 0 {
            return None;
        }
        name = rewind_platform::control::thread_name(name, nth);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use rewind_platform::control::{THREAD_ROOT, thread_name};

    use super::*;

    #[test]
    fn paths_and_names_are_one_to_one() {
        let child = thread_name(THREAD_ROOT, 2);
        let grandchild = thread_name(child, 1);
        let tree = BTreeMap::from([(child, (THREAD_ROOT, 2)), (grandchild, (child, 1))]);
        assert_eq!(path(&tree, grandchild).as_deref(), Some("0.2.1"));
        assert_eq!(name_of_path("0.2.1"), Some(grandchild));
        assert_eq!(name_of_path("0"), Some(THREAD_ROOT));
        assert_eq!(name_of_path("1.2"), None);
        assert_eq!(name_of_path("0.0"), None);
        assert_eq!(path(&tree, 7), None);
    }
}
