//! Where runs begin and end: the last step's events, ends that differ, a working directory through a link, a boot keyframe
//! that is gone.

mod support;
use std::{process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{Job, MEMORY, Sandbox, errors};

/// Lines of `events` about steps up to `to`.
fn events(home: &Sandbox, id: &str, more: &[&str]) -> Vec<String> {
    home.ok(&[&["events", id, "--from", "@job"][..], more].concat()).lines().map(str::to_owned).collect()
}

#[test]
fn richer_events_are_there_to_the_last_step() {
    let home = Sandbox::new("last");
    let stuck = home.job(&[], &["sh", "-c", "mkfifo /tmp/f; echo ready; read x < /tmp/f"]);
    assert!(stuck.errors.contains("stalled"), "{}", stuck.errors);
    let (plain, rich) = (events(&home, &stuck.id, &[]), events(&home, &stuck.id, &["--syscalls", "--maps"]));
    let missing: Vec<_> = plain.iter().filter(|line| !rich.contains(line)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let enters = |lines: &[String]| lines.iter().filter(|line| line.contains("openat")).count();
    assert!(enters(&rich) > 0, "{rich:?}");
    assert!(rich.iter().rev().take(4).any(|line| line.contains("openat")), "what it waits in: {rich:?}");
    // And those of any one step.
    let steps: Vec<&str> = plain.iter().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    for at in steps.iter().step_by(steps.len().div_ceil(6)) {
        let bounds = ["--from", at, "--to", at];
        let one = home.ok(&[&["events", &stuck.id][..], &bounds[..]].concat());
        let richer = home.ok(&[&["events", &stuck.id, "--syscalls"][..], &bounds[..]].concat());
        assert!(!one.is_empty());
        for line in one.lines() {
            assert!(richer.lines().any(|other| other == line), "step {at}: {line} is not in\n{richer}");
        }
    }
    // A run that was cut off goes on only as far as it went.
    let cut =
        home.job(&["--timeout", "1", "--clock", "steps"], &["sh", "-c", "echo on; while :; do :; done"]);
    assert!(cut.errors.contains("timed-out"), "{}", cut.errors);
    assert!(!events(&home, &cut.id, &["--syscalls"]).is_empty());
}

#[test]
fn a_terminal_shows_what_was_written_last_and_the_status_is_the_jobs() {
    let home = Sandbox::new("tty-end");
    for (command, out, status) in [
        (&["echo", "hi"][..], "hi\r\n", 0),
        (&["sh", "-c", "echo a; exit 3"], "a\r\n", 3),
        (&["sh", "-c", "sleep 9 & echo b"], "b\r\n", 0),
        (&["sh", "-c", "exec >&- 2>&- <&-; exit 4"], "", 4),
        (&["true"], "", 0),
    ] {
        let job = home.job(&["--tty"], command);
        assert_eq!((&*job.out, job.status), (out, Some(status)), "{command:?}: {}", job.errors);
    }
}

/// The terminal hangs up when the job's first process ends; this one opens it again and goes on.
const LEFT: &str = "trap '' HUP; (while :; do yes > /dev/pts/0; done) 2> /dev/null & sleep 0.01; exit 5";

#[test]
fn what_a_terminals_job_leaves_behind_ends_with_it() {
    let home = Sandbox::new("tty-left");
    let job = home.job(&["--tty", "--timeout", "20"], &["sh", "-c", LEFT]);
    assert_eq!(job.status, Some(5), "{}", job.errors);
    assert!(job.out.starts_with("y\r\ny\r\n"), "{:.20}", job.out);
}

#[test]
fn what_crashed_is_among_the_processes_there() {
    let home = Sandbox::new("crashed");
    let job = home.job(&[], &["sh", "-c", "sleep 1 & kill -SEGV $$"]);
    assert_eq!(job.status, Some(139), "{}", job.errors);
    let there = home.ok(&["ps", &job.id, "@crash"]);
    let signal = home.ok(&["events", &job.id, "--kind", "signal", "--json"]);
    let signal: serde_json::Value = serde_json::from_str(signal.lines().last().unwrap()).unwrap();
    let shell = there.lines().find(|line| line.split_whitespace().next() == Some(&signal["tid"].to_string()));
    assert!(shell.is_some_and(|line| line.contains("kill -SEGV")), "{there}");
    assert_eq!(there.lines().count(), 3, "and what it started: {there}");
}

/// Hundredths of a second of processor time in user mode (`utime`, proc_pid_stat(5)).
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(11).unwrap().parse().unwrap()
}

#[test]
fn runs_with_the_same_events_may_end_otherwise() {
    let home = Sandbox::new("otherwise");
    let program = ["sh", "-c", "echo on; while :; do :; done"];
    let cut = home.job(&["--timeout", "3", "--clock", "steps"], &program);
    assert_eq!(cut.out, "on\n", "{}", cut.errors);
    let root = support::test_root();
    let options =
        ["run", "--engine", "soft", "--memory", MEMORY, "--root", root.to_str().unwrap(), "--clock", "steps"];
    let mut other = home.command(&options);
    other.args(["--cwd", "/tmp", "--"]).args(program).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = other.spawn().unwrap();
    // What it says is shown at its next step, which does not come: after so much computing it is in the loop.
    while ticks(child.id()) < 150 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(50));
    }
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let stopped = Job::of(&child.wait_with_output().unwrap());
    assert!(stopped.errors.contains("interrupted"), "{}", stopped.errors);
    let output = home.output(&["diff", &cut.id, &stopped.id]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}{}", errors(&output));
    assert!(text.contains("timed-out") && text.contains("interrupted"), "{text}");
    assert!(text.contains("events, and another end"), "{text}");
}

#[test]
fn a_run_that_is_asked_to_stop_is_kept_as_far_as_it_went() {
    let home = Sandbox::new("asked");
    let root = support::test_root();
    let options = ["run", "--engine", "soft", "--memory", MEMORY, "--root", root.to_str().unwrap()];
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut command = home.command(&options);
        command.args(["--clock", "steps", "--", "sh", "-c", "echo on; while :; do :; done"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        while ticks(child.id()) < 150 {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(50));
        }
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let job = Job::of(&child.wait_with_output().unwrap());
        assert_eq!((&*job.out, job.status), ("on\n", Some(130)), "{signal}: {}", job.errors);
        assert_eq!(home.ok(&["log", &job.id]), "on\n", "{signal}");
    }
}

#[test]
fn a_file_that_may_not_grow_is_an_error_that_names_the_limit() {
    let home = Sandbox::new("limit");
    let run = home.command(&[]).get_program().to_owned();
    let root = support::test_root();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -f 100; exec \"$0\" \"$@\""]).arg(run);
    command
        .args(["run", "--engine", "soft", "--memory", MEMORY, "--root"])
        .arg(root)
        .args(["--", "echo", "x"]);
    let before = home.ok(&["ls"]);
    let output = command.env("REWIND_HOME", home.home()).current_dir(home.work()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    assert!(errors(&output).contains("ulimit -f"), "{}", errors(&output));
    assert_eq!(home.ok(&["ls"]), before, "nothing is half there");
    assert_eq!(home.job(&[], &["echo", "x"]).status, Some(0));
}

#[test]
fn a_boot_keyframe_that_is_gone_is_made_again_for_an_export() {
    let home = Sandbox::new("boot-gone");
    let run = home.job(&[], &["echo", "kept"]);
    std::fs::remove_dir_all(home.home().join("boot")).unwrap();
    home.ok(&["export", &run.id, "x"]);
    let elsewhere = Sandbox::bare("boot-elsewhere");
    std::fs::copy(home.work().join("x"), elsewhere.work().join("x")).unwrap();
    elsewhere.ok(&["import", "x"]);
    assert!(elsewhere.ok(&["replay", &run.id]).contains("identical"));
}

#[test]
fn a_working_directory_through_a_link_is_the_one_it_leads_to() {
    let home = Sandbox::apart("cwd");
    let (real, link) = (home.work().join("real"), home.dir().join("link"));
    std::fs::create_dir(&real).unwrap();
    std::fs::write(real.join("note"), "here\n").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let through = |cwd: &std::path::Path| {
        let cwd = cwd.to_str().unwrap();
        Job::of(
            &home.output(&["run", "--engine", "soft", "--memory", MEMORY, "--cwd", cwd, "--", "cat", "note"]),
        )
    };
    let (first, second) = (through(&link), through(&real));
    assert_eq!((&*first.out, &first.id), ("here\n", &second.id), "{}", first.errors);
}
