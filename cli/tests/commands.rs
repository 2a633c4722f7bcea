//! Every command on one run: text for people, JSON for programs, the same errors from all of them.

mod support;
use support::{Sandbox, errors};

/// One JSON object a line.
fn objects(text: &str) -> Vec<serde_json::Value> {
    let parsed = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"))
    };
    let objects: Vec<_> = text.lines().map(parsed).collect();
    assert!(objects.iter().all(serde_json::Value::is_object), "{text}");
    objects
}

#[test]
fn every_reading_command_speaks_json_and_only_json() {
    let home = Sandbox::new("json");
    let script = "echo out; echo err >&2; cat /etc/group > /tmp/x; exit 3";
    let job = home.job(&["--out", "/tmp/x", "--out", "/nope"], &["sh", "-c", script]);
    assert_eq!((job.status, &*job.out), (Some(3), "out\n"), "{}", job.errors);
    assert!(job.errors.contains("out /nope  not there"), "{}", job.errors);
    let device = home.job(&["--out", "/dev/zero", "--out", "/proc/self"], &["sh", "-c", "echo ran; exit 4"]);
    assert_eq!((device.status, &*device.out), (Some(4), "ran\n"), "{}", device.errors);
    assert!(
        device.errors.contains("out /dev/zero  not there, or nothing that can be read"),
        "{}",
        device.errors
    );
    let id = &*job.id;
    let other = home.job(&["--seed", "7"], &["sh", "-c", script]).id;
    let file = home.work().join("x.rewind");
    let file = file.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["ls"],
        &["events", id],
        &["events", id, "--syscalls", "--from", "@job", "--to", "@end"],
        &["log", id],
        &["ps", id],
        &["ps", id, "--all"],
        &["threads", id],
        &["diff", id, &other],
        &["replay", id],
        &["replay", id, "--from", "@end"],
        &["cat", id, "/etc/group"],
        &["doctor"],
        &["export", id, file],
        &["import", file],
        &["fork", id, "@job"],
        &["prune", id],
        &["gc"],
        &["rm", &other],
    ];
    for command in commands {
        let output = home.output(&[command, &["--json"][..]].concat());
        let found = objects(&String::from_utf8_lossy(&output.stdout));
        // At the end nobody lives.
        assert!(!found.is_empty() || command == &["ps", id], "{command:?}: {}", errors(&output));
        let code = output.status.code();
        // diff finds a difference; fork is the job's own status.
        assert!(
            matches!((command[0], code), ("diff", Some(1)) | ("fork", Some(3)) | (_, Some(0))),
            "{command:?} {code:?}"
        );
    }
    let root = support::test_root();
    let arguments = ["run", "--engine", "soft", "--memory", support::MEMORY, "--json", "--root"];
    let output = home.command(&arguments).arg(root).args(["--", "echo", "x"]).output().unwrap();
    let found = objects(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(found.last().unwrap()["end"], "exited:0");
}

#[test]
fn bad_input_is_named_by_every_command() {
    let home = Sandbox::new("bad");
    let a = home.job(&[], &["echo", "a"]).id;
    let run = home.home().join("runs").join(&a);
    for command in ["replay", "events", "log", "ps", "threads", "prune", "rm", "export"] {
        let error = home.fails(1, &[command, "ffff0000ffff"]);
        assert!(error.contains("no run"), "{command}: {error}");
    }
    // The empty prefix fits them all.
    assert!(home.fails(1, &["log", ""]).contains("not a run id"));
    // Another run whose id differs in the last digit only.
    let twin = format!("{}{}", &a[..15], if a.ends_with('0') { '1' } else { '0' });
    std::fs::create_dir(run.with_file_name(&twin)).unwrap();
    let error = home.fails(1, &["log", &a[..9]]);
    assert!(error.contains(&a) && error.contains(&twin) && error.contains("more digits"), "{error}");
    std::fs::remove_dir(run.with_file_name(&twin)).unwrap();
    for command in [
        &["cat", &a, "/x", "--at"][..],
        &["shell", &a],
        &["fork", &a],
        &["replay", &a, "--from"],
        &["ps", &a],
    ] {
        let error = home.fails(1, &[command, &["900000"]].concat());
        assert!(error.contains("past the end"), "{command:?}: {error}");
    }
    for place in ["x", "1+", "-1", "@nowhere", "18446744073709551616"] {
        let output = home.output(&["cat", &a, "/x", &format!("--at={place}")]);
        assert!(errors(&output).contains("position"), "{place}: {}", errors(&output));
    }
    assert!(home.fails(1, &["cat", &a, "/x", "--at", "@crash"]).contains("nothing crashed"));
    // Files of the run, each damaged in turn, and put back.
    for name in ["spec", "outcome", "recording", "trace"] {
        let path = run.join(name);
        let good = std::fs::read(&path).unwrap();
        for (bad, says) in
            [(flipped(&good), "damaged"), (older(&good), "version"), (good[..good.len() / 2].to_vec(), "")]
        {
            std::fs::write(&path, &bad).unwrap();
            let error = home.output(&["replay", &a]);
            let text = format!("{}{}", errors(&error), String::from_utf8_lossy(&error.stdout));
            assert!(!error.status.success() && text.contains(says), "{name}: {text}");
            assert!(!text.contains("panicked"), "{name}: {text}");
            home.ok(&["ls"]);
        }
        std::fs::write(&path, &good).unwrap();
    }
    assert!(home.ok(&["replay", &a]).contains("identical"));
    // The home of another version, and a home that is none.
    std::fs::write(home.home().join("version"), "0\n").unwrap();
    assert!(home.fails(1, &["ls"]).contains("layout version 0"));
    std::fs::write(home.home().join("version"), "1\n").unwrap();
    let output = home.command(&["ls"]).env("REWIND_HOME", home.dir()).output().unwrap();
    assert!(errors(&output).contains("not a Rewind home"), "{}", errors(&output));
}

fn flipped(good: &[u8]) -> Vec<u8> {
    let mut bad = good.to_vec();
    let at = bad.len() - 40;
    bad[at] ^= 4;
    bad
}

fn older(good: &[u8]) -> Vec<u8> {
    let mut bad = good.to_vec();
    bad[8] = 0;
    // With the right checksum, of files that have one for all of them.
    if !good.starts_with(b"RWDTRAC") {
        let content = bad.len() - 32;
        let hash = blake3::hash(&bad[..content]);
        bad[content..].copy_from_slice(hash.as_bytes());
    }
    bad
}

#[test]
fn a_changed_root_is_another_input_and_what_was_recorded_over_the_old_one_stays() {
    let home = Sandbox::new("changed");
    let root = home.work().join("root");
    for dir in ["bin", "etc"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    std::fs::write(root.join("etc/x"), "one").unwrap();
    let arguments = [
        "run",
        "--engine",
        "soft",
        "--memory",
        support::MEMORY,
        "--root",
        "root",
        "--",
        "/bin/busybox",
        "cat",
        "/etc/x",
    ];
    let first = support::Job::of(&home.output(&arguments));
    assert_eq!(first.out, "one", "{}", first.errors);
    assert!(home.ok(&["replay", &first.id]).contains("identical"));
    std::fs::write(root.join("etc/x"), "two").unwrap();
    assert!(home.ok(&["replay", &first.id]).contains("identical"), "what it read is kept");
    let second = support::Job::of(&home.output(&arguments));
    assert!(second.out == "two" && second.id != first.id, "{}", second.errors);
    std::fs::write(root.join("etc/x"), "one").unwrap();
    let again = support::Job::of(&home.output(&arguments));
    assert!(again.found && again.id == first.id, "by content, not by time: {}", again.errors);
    let whole = home.work().join("whole.rewind");
    home.ok(&["export", "--whole", &first.id, whole.to_str().unwrap()]);
    std::fs::rename(&root, home.work().join("away")).unwrap();
    for run in [&first.id, &second.id] {
        assert!(home.ok(&["replay", run]).contains("identical"));
    }
    // What was not read is said.
    let output = home.output(&["cat", &first.id, "/bin/busybox"]);
    assert!(errors(&output).contains("only files the run has read"), "{}", errors(&output));
    // Elsewhere with all of the root.
    let elsewhere = Sandbox::bare("changed-elsewhere");
    elsewhere.ok(&["import", whole.to_str().unwrap()]);
    let content = elsewhere.ok(&["shell", &first.id, "@job", "--", "/bin/busybox", "cat", "/etc/x"]);
    assert_eq!(content, "one");
}

#[test]
fn names_and_arguments_are_any_bytes() {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let home = Sandbox::apart("bytes");
    let odd = std::ffi::OsString::from_vec(b"odd \xff\xfe name".to_vec());
    let folder = home.work().join(&odd);
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join(&odd), "inside\n").unwrap();
    let run = |tail: &[&std::ffi::OsStr]| {
        let arguments = ["run", "--engine", "soft", "--memory", support::MEMORY, "--env"];
        let mut command = home.command(&arguments);
        command
            .arg(std::ffi::OsString::from_vec(b"ODD=\xff".to_vec()))
            .current_dir(&folder)
            .arg("--")
            .args(tail);
        command.output().unwrap()
    };
    let output = run(&["cat".as_ref(), &odd]);
    let job = support::Job::of(&output);
    assert_eq!((job.status, &*job.out), (Some(0), "inside\n"), "{}", job.errors);
    let output = run(&["sh".as_ref(), "-c".as_ref(), "printf %s \"$ODD\"".as_ref()]);
    assert_eq!(output.stdout, b"\xff", "{}", errors(&output));
    let mut cat = home.command(&["cat", &job.id]);
    let output = cat.arg(folder.join(&odd)).output().unwrap();
    assert_eq!(output.stdout, b"inside\n", "{}", errors(&output));
    // The folder is found again for going on there.
    let mut shell = home.command(&["shell", &job.id, "@job", "--", "ls"]);
    let output = shell.arg(std::ffi::OsStr::from_bytes(b".")).output().unwrap();
    assert_eq!(output.stdout, [odd.as_bytes(), b"\n"].concat(), "{}", errors(&output));
    assert!(home.ok(&["replay", &job.id]).contains("identical"));
    objects(&home.ok(&["ls", "--json"]));
}

#[test]
fn options_out_of_range_are_usage_errors_and_kinds_are_known() {
    let home = Sandbox::new("usage");
    let run = home.job(&["--epoch", "1"], &["sh", "-c", "date +%s; :"]);
    assert!(run.out == "1\n" || run.out == "2\n", "{} {}", run.out, run.errors);
    let late = home.job(&["--epoch", "8277292035"], &["sh", "-c", "date +%s; :"]);
    assert!(late.out.starts_with("827729203"), "{} {}", late.out, late.errors);
    for epoch in ["0", "-5", "8277292036"] {
        let options = ["run", &format!("--epoch={epoch}"), "--", "true"];
        assert!(home.fails(2, &options).contains("--epoch"), "{epoch}");
    }
    assert!(home.fails(2, &["run", "--env", "NOVALUE", "--", "true"]).contains("KEY=VALUE"));
    let error = home.fails(2, &["events", &run.id, "--kind", "nosuch"]);
    assert!(error.contains("nosuch") && error.contains("syscall-enter"), "{error}");
    // A kind of a richer level is found without asking for the level.
    let calls = home.ok(&["events", &run.id, "--kind", "syscall-enter"]);
    assert!(calls.lines().count() > 10 && !calls.contains("output"), "{calls}");
    assert_eq!(calls, home.ok(&["events", &run.id, "--syscalls", "--kind", "syscall-enter"]));
    assert!(home.fails(2, &["blame", &run.id, "--at", "@end", "x", "--limit", "0"]).contains("--limit"));
}

#[test]
fn completions_and_manual_pages_come_from_the_parser() {
    let home = Sandbox::bare("pages");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = home.ok(&["completions", shell]);
        assert!(["shell", "cat", "spacing"].iter().all(|word| text.contains(word)), "{shell}");
    }
    home.ok(&["man", "pages"]);
    let page = std::fs::read_to_string(home.work().join("pages/rewind-run.1")).unwrap();
    assert!(page.contains("clock") && page.contains(".TH"), "{page}");
}
