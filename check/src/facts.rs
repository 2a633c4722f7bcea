//! What the learning runs taught: threads, scheduling points, accesses to shared memory.

use std::collections::BTreeMap;

use crate::{
    decision::{Decision, Place},
    stops::Stops,
};

/// A thread of the job, as the learning runs saw it.
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
    /// Process id.
    pub pid: u32,
    /// Steps committed when it was created; 0 for one that was there at the base.
    pub born: u64,
    /// Scheduling points it has.
    pub points: u64,
}

/// One scheduling point: a commit of a thread of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The step that was committed, in the learning run that saw it first.
    pub step: u64,
    /// Where, with offset 0.
    pub place: Place,
    /// User instructions the thread ran before it entered the kernel again.
    pub inside: u64,
    /// Another thread of the job could have run instead, or might have been woken.
    pub contended: bool,
}

/// One access to a location that two threads share, at least one of them writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedAccess {
    /// Place of the accessing instruction (its offset is the instructions retired before it).
    pub place: Place,
    /// First byte, guest-virtual.
    pub address: u64,
    /// Address of the instruction.
    pub rip: u64,
    /// It writes.
    pub write: bool,
    /// How near it is to the program's own source.
    pub near: Nearness,
    /// The learning run that saw it: its place is sure to be reached under that run's decisions.
    pub run: u32,
}

/// Whose access it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nearness {
    /// Made by a line of the program's own source.
    Own,
    /// Right after one, in what that calls (an atomic of the language's library).
    Near,
    /// Made by other code of the program, or by a library on the program's data (a lock, a buffer).
    Program,
    /// Made by a library on what it has for itself.
    Library,
}

/// Accesses to shared memory of one learning run: by nearness, then by code address, indices of them.
pub type ByCode = [Vec<Vec<usize>>; 4];

/// Everything strategies may know: what the unperturbed run and a few perturbed ones (learning runs) showed.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Threads in order of first appearance.
    pub threads: Vec<ThreadFacts>,
    /// Scheduling points in order, those of schedule 0 first.
    pub points: Vec<Point>,
    /// Places no learning run saw, but a run under other decisions may have: a thread that has to wait makes more
    /// system calls than one that has not.
    pub beyond: Vec<Place>,
    /// Accesses to shared locations, by learning run and in order; only on an engine that sees them.
    pub accesses: Vec<SharedAccess>,
    /// The decisions of each learning run; none in the first.
    pub learned: Vec<Vec<Decision>>,
    /// [`Facts::accesses`] of each learning run by code.
    pub by_code: Vec<ByCode>,
    /// Single stops, the likeliest first; only on an engine that stops between instructions and sees accesses.
    pub stops: Stops,
}

/// Places named beyond the last known one of each thread.
const BEYOND: u64 = 24;
/// Places named beyond, over all threads.
const MOST_BEYOND: usize = 1024;

impl Facts {
    /// n: threads that have a scheduling point.
    pub fn thread_count(&self) -> u64 {
        self.threads.iter().filter(|thread| thread.points > 0).count() as u64
    }

    /// k: how many [`Facts::choices`] there are.
    pub fn point_count(&self) -> u64 {
        self.choices().count() as u64
    }

    /// The places that count for the order of system calls: returns of system calls (and starts of threads) while
    /// another thread could run. A commit after a page fault stands between the same two system calls.
    pub fn choices(&self) -> impl Iterator<Item = Place> {
        self.points
            .iter()
            .filter(|point| point.contended && point.place.returns == 0)
            .map(|point| point.place)
    }

    /// Takes in another learning run under `decisions`: threads and points that were not known, and its accesses.
    /// Points only if all decisions were at commits: one inside a step makes two of it, and renames what follows.
    pub fn merge(&mut self, mut other: Facts, decisions: Vec<Decision>) {
        if decisions.iter().any(|decision| decision.place.offset > 0) {
            other.points.clear();
            other.threads.iter_mut().for_each(|thread| thread.points = 0);
        }
        let run = self.learned.len() as u32;
        self.accesses.extend(other.accesses.into_iter().map(|access| SharedAccess { run, ..access }));
        self.learned.push(decisions);
        for thread in other.threads {
            match self.threads.iter_mut().find(|known| known.name == thread.name) {
                Some(known) => known.points = known.points.max(thread.points),
                None => self.threads.push(thread),
            }
        }
        let mut known: BTreeMap<Place, usize> =
            self.points.iter().enumerate().map(|(i, point)| (point.place, i)).collect();
        for point in other.points {
            match known.get(&point.place) {
                Some(&i) => self.points[i].contended |= point.contended,
                None => {
                    known.insert(point.place, self.points.len());
                    self.points.push(point);
                }
            }
        }
        self.look_beyond();
        self.sort_by_code();
    }

    fn sort_by_code(&mut self) {
        let mut sorted: BTreeMap<(u32, Nearness, u64), Vec<usize>> = BTreeMap::new();
        for (i, access) in self.accesses.iter().enumerate() {
            sorted.entry((access.run, access.near, access.rip)).or_default().push(i);
        }
        self.by_code = vec![ByCode::default(); self.learned.len()];
        for ((run, near, _), indices) in sorted {
            self.by_code[run as usize][near as usize].push(indices);
        }
    }

    /// Names places after the last known one of each thread.
    fn look_beyond(&mut self) {
        let mut last: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for point in &self.points {
            let entry = last.entry(point.place.thread).or_insert((u64::MAX, 0));
            *entry = (entry.0.min(point.place.syscall), entry.1.max(point.place.syscall));
        }
        self.beyond.clear();
        for thread in &self.threads {
            let Some(&(first, last)) = last.get(&thread.name) else { continue };
            let more = BEYOND.max((last - first) / 2).min(4 * BEYOND);
            let places =
                (1..=more).map(|n| Place { thread: thread.name, syscall: last + n, returns: 0, offset: 0 });
            self.beyond.extend(places);
        }
        self.beyond.truncate(MOST_BEYOND);
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
