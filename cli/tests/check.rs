//! `rewind check` end to end, over static programs in a root of their own.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

struct Fixture {
    dir: PathBuf,
}

fn top() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A root of the test's own with these examples, linked statically: NAME, NAME-fixed, or NAME-moved, the same code
/// compiled to other instructions.
fn fixture(test: &str, programs: &[&str]) -> Fixture {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("check-{test}"));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("root/bin")).unwrap();
    std::fs::create_dir_all(dir.join("root/tmp")).unwrap();
    for name in programs {
        let example = name.trim_end_matches("-fixed").trim_end_matches("-moved");
        let source = top().join(format!("examples/{example}/{example}.c"));
        let flag = match name.strip_prefix(example) {
            Some("-fixed") => "-DFIXED",
            Some("-moved") => "-O0",
            _ => "-O1",
        };
        let mut cc = Command::new("cc");
        cc.args(["-static", "-g", "-O1", "-pthread", flag, "-o"])
            .arg(dir.join("root/bin").join(name))
            .arg(source);
        assert!(cc.status().unwrap().success(), "cc of {name}");
    }
    Fixture { dir }
}

impl Fixture {
    fn check(&self, home: &str, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_rewind"))
            .env("REWIND_HOME", self.dir.join(home))
            .arg("check")
            .args(args)
            .output()
            .unwrap()
    }

    /// Over the fixture's root.
    fn over_root(&self, home: &str, args: &[&str]) -> Output {
        let root = self.dir.join("root");
        let mut all = vec!["--engine", "soft", "--root", root.to_str().unwrap()];
        all.extend(args);
        self.check(home, &all)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn status(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

fn save_arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// One job and two jobs, on homes of their own, tell the same; the saved schedule fails again, passes on the fix, and
/// a file that names nothing in the program is said to test nothing.
#[test]
fn the_bank_loses_money_in_the_same_words_whatever_the_jobs() {
    let fixture = fixture("bank", &["bank", "bank-fixed"]);
    let saved = fixture.path("bank.schedule");
    let one = fixture.over_root("home-1", &["--jobs", "1", "--save", save_arg(&saved), "--", "/bin/bank"]);
    let report = text(&one);
    assert_eq!(status(&one), 1, "{report}{}", String::from_utf8_lossy(&one.stderr));
    for part in [
        "violates same-outcome, sdk",
        "narrowed: ",
        "bank.c:",
        "passing partner: run ",
        "balance-adds-up",
        "n = 3, k = ",
    ] {
        assert!(report.contains(part), "no {part:?} in\n{report}");
    }
    let two = fixture.over_root("home-2", &["--jobs", "2", "--", "/bin/bank"]);
    assert_eq!(report, text(&two));

    let again = fixture.over_root("home-1", &["--replay", save_arg(&saved), "--", "/bin/bank"]);
    assert_eq!(status(&again), 1, "{}", text(&again));
    assert!(text(&again).contains("violates same-outcome, sdk"), "{}", text(&again));
    let fixed = fixture.over_root("home-1", &["--replay", save_arg(&saved), "--", "/bin/bank-fixed"]);
    assert_eq!(status(&fixed), 0, "{}", text(&fixed));
    assert!(text(&fixed).contains("holds"), "{}", text(&fixed));

    let foreign = std::fs::read_to_string(&saved).unwrap().replace("\"thread\": \"0.", "\"thread\": \"0.7.");
    let file = fixture.path("foreign.schedule");
    std::fs::write(&file, foreign).unwrap();
    let nothing = fixture.over_root("home-1", &["--replay", save_arg(&file), "--", "/bin/bank"]);
    assert_eq!(status(&nothing), 1, "{}", text(&nothing));
    assert!(text(&nothing).contains("this tests nothing"), "{}", text(&nothing));
}

#[test]
fn a_deadlock_says_who_waits_for_whom() {
    let output = fixture("deadlock", &["philosophers"])
        .over_root("home-3", &["--schedules", "400", "--", "/bin/philosophers"]);
    let report = text(&output);
    assert_eq!(status(&output), 1, "{report}");
    assert!(report.contains("violates no-hang"), "{report}");
    assert!(report.contains("waits for the mutex forks"), "{report}");
    assert!(report.contains("held by thread"), "{report}");
    assert!(report.contains("they wait in a circle: "), "{report}");
    assert!(report.contains("philosophers.c:"), "{report}");
}

/// Found by `accesses`, inside a step; the saved schedule fails on a build with other instructions too.
#[test]
fn two_stores_are_found_by_their_accesses_and_again_after_a_recompile() {
    let fixture = fixture("stores", &["two-stores", "two-stores-moved"]);
    let saved = fixture.path("stores.schedule");
    let args = ["--strategy", "accesses", "--save", save_arg(&saved), "--", "/bin/two-stores"];
    let output = fixture.over_root("home-4", &args);
    let report = text(&output);
    assert_eq!(status(&output), 1, "{report}");
    assert!(report.contains("(worker), after it has written done"), "{report}");
    assert!(report.contains("is killed by SIGABRT at two-stores.c:"), "{report}");
    let moved = fixture.over_root("home-4", &["--replay", save_arg(&saved), "--", "/bin/two-stores-moved"]);
    assert_eq!(status(&moved), 1, "{}", text(&moved));
    assert!(text(&moved).contains("violates same-outcome, no-crash"), "{}", text(&moved));
}

/// A command that must succeed, run in the fixture's folder.
fn built(fixture: &Fixture, command: &mut Command) {
    let done =
        command.current_dir(&fixture.dir).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The report on /bin/NAME under the default search: it must fail.
fn found(fixture: &Fixture, name: &str) -> String {
    let output = fixture.over_root("home", &["--", &format!("/bin/{name}")]);
    let report = text(&output);
    assert_eq!(status(&output), 1, "{report}{}", String::from_utf8_lossy(&output.stderr));
    assert!(report.contains("narrowed: "), "{report}");
    report
}

#[test]
fn locks_in_opposite_orders_are_found_where_nobody_enters_the_kernel() {
    let fixture = fixture("abba", &[]);
    let mut cc = Command::new("cc");
    cc.args(["-static", "-g", "-O1", "-pthread", "-o", "root/bin/abba"])
        .arg(top().join("tests/check/abba.c"));
    built(&fixture, &mut cc);
    let report = found(&fixture, "abba");
    assert!(report.contains("waits for the mutex journal, held by thread"), "{report}");
    assert!(report.contains("waits for the mutex accounts, held by thread"), "{report}");
}

/// The accesses are made by the language's library, not by a line of the program.
#[test]
fn a_look_and_a_take_of_safe_rust_are_found() {
    let fixture = fixture("seats", &[]);
    let mut rustc = Command::new("rustc");
    rustc.args(["-g", "--edition", "2021", "-C", "target-feature=+crt-static", "-o", "root/bin/seats"]);
    built(&fixture, rustc.arg(top().join("tests/check/seats.rs")));
    let report = found(&fixture, "seats");
    assert!(report.contains("violates same-outcome"), "{report}");
    assert!(report.contains("seats.rs:"), "{report}");
}

/// Goroutines race only where the job sees more cores than one, as it does by default.
#[test]
fn a_race_of_goroutines_is_found() {
    let fixture = fixture("race", &[]);
    std::fs::copy(top().join("tests/check/race.go"), fixture.path("race.go")).unwrap();
    let mut go = Command::new("go");
    go.args(["build", "-o", "root/bin/race", "race.go"]);
    built(&fixture, go.env("CGO_ENABLED", "0").env("GOCACHE", fixture.path("cache")));
    std::fs::write(fixture.path("root/tmp/names"), "alpha\n").unwrap();
    let report = found(&fixture, "race");
    assert!(report.contains("output line 1 is \"loads 2\", in schedule 0 \"loads 1\""), "{report}");
    // Which thread is held up may be the runtime's choice: in its own code, far from race.go.
    assert!(report.contains("race) is "), "{report}");
}

/// A thread that spins through the kernel for ever: the schedule's run is kept up to where it was cut off.
#[test]
fn a_spin_for_ever_is_a_hang_whose_run_is_kept() {
    let fixture = fixture("spin", &[]);
    let mut cc = Command::new("cc");
    cc.args(["-static", "-g", "-O1", "-pthread", "-o", "root/bin/spin"])
        .arg(top().join("tests/check/spin.c"));
    built(&fixture, &mut cc);
    let report = found(&fixture, "spin");
    assert!(report.contains("violates same-outcome, no-hang"), "{report}");
    let failing = report.lines().find_map(|line| line.strip_prefix("failing: run ")).expect("a kept run");
    let rewind = env!("CARGO_BIN_EXE_rewind");
    let replay = Command::new(rewind)
        .args(["replay", failing])
        .env("REWIND_HOME", fixture.path("home"))
        .output()
        .unwrap();
    assert!(text(&replay).contains("identical"), "{}", text(&replay));
    // The undisturbed job never ends either: the time is up.
    let output = fixture.over_root("home", &["--timeout", "20ms", "--", "/bin/spin", "once-more"]);
    assert_eq!(status(&output), 1, "{}", text(&output));
    assert!(text(&output).contains("schedule   0: timed-out"), "{}", text(&output));
    assert!(text(&output).contains("when the time of --timeout was up"), "{}", text(&output));
}

/// A saved schedule goes with its calls: more of them before it, or lines above it, do not matter.
#[test]
fn a_saved_schedule_survives_a_changed_program() {
    let fixture = fixture("changed", &[]);
    let source = std::fs::read_to_string(top().join("examples/bank/bank.c")).unwrap();
    let source = source.replace("../../sdk/c/rewind.h", "rewind.h");
    let starts = "    int number = *(int *)argument;\n";
    let more =
        source.replace(starts, &format!("    /* One line more. */\n{starts}    write(2, \"open\\n\", 5);\n"));
    let less = source.replace("    print(seen);\n", "");
    assert!(more.len() > source.len() && less.len() < source.len(), "bank.c has changed");
    for (name, text) in [("bank", &source), ("bank-more", &more), ("bank-less", &less)] {
        std::fs::write(fixture.path(&format!("{name}.c")), text).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-static", "-g", "-O1", "-w", "-pthread", "-I"]).arg(top().join("sdk/c"));
        built(&fixture, cc.args(["-o", &format!("root/bin/{name}"), &format!("{name}.c")]));
    }
    let saved = fixture.path("bank.schedule");
    let args = ["--strategy", "pct:2", "--schedules", "2000", "--save", save_arg(&saved), "--", "/bin/bank"];
    let output = fixture.over_root("home", &args);
    assert_eq!(status(&output), 1, "{}", text(&output));
    let again = fixture.over_root("home", &["--replay", save_arg(&saved), "--", "/bin/bank-more"]);
    assert_eq!(status(&again), 1, "{}", text(&again));
    assert!(text(&again).contains("violates same-outcome, sdk"), "{}", text(&again));
    assert!(!text(&again).contains("was not reached"), "{}", text(&again));
    assert!(
        text(&again).contains("decision 1 is at another system call of its thread now"),
        "{}",
        text(&again)
    );
    let gone = fixture.over_root("home", &["--replay", save_arg(&saved), "--", "/bin/bank-less"]);
    assert_eq!(status(&gone), 1, "{}", text(&gone));
    assert!(text(&gone).contains("has no such place any more"), "{}", text(&gone));
    assert!(text(&gone).contains("this tests nothing"), "{}", text(&gone));
}

#[test]
fn fixed_programs_pass() {
    let fixture = fixture("fixed", &["bank-fixed", "two-stores-fixed"]);
    for program in ["/bin/bank-fixed", "/bin/two-stores-fixed"] {
        let output = fixture.over_root("home-5", &["--schedules", "40", "--", program]);
        let report = text(&output);
        assert_eq!(status(&output), 0, "{program}: {report}");
        assert!(report.ends_with("0 of 41 schedules tried violate a property\n"), "{report}");
    }
}

#[test]
fn a_search_that_was_stopped_is_no_pass() {
    let fixture = fixture("stopped", &["bank-fixed"]);
    let root = fixture.path("root");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rewind"));
    command
        .env("REWIND_HOME", fixture.path("home-7"))
        .args(["check", "--engine", "soft", "--root"])
        .arg(root);
    command.args(["--schedules", "1000000", "--", "/bin/bank-fixed"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The undisturbed schedule is told first, and then the search is on.
    let mut told = BufReader::new(child.stdout.take().unwrap());
    told.read_line(&mut String::new()).unwrap();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(status(&output), 130, "{rest}{error}");
    assert!(error.contains("stopped before all were tried"), "{error}");
    assert!(rest.contains("tried violate a property"), "{rest}");
}

#[test]
fn bad_usage_is_named() {
    let fixture = fixture("usage", &["bank"]);
    let cases: [(&[&str], i32, &str); 9] = [
        (&[], 2, "no command to check"),
        (&["--strategy", "dfs", "--", "/bin/bank"], 2, "dfs is not a strategy"),
        (&["--strategy", "pct:0", "--", "/bin/bank"], 2, "depth of pct"),
        (&["--property", "x", "--", "/bin/bank"], 2, "x is not a property"),
        (&["--timeout", "2 years", "--", "/bin/bank"], 2, "no unit of time"),
        (&["--jobs", "0", "--", "/bin/bank"], 2, "--jobs"),
        (&["--replay", "/nowhere", "--save", "x", "--", "/bin/bank"], 2, "cannot be used with"),
        (&["--run", "12", "--", "/bin/bank"], 2, "cannot be used with"),
        (&["--from", "@job", "--", "/bin/bank"], 2, "--run"),
    ];
    for (args, wanted, words) in cases {
        let output = fixture.check("home-6", args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(status(&output), wanted, "{args:?}: {error}");
        assert!(error.contains(words), "{args:?}: {error}");
    }
    let file = fixture.path("no.schedule");
    std::fs::write(&file, "{\"format\": \"else\"}").unwrap();
    let output = fixture.over_root("home-6", &["--replay", save_arg(&file), "--", "/bin/bank"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(status(&output), 1, "{error}");
    assert!(error.contains("not a schedule file"), "{error}");
    let output = fixture.over_root("home-6", &["--from", "5", "--", "/bin/bank"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(status(&output), 1, "{error}");
    assert!(error.contains("decisions can start from step"), "{error}");
}
