//! The command killed at each of its calls that change files, and the disk full from each of them on: the home opens again,
//! earlier runs are whole, the run can be recorded, space is given back.
//!
//! By default some of the calls, spread over all; all of them with `REWIND_FAULTS=all` (`make test-faults`).

mod support;

use std::process::Command;

use run::{home::Home, keyframe, trace::TraceHasher};
use support::{
    MEMORY, Sandbox, errors, test_root,
    trace::{Fault, Traced, traced},
};

/// Calls tried of each kind of fault by default.
const SOME: u64 = 8;

/// Which of so many calls to try.
fn chosen(calls: u64) -> Vec<u64> {
    match std::env::var("REWIND_FAULTS").as_deref() {
        Ok("all") => (1..=calls).collect(),
        _ => (0..SOME.min(calls)).map(|n| 1 + n * (calls - 1) / (SOME.min(calls) - 1).max(1)).collect(),
    }
}

/// A job with keyframes, a fork's worth of processes, output and declared outputs.
fn job(home: &Sandbox) -> Command {
    let script = "for n in 1 2 3; do seq 40 > /tmp/f$n & wait; done; cat /tmp/f2 | tail -n 1; echo done";
    let root = test_root();
    let options =
        ["run", "--engine", "soft", "--memory", MEMORY, "--spacing", "20", "--out", "/tmp/f1", "--root"];
    let mut command = home.command(&options);
    command.arg(root).args(["--", "sh", "-c", script]);
    command
}

/// Reads everything of every run and checks it.
fn all_whole(sandbox: &Sandbox, expected: usize) {
    let home = Home::open(&sandbox.home()).expect("the home opens");
    let ids = home.runs();
    assert!(ids.len() >= expected, "{} of {expected} runs are left", ids.len());
    for id in ids {
        let run = home.run(id).unwrap();
        assert_eq!(run.spec().unwrap().id(), id);
        let outcome = run.outcome().unwrap().expect("a finished run has an outcome");
        let mut hasher = TraceHasher::default();
        let trace = run.trace().unwrap();
        for record in trace.iter() {
            let record = record.unwrap();
            hasher.add(&record.header, &record.payload);
        }
        assert_eq!((trace.records(), hasher.finish()), (outcome.records, outcome.trace_hash));
        for step in keyframe::list(&run.keyframes()) {
            let whole = keyframe::whole(&run.keyframes(), &id.to_string(), step).unwrap();
            whole.load::<std::io::Error>("r", home.pages(), |_, _| Ok(())).unwrap();
        }
    }
}

/// After a fault: earlier runs are whole, the run is recorded, and goes again with all it left.
fn recovers(home: &Sandbox, what: &str) {
    all_whole(home, 1);
    home.ok(&["ls"]);
    let output = job(home).output().unwrap();
    assert!(output.status.success(), "{what}: {}", errors(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "40\ndone\n", "{what}");
    all_whole(home, 2);
    let id = support::Job::of(&output).id;
    home.ok(&["rm", &id]);
    home.ok(&["gc"]);
    assert!(
        std::fs::read_dir(home.home().join("open")).unwrap().next().is_none(),
        "{what}: an open run is left"
    );
    all_whole(home, 1);
}

fn begun(name: &str) -> (Sandbox, u64) {
    let home = Sandbox::new(name);
    // The first run in a copied home makes the raw copy of the boot keyframe again: calls that the later ones do not make.
    home.job(&[], &["true"]);
    let whole = traced(job(&home), &home.home(), None);
    assert_eq!((whole.status, &*whole.out), (Some(0), "40\ndone\n"), "{}", whole.errors);
    let listed = home.ok(&["ls", "--json", "--command", "seq 40"]);
    let run: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert!(
        !run["keyframes"].as_array().unwrap().is_empty(),
        "the job is long enough for keyframes: {listed}"
    );
    home.ok(&["rm", run["run"].as_str().unwrap()]);
    home.ok(&["gc"]);
    (home, whole.calls)
}

#[test]
fn a_run_killed_at_any_write_loses_nothing() {
    let (home, calls) = begun("killed");
    let (mut tried, mut killed) = (0, 0);
    for kind in [Fault::Kill, Fault::Torn] {
        for at in chosen(calls) {
            let died = traced(job(&home), &home.home(), Some((kind, at)));
            // Threads may make a few calls more or less than they did; then it ended before.
            assert!(died.status.is_none() || died.calls < at, "{kind:?} at {at}: {died:?}");
            recovers(&home, &format!("{kind:?} at call {at}"));
            tried += 1;
            killed += u64::from(died.status.is_none());
        }
    }
    assert!(killed * 10 >= tried * 8, "of {tried} only {killed} were killed");
    println!("killed at {killed} places of {calls} calls that change files; each time all was whole");
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let (home, calls) = begun("full");
    let mut tried = 0;
    for at in chosen(calls) {
        let Traced { status, errors, calls, .. } =
            traced(job(&home), &home.home(), Some((Fault::NoSpace, at)));
        match status {
            Some(1) => assert!(errors.contains("o space left"), "full at {at}: {errors}"),
            // What is only a cache may be missing; and at the last calls nothing needs space any more.
            Some(0) => {}
            other => panic!("full at {at} of {calls}: {other:?} {errors}"),
        }
        recovers(&home, &format!("full from call {at} on"));
        tried += 1;
    }
    println!("the disk full from {tried} of {calls} calls on");
}

#[test]
fn the_first_run_of_a_home_killed_at_any_write_leaves_a_home() {
    let make = || {
        let home = Sandbox::bare("first");
        let command = job(&home);
        (home, command)
    };
    let (home, command) = make();
    let whole = traced(command, &home.home(), None);
    assert_eq!(whole.status, Some(0), "{}", whole.errors);
    let some = chosen(whole.calls);
    let mut tried = 0;
    // Each of these boots a guest twice: fewer of them.
    for at in some.iter().copied().step_by(if some.len() as u64 == whole.calls { 1 } else { 4 }) {
        let (home, command) = make();
        traced(command, &home.home(), Some((Fault::Torn, at)));
        let output = job(&home).output().unwrap();
        assert!(output.status.success(), "killed at {at}: {}", errors(&output));
        all_whole(&home, 1);
        home.ok(&["gc", "--verify"]);
        all_whole(&home, 1);
        tried += 1;
    }
    println!("the first run killed at {tried} of {} calls", whole.calls);
}

#[test]
fn replacing_a_damaged_run_killed_at_any_write_leaves_one_of_the_two() {
    let (home, _) = begun("replaced");
    let damage = || {
        let id = support::Job::of(&job(&home).output().unwrap()).id;
        let path = home.home().join("runs").join(&id).join("recording");
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 4;
        std::fs::write(&path, bytes).unwrap();
    };
    damage();
    let calls = traced(job(&home), &home.home(), None).calls;
    let mut killed = 0;
    let chosen = chosen(calls);
    for &at in &chosen {
        damage();
        let died = traced(job(&home), &home.home(), Some((Fault::Kill, at)));
        assert!(died.status.is_none() || died.calls < at, "{at}: {died:?}");
        // The damaged one or the new one: never neither.
        all_whole(&home, 2);
        recovers(&home, &format!("replacing killed at call {at}"));
        killed += u64::from(died.status.is_none());
    }
    assert!(killed * 10 >= chosen.len() as u64 * 8, "of {} only {killed} were killed", chosen.len());
    println!("replacing killed at {killed} places of {calls} calls");
}
