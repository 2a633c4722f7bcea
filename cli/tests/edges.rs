//! What the command does where something is in its way: outputs that take nothing, files that are no files, traces that are
//! cut, recorders that died, Ctrl-C.

mod support;
use std::{
    fs::File,
    os::unix::{
        fs::{FileTypeExt, symlink},
        process::ExitStatusExt,
    },
    path::Path,
    process::{Child, ExitStatus, Output, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{MEMORY, Sandbox, errors, test_root};

/// A device that takes nothing: every write fails for want of space.
fn full() -> Stdio {
    File::options().write(true).open("/dev/full").unwrap().into()
}

/// The command, with standard output (1) or error (2) on that device.
fn on_full(home: &Sandbox, stream: u8, arguments: &[&str]) -> Output {
    let mut command = home.command(arguments);
    match stream {
        1 => command.stdout(full()).stderr(Stdio::piped()),
        _ => command.stdout(Stdio::piped()).stderr(full()),
    };
    command.spawn().unwrap().wait_with_output().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

/// Its end, if that comes soon.
fn ends_within(child: &mut Child, seconds: u32) -> Option<ExitStatus> {
    for _ in 0..seconds * 20 {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Names in a folder that a dead export would have left.
fn temporary(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.ends_with(".tmp")).collect()
}

#[test]
fn export_replaces_files_and_nothing_else() {
    let home = Sandbox::new("targets");
    let id = home.job(&[], &["echo", "x"]).id;
    let at = |name: &str| home.work().join(name);
    std::fs::create_dir(at("dir")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    symlink("/dev/full", at("device")).unwrap();
    for (name, what) in [("dir", "a directory"), ("pipe", "a pipe"), ("device", "a device")] {
        let error = home.fails(1, &["export", "--view", &id, name]);
        assert!(error.contains(what) && error.contains(name), "{error}");
    }
    assert!(std::fs::symlink_metadata(at("pipe")).unwrap().file_type().is_fifo());
    assert!(std::fs::symlink_metadata(at("device")).unwrap().is_symlink());
    // Links are followed: to a file, and to where one may be.
    std::fs::write(at("dir/old"), "old").unwrap();
    symlink("dir/old", at("link")).unwrap();
    symlink("dir/new", at("dangling")).unwrap();
    symlink("round", at("round")).unwrap();
    for (name, real) in [("link", "dir/old"), ("dangling", "dir/new")] {
        home.ok(&["export", "--view", &id, name]);
        assert!(std::fs::symlink_metadata(at(name)).unwrap().is_symlink(), "{name}");
        home.ok(&["import", real]);
    }
    assert!(home.fails(1, &["export", "--view", &id, "round"]).contains("symbolic links"));
    assert!(temporary(&home.work()).is_empty() && temporary(&at("dir")).is_empty());
    // A second time it is there already.
    assert!(home.ok(&["import", "dir/new"]).contains("was here already"));
}

#[test]
fn an_output_that_takes_nothing_is_told() {
    let home = Sandbox::new("full");
    let script = "echo out; echo err >&2";
    let root = test_root();
    let run = |more: &[&'static str]| {
        let mut all = vec!["run", "--engine", "soft", "--memory", MEMORY, "--root", root.to_str().unwrap()];
        all.extend(more);
        all.extend(["--", "sh", "-c", script]);
        all.into_iter().map(String::from).collect::<Vec<_>>()
    };
    // New, found, repeated; as text and as JSON.
    for more in [&[][..], &[], &["--again"], &["--json"]] {
        let arguments = run(more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = on_full(&home, 1, &arguments);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{more:?}: {text}");
        assert!(text.contains("cannot write to standard output: No space"), "{more:?}: {text}");
        // As JSON, standard error is not passed on.
        let expected = if more.contains(&"--json") { 0 } else { 1 };
        assert_eq!(on_full(&home, 2, &arguments).status.code(), Some(expected), "{more:?}: standard error");
    }
    // It was recorded all the same.
    let listed = home.ok(&["ls", "--json", "--command", "echo err"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    let id = listed["run"].as_str().unwrap();
    assert_eq!(listed["end"], "exited:0");
    assert!(home.ok(&["replay", id]).contains("identical"));
    for command in
        [&["ls"][..], &["log", id], &["events", id], &["ps", id], &["--help"], &["completions", "bash"]]
    {
        let output = on_full(&home, 1, command);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {}", errors(&output));
        assert!(errors(&output).contains("cannot write to standard output"), "{}", errors(&output));
    }
    // What is only said beside the result is not worth failing for; no panic (101).
    assert_eq!(on_full(&home, 2, &["ls"]).status.code(), Some(0));
    assert_eq!(on_full(&home, 2, &["replay", "ffff0000ffff"]).status.code(), Some(1));
    assert_eq!(on_full(&home, 2, &["rm", "ffff0000ffff"]).status.code(), Some(1));
    assert_eq!(on_full(&home, 2, &["ls", "--nonsense"]).status.code(), Some(2));
    // A reader that goes away is no fault.
    let mut child =
        home.command(&["events", id]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_cut_trace_is_not_shown_as_a_whole_one() {
    let home = Sandbox::new("cut");
    let a = home.job(&[], &["echo", "a"]).id;
    let b = home.job(&["--seed", "3"], &["echo", "a"]).id;
    for id in [&a, &b] {
        let path = home.home().join("runs").join(id).join("trace");
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..16]).unwrap();
    }
    for command in [
        &["events", &*a][..],
        &["log", &a],
        &["threads", &a],
        &["ps", &a],
        &["diff", &a, &b],
        &["export", &a],
        &["export", "--view", &a],
        &["replay", &a],
        &["cat", &a, "/etc/group"],
    ] {
        let error = home.fails(1, command);
        assert!(error.contains("the trace of run") && error.contains("is damaged"), "{command:?}: {error}");
    }
    assert!(std::fs::read_dir(home.work()).unwrap().next().is_none(), "nothing was exported");
    // An emptied file.
    std::fs::write(home.home().join("runs").join(&a).join("outcome"), "").unwrap();
    assert!(home.fails(1, &["log", &a]).contains("rewind rm"));
}

#[test]
fn a_run_whose_recorder_died_is_said_to_be_one() {
    let home = Sandbox::new("died");
    let root = test_root();
    let mut recorder = home
        .command(&["run", "--engine", "soft", "--memory", MEMORY, "--root"])
        .arg(root)
        .args(["--", "sh", "-c", "while :; do echo on; sleep 1; done"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let open = home.home().join("open");
    let begun = || std::fs::read_dir(&open).into_iter().flatten().flatten().next();
    let mut waited = 0;
    let id = loop {
        if let Some(entry) = begun().filter(|entry| entry.path().join("trace").is_file()) {
            break entry.file_name().into_string().unwrap();
        }
        waited += 1;
        assert!(waited < 600, "nothing is recorded");
        std::thread::sleep(Duration::from_millis(100));
    };
    let output = home.output(&["log", &id]);
    assert!(errors(&output).contains("still being recorded"), "{}", errors(&output));
    signal(&recorder, Signal::SIGKILL);
    recorder.wait().unwrap();
    for command in [&["log", &*id][..], &["events", &id], &["threads", &id], &["ps", &id]] {
        let output = home.output(command);
        assert!(output.status.success(), "{command:?}: {}", errors(&output));
        assert!(errors(&output).contains("its recorder died"), "{command:?}: {}", errors(&output));
    }
    for command in [
        &["replay", &*id][..],
        &["cat", &id, "/etc/group"],
        &["shell", &id, "@end", "-c", "true"],
        &["fork", &id, "@end"],
        &["where", &id, "@end"],
        &["blame", &id, "--at", "@end", "x"],
        &["export", &id],
    ] {
        let error = home.fails(1, command);
        assert!(error.contains("was not finished"), "{command:?}: {error}");
    }
}

#[test]
fn a_run_to_look_at_is_refused_before_anything_boots() {
    let home = Sandbox::new("view");
    let id = home.job(&[], &["echo", "x"]).id;
    home.ok(&["export", "--view", &id, "x"]);
    let file = home.work().join("x");
    let elsewhere = Sandbox::bare("view-there");
    elsewhere.ok(&["import", file.to_str().unwrap()]);
    assert_eq!(elsewhere.ok(&["log", &id]), "x\n");
    for command in
        [&["replay", &*id][..], &["cat", &id, "/etc/group"], &["where", &id, "@end"], &["export", &id, "y"]]
    {
        let error = elsewhere.fails(1, command);
        assert!(error.contains("look at only (--view)"), "{command:?}: {error}");
    }
    assert!(!elsewhere.home().join("boot").exists(), "no guest booted for it");
    elsewhere.ok(&["export", "--view", &id, "y"]);
}

#[test]
fn bytes_that_are_no_text_are_in_the_json() {
    let home = Sandbox::new("bytes");
    let job = home.job(&[], &["sh", "-c", "printf 'a\\377b'"]);
    let id = &*job.id;
    for command in [&["log", id, "--json"][..], &["events", id, "--kind", "output", "--json"]] {
        let text = home.ok(command);
        let pieces: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let all: String = pieces
            .iter()
            .map(|piece| match piece.get("hex") {
                Some(hex) => hex.as_str().unwrap().to_owned(),
                None => run::id::hex(piece["text"].as_str().unwrap().as_bytes()),
            })
            .collect();
        assert_eq!(all, "61ff62", "{text}");
    }
}

#[test]
fn an_interrupted_export_or_import_leaves_nothing() {
    let home = Sandbox::new("interrupted");
    let id = home.job(&[], &["echo", "x"]).id;
    let whole = home.work().join("whole");
    home.ok(&["export", "--whole", &id, whole.to_str().unwrap()]);
    let other = Sandbox::bare("interrupted-there");
    // Sooner or later, until each was stopped at its work; some come too early, some too late.
    let mut stopped = std::collections::BTreeSet::new();
    for milliseconds in [5, 20, 60, 100, 150, 200, 300, 450, 700, 1000, 1500, 2500, 4000, 6000] {
        if milliseconds > 150 && stopped.len() == 2 {
            break;
        }
        for (place, arguments) in [
            (&home, &["export", "--whole", &*id, "part"][..]),
            (&other, &["import", whole.to_str().unwrap()]),
        ] {
            let mut child =
                place.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            signal(&child, Signal::SIGINT);
            let status = ends_within(&mut child, 60).expect("it ends");
            let early = status.signal() == Some(Signal::SIGINT as i32);
            assert!(early || matches!(status.code(), Some(0 | 130)), "{arguments:?}: {status:?}");
            if status.code() == Some(130) {
                stopped.insert(arguments[0]);
            }
            assert!(temporary(&place.work()).is_empty(), "{arguments:?} after {milliseconds} ms");
            let open = std::fs::read_dir(place.home().join("open")).into_iter().flatten().count();
            assert_eq!(open, 0, "{arguments:?} after {milliseconds} ms");
        }
        let _ = other.output(&["rm", &id]);
    }
    assert_eq!(stopped.len(), 2, "both were stopped at their work: {stopped:?}");
}

#[test]
fn ctrl_c_ends_a_shell_whose_program_computes() {
    let home = Sandbox::new("computes");
    let id = home.job(&[], &["echo", "x"]).id;
    let mut child = home
        .command(&["shell", &id, "@job", "-c", "while :; do :; done"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // What it says before is shown when it stops, so there is nothing to wait for but time.
    std::thread::sleep(Duration::from_secs(4));
    assert!(child.try_wait().unwrap().is_none(), "it computes");
    signal(&child, Signal::SIGINT);
    let status = ends_within(&mut child, 5).expect("it ends at the first Ctrl-C");
    assert_eq!(status.code(), Some(130));
}

#[test]
fn places_and_endings_are_explained() {
    let home = Sandbox::new("places");
    let id = home.job(&[], &["sh", "-c", "echo 'a\nb'"]).id;
    for place in ["+5", "5++3", "x", ""] {
        let error = home.fails(1, &["events", &id, &format!("--from={place}")]);
        assert!(error.contains("is no position") && !error.contains("invalid digit"), "{place}: {error}");
    }
    assert!(home.fails(1, &["events", &id, "--from", "99999999"]).contains("past the end"));
    assert!(!home.ok(&["events", &id, "--to", "99999999"]).is_empty());
    for command in [
        &["ps", &*id, "600+99999999"][..],
        &["replay", &id, "--from", "600+99999999"],
        &["events", &id, "--from", "600+99999999"],
        &["events", &id, "--syscalls", "--from", "600+99999999"],
    ] {
        let error = home.fails(1, command);
        assert!(error.contains("whole steps"), "{command:?}: {error}");
    }
    let output = home.output(&["ls", "--command", "a"]);
    assert!(errors(&output).contains("1 run; "), "{}", errors(&output));
    let error = home.fails(2, &["ls", "--end", "nonsense"]);
    assert!(error.contains("stalled") && error.contains("exited:N"), "{error}");
    let shown = home.ok(&["ps", &id, "@job", "--all"]);
    assert!(
        shown.lines().skip(1).all(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())),
        "{shown}"
    );
    // Nothing was removed: nothing is to be given back.
    assert!(!home.fails(1, &["rm", "ffff0000ffff"]).contains("rewind gc"));
    assert!(errors(&home.output(&["rm", &id])).contains("rewind gc"));
}
