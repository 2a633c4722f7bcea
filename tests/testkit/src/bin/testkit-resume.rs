//! `testkit-resume SNAPSHOT`: goes on from a snapshot in this fresh process and prints the rest of the trace's hash.

use testkit::{Snapshot, config, finish};

fn main() {
    let path = std::env::args().nth(1).expect("testkit-resume SNAPSHOT");
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let snapshot: Snapshot = postcard::from_bytes(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    let outcome = finish(&mut snapshot.restore(&config()));
    println!("{} {} {}", outcome.hash, outcome.steps, outcome.now);
}
