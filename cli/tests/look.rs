//! Finding runs again, choosing the clock, and looking inside: through the command, end to end.

mod support;
use std::{io::Write, process::Stdio};

use support::{Job, MEMORY, Sandbox, errors};

#[test]
fn a_job_that_steps_do_not_move_gets_the_work_clock_and_is_found_again() {
    let home = Sandbox::new("clock");
    // The timer fires only if time passes while the shell computes.
    let script =
        "echo waiting; trap 'echo woke; exit 3' USR1; (usleep 20000; kill -USR1 $$) & while :; do :; done";
    let first = home.job(&[], &["sh", "-c", script]);
    assert_eq!(
        (first.status, &*first.out, first.found),
        (Some(3), "waiting\nwoke\n", false),
        "{}",
        first.errors
    );
    assert!(first.errors.contains("--clock work"), "{}", first.errors);
    let again = home.job(&[], &["sh", "-c", script]);
    assert_eq!(
        (&again.id, &*again.out, again.found),
        (&first.id, "waiting\nwoke\n", true),
        "{}",
        again.errors
    );
    let asked = home.job(&["--clock", "work"], &["sh", "-c", script]);
    assert_eq!((&asked.id, asked.found), (&first.id, true), "the same run by its full name");
    let runs = home.ok(&["ls", "--json"]);
    assert_eq!(runs.lines().filter(|line| line.contains("usleep")).count(), 1, "{runs}");
    assert!(home.ok(&["replay", &first.id]).contains("identical"));
    // A job that makes steps keeps the steps clock, though a run of it under `work` is there.
    let work = home.job(&["--clock", "work"], &["echo", "x"]);
    let steps = home.job(&[], &["echo", "x"]);
    assert!(work.id != steps.id && !steps.found);
}

fn over_the_host(home: &Sandbox, command: &[&str]) -> Job {
    let mut arguments = vec!["run", "--engine", "soft", "--memory", MEMORY, "--"];
    arguments.extend(command);
    Job::of(&home.output(&arguments))
}

#[test]
fn a_run_over_the_hosts_root_is_found_while_what_it_read_is_unchanged() {
    let home = Sandbox::apart("host-root");
    let data = home.work().join("data");
    std::fs::write(&data, "one\n").unwrap();
    let command = ["cat", "data"];
    let first = over_the_host(&home, &command);
    assert_eq!((first.status, &*first.out, first.found), (Some(0), "one\n", false), "{}", first.errors);
    let same = over_the_host(&home, &command);
    assert_eq!((&same.id, &*same.out, same.found), (&first.id, "one\n", true), "{}", same.errors);
    // A file it did not use may change; so may the time of change of one it did.
    std::fs::write(home.dir().join("elsewhere"), "x").unwrap();
    let time = std::fs::metadata(&data).unwrap().modified().unwrap();
    std::fs::write(&data, "one\n").unwrap();
    std::fs::File::options().write(true).open(&data).unwrap().set_modified(time).unwrap();
    let same = over_the_host(&home, &command);
    assert_eq!((&same.id, same.found), (&first.id, true), "{}", same.errors);
    // Not the content, nor what the program may see of the file.
    std::fs::write(&data, "two\n").unwrap();
    std::fs::File::options().write(true).open(&data).unwrap().set_modified(time).unwrap();
    let other = over_the_host(&home, &command);
    assert_eq!((&*other.out, other.found), ("two\n", false), "{}", other.errors);
    assert_ne!(other.id, first.id);
    std::fs::write(&data, "one\n").unwrap();
    std::fs::File::options().write(true).open(&data).unwrap().set_modified(time).unwrap();
    let back = over_the_host(&home, &command);
    assert_eq!((&back.id, back.found), (&first.id, true), "both are kept: {}", back.errors);
    std::fs::remove_file(&data).unwrap();
    let gone = over_the_host(&home, &command);
    assert_eq!((gone.status, gone.found), (Some(1), false), "{}", gone.errors);
    // It replays without the host's files, and the note on them goes with it.
    assert!(home.ok(&["replay", &first.id]).contains("identical"));
    home.ok(&["rm", &first.id]);
    home.ok(&["gc"]);
    let listed = std::fs::read_dir(home.home().join("closed")).unwrap().flatten();
    let entries: usize = listed.map(|entry| std::fs::read_dir(entry.path()).unwrap().count()).sum();
    assert_eq!(entries, 2, "the entry of the removed run is gone, the others' are not");
}

const STAGES: &str =
    "mkdir /tmp/d; echo one > /tmp/d/f; sync; echo two > /tmp/d/f; rm /bin/ls; echo done; seq 3000";

#[test]
fn cat_prints_a_file_as_it_was_at_a_step() {
    let home = Sandbox::new("cat");
    let run = home.job(&["--user", "user", "--cwd", "/tmp"], &["sh", "-c", STAGES]).id;
    assert_eq!(home.ok(&["cat", &run, "/tmp/d/f"]), "two\n");
    let step = |text: &str| {
        let log = home.ok(&["events", &run, "--json", "--kind", "open"]);
        let line =
            log.lines().filter(|line| line.contains(text)).nth(1).unwrap_or_else(|| panic!("{text}: {log}"));
        serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap()
    };
    // The second opening truncates: before it there is the first content.
    let second = step("/tmp/d/f");
    assert_eq!(
        home.ok(&["cat", &run, "d/f", "--at", &second.to_string()]),
        "one\n",
        "relative to its directory"
    );
    let json = home.ok(&["cat", &run, "/etc/group", "--at", "@job", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["text"], "root:x:0:\nuser:x:1000:\n");
    assert_eq!((&json["mode"], &json["uid"]), (&"644".into(), &0.into()));
    assert_eq!(home.ok(&["cat", &run, "/proc/self/comm", "--at", "@end"]), "init\n");
    let big = home.ok(&["cat", &run, "/bin/busybox", "--json"]);
    let big: serde_json::Value = serde_json::from_str(&big).unwrap();
    let busybox = std::fs::read("/bin/busybox").unwrap();
    assert_eq!(big["blake3"], blake3::hash(&busybox).to_string(), "all {} bytes", busybox.len());
    for (path, says) in [("/nope", "no such file"), ("/tmp", "a directory"), ("", "empty path")] {
        let error = home.fails(1, &["cat", &run, path]);
        assert!(error.contains(says), "{error}");
    }
    let error = home.fails(1, &["cat", &run, "/etc/group", "--at", "99999999"]);
    assert!(error.contains("past the end"), "{error}");
    assert!(home.ok(&["replay", &run]).contains("identical"), "looking changed nothing");
}

#[test]
fn shell_runs_programs_in_a_throw_away_fork() {
    let home = Sandbox::new("shell");
    let run = home.job(&["--user", "user", "--env", "COLOUR=red"], &["sh", "-c", STAGES]).id;
    // At @job the first process has not taken on its user yet; it has when it opens files.
    let opens = home.ok(&["events", &run, "--json", "--kind", "open"]);
    let open = serde_json::from_str::<serde_json::Value>(opens.lines().next().unwrap()).unwrap();
    let inside = open["step"].as_u64().unwrap().to_string();
    let script = "id -u; echo $COLOUR; pwd; echo bad >&2; exit 7";
    let output = home.output(&["shell", &run, &inside, "-c", script]);
    assert_eq!(output.status.code(), Some(7), "{}", errors(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1000\nred\n/\n");
    assert_eq!(errors(&output), "bad\n");
    assert_eq!(home.ok(&["shell", &run, "@end", "--", "cat", "/tmp/d/f"]), "two\n");
    // What it writes is seen by it alone.
    assert_eq!(home.ok(&["shell", &run, "@end", "-c", "echo x > /tmp/d/f; cat /tmp/d/f"]), "x\n");
    assert_eq!(home.ok(&["cat", &run, "/tmp/d/f"]), "two\n");
    assert_eq!(home.output(&["shell", &run, "@job", "-c", "kill -9 $$"]).status.code(), Some(137));
    // Standard input is passed, more of it than a pipe holds.
    let mut child = home.command(&["shell", &run, "@job", "--", "wc", "-c"]);
    let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[b'x'; 300_000]).unwrap();
    assert_eq!(String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout), "300000\n");
    let many = home.ok(&["shell", &run, "@job", "-c", "seq 30000; sleep 2; echo end"]);
    assert_eq!((many.lines().count(), many.lines().last()), (30_001, Some("end")));
    let error = home.fails(1, &["shell", &run, "@job", "--", "no-such-program"]);
    assert!(error.contains("no program no-such-program"), "{error}");
    let error = home.fails(1, &["shell", &run, "@job", "--", "/etc/group"]);
    assert!(error.contains("permission denied"), "{error}");
    // In the middle of the job, each of many steps will do.
    for step in (0..40).map(|n| 700 + 37 * n) {
        let text = home.output(&["shell", &run, &step.to_string(), "--", "/bin/echo", "ok"]);
        let past = errors(&text).contains("past the end");
        assert!(past || text.stdout == b"ok\n", "step {step}: {}", errors(&text));
    }
    assert!(home.ok(&["replay", &run]).contains("identical"));
}

#[test]
fn a_shell_at_and_after_the_end_of_the_job() {
    let home = Sandbox::apart("late");
    // Dynamically linked programs of a root that is read as they go: many page faults, on both sides of a fork.
    let job = over_the_host(&home, &["sh", "-c", "echo last > kept"]);
    assert_eq!(job.status, Some(0), "{}", job.errors);
    let run = job.id;
    let events = home.ok(&["events", &run, "--json"]);
    let step = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).ok().and_then(|event| event["step"].as_u64()).unwrap()
    };
    let end = step(events.lines().last().unwrap());
    for at in (end - 15..=end).step_by(3).map(|step| step.to_string()).chain(["@end".into()]) {
        let said = home.ok(&["shell", &run, &at, "-c", "cat kept; ls / | wc -l | grep -c ."]);
        assert_eq!(said, "last\n1\n", "at {at}");
    }
}

/// From the job's first step on, not from the machine's first tick on.
#[test]
fn sleeps_end_in_the_order_of_their_lengths() {
    let home = Sandbox::new("sleeps");
    let sleeper = |us: u32| format!("(busybox usleep {us}; echo {us}) &");
    let job = home.job(&[], &["sh", "-c", &format!("{} wait", [7000, 1000, 4000].map(sleeper).join(" "))]);
    assert_eq!(job.out, "1000\n4000\n7000\n", "{}", job.errors);
}

/// Runs of two seeds may differ first in what a line does not show: both start the same program at the same step, and not
/// at the same time. Which seeds do is the guest's.
#[test]
fn a_difference_is_shown_where_the_line_does_not_have_it() {
    let home = Sandbox::new("hidden");
    let job = |seed: u32| home.job(&["--seed", &seed.to_string()], &["sh", "-c", "echo one"]).id;
    let first = job(1);
    let hidden = |seed| {
        let output = home.output(&["diff", &first, &job(seed)]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines: Vec<&str> =
            text.lines().rev().take(2).filter_map(|line| Some(line.split_once(": ")?.1)).collect();
        let differs = output.status.code() == Some(1);
        assert_eq!(differs, !text.starts_with("the same "), "{text}");
        let starts = differs && lines.iter().all(|line| line.contains("exec "));
        assert!(!differs || lines[0] != lines[1], "{text}");
        starts
    };
    assert!((2..30).any(hidden), "no seed has another time at its exec");
}
