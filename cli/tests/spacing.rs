//! How far apart keyframes are: as close as asked where they cost little, further where they cost much.

mod support;

use run::{home::Home, keyframe};
use support::{Job, Sandbox, errors};

/// Computes, and touches next to nothing.
const CHEAP: &str = "i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done; echo $i";
/// Programs that come and go and go through memory, other content each time.
const DEAR: &str = "for n in 1 2 3 4 5; do head -c 3000000 /dev/urandom | sort | md5sum; done";
/// One that works on, in memory whose content is other each time.
const LONG: &str = "awk 'BEGIN { for (n = 1; n < 20; n++) { for (i = 0; i < 13000; i++) a[i] = i * 7919 * n % 1000003; print length(a) } }'";

/// The run's keyframes, and the bytes of its own that the home holds: its files, and the pages of its keyframes.
fn kept(home: &Sandbox, id: &str) -> (usize, u64) {
    let opened = Home::open(&home.home()).unwrap();
    let run = opened.run(opened.find(id).unwrap()).unwrap();
    let steps = keyframe::list(&run.keyframes());
    let pages: std::collections::BTreeSet<_> = steps
        .iter()
        .flat_map(|step| {
            keyframe::read(&run.keyframes().join(keyframe::file_name(*step)), id, *step).unwrap().pages
        })
        .map(|at| at.hash)
        .collect();
    (steps.len(), pages.into_iter().map(|hash| opened.pages().stored_len(hash).unwrap()).sum())
}

#[test]
fn keyframes_that_cost_little_stay_close() {
    let home = Sandbox::new("spacing");
    let close = home.job(&["--spacing", "250", "--seed", "1"], &["sh", "-c", CHEAP]);
    let thrifty = home.job(&["--seed", "2"], &["sh", "-c", CHEAP]);
    assert_eq!((close.out.as_str(), thrifty.out.as_str()), ("60000\n", "60000\n"), "{}", thrifty.errors);
    let (close, thrifty) = (kept(&home, &close.id), kept(&home, &thrifty.id));
    assert!(close.0 >= 4, "{close:?}: too short to tell");
    // By processor time, so not to the last one.
    assert!(thrifty.0 * 10 >= close.0 * 7, "{thrifty:?} and {close:?}");
}

#[test]
fn keyframes_of_a_program_that_works_on_for_long_stay_close() {
    let home = Sandbox::new("spacing");
    let close = home.job(&["--spacing", "250", "--seed", "1"], &["sh", "-c", LONG]);
    let thrifty = home.job(&["--seed", "2"], &["sh", "-c", LONG]);
    assert_eq!(close.out, thrifty.out);
    let (close, thrifty) = (kept(&home, &close.id), kept(&home, &thrifty.id));
    // But for its first second.
    assert!(close.0 >= 9 && thrifty.0 + 5 >= close.0, "{thrifty:?} and {close:?}");
}

#[test]
fn keyframes_that_cost_much_are_rare_and_a_short_fork_has_none() {
    let home = Sandbox::new("spacing");
    let close = home.job(&["--spacing", "250", "--seed", "1"], &["sh", "-c", DEAR]);
    let thrifty = home.job(&["--seed", "2"], &["sh", "-c", DEAR]);
    assert_eq!((close.status, thrifty.status), (Some(0), Some(0)), "{}", thrifty.errors);
    let (close, bytes) = (kept(&home, &close.id), kept(&home, &thrifty.id));
    assert!(close.0 >= 8, "{close:?}: too short to tell");
    assert!(bytes.0 * 2 <= close.0 && bytes.1 * 2 <= close.1, "{bytes:?} and {close:?}");
    // A place can be gone to all the same.
    let opened = Home::open(&home.home()).unwrap();
    let steps = opened.run(opened.find(&thrifty.id).unwrap()).unwrap().outcome().unwrap().unwrap().steps;
    drop(opened);
    let before = home.bytes();
    let late = (steps * 95 / 100).to_string();
    let place = serde_json::json!({ "thread": 1, "syscall": 1, "returns": 0, "offset": 0 });
    let decisions = serde_json::json!([{ "place": place, "action": "preempt" }]);
    std::fs::write(home.work().join("decisions"), decisions.to_string()).unwrap();
    let output = home.output(&["fork", &thrifty.id, &late, "--decisions", "decisions"]);
    let fork = Job::of(&output);
    assert_eq!(fork.status, Some(0), "{}", errors(&output));
    let grown = home.bytes() - before;
    assert!(grown < 1_000_000, "a fork stored {grown} bytes");
    assert!(home.ok(&["replay", &fork.id]).contains("identical"));
}
