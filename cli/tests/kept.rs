//! What a run keeps of its root: it replays, and shows its program and sources as they were, when they have changed or are
//! gone.

mod support;
use std::path::Path;

use support::{Job, MEMORY, Sandbox, errors};

const FIRST: &str = "#include <stdlib.h>\nint counter;\nstatic void put(int n) { counter = n; }\n\
                     int main(void) {\n\tput(7);\n\tabort(); /* as it was */\n}\n";
const SECOND: &str = "#include <stdlib.h>\nlong other, counter;\nstatic void set(int n) { other = n; }\n\
                      int main(void) {\n\tset(8);\n\treturn 0; /* as it is now */\n}\n";

/// Writes a program's source and builds it, as a folder `top` sees it.
fn build(top: &Path, text: &str) {
    std::fs::write(top.join("prog.c"), text).unwrap();
    let map = format!("-ffile-prefix-map={}=", top.parent().unwrap().display());
    let options: &[&str] = if top.ends_with("root/src") { &["-static", &map] } else { &[] };
    let built = std::process::Command::new("gcc")
        .args(["-g", "-O0", "-o"])
        .arg(top.join("prog"))
        .args(options)
        .arg(top.join("prog.c"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", errors(&built));
}

/// What is said of a run: that it is whole, where it crashed, and who wrote.
fn said(home: &Sandbox, run: &str) {
    assert!(home.ok(&["replay", run]).contains("identical"));
    let place = home.ok(&["where", run, "@crash"]);
    assert!(place.contains("prog.c:6") && place.contains("abort(); /* as it was */"), "{place}");
    let blame = home.ok(&["blame", run, "--at", "@crash", "counter"]);
    assert!(blame.contains("counter = 7") && blame.contains("prog.c:3"), "{blame}");
    assert!(blame.contains("static void put(int n) { counter = n; }"), "{blame}");
    let commands = ["-batch", "-ex", "list prog.c:6,prog.c:6", "-ex", "print counter"];
    let shown = home.ok(&[&["gdb", run, "@crash", "--"][..], &commands[..]].concat());
    assert!(shown.contains("6\t\tabort(); /* as it was */"), "{shown}");
    assert!(shown.contains("$1 = 7"), "{shown}");
}

/// The same in a home that has nothing of this one.
fn said_elsewhere(home: &Sandbox, run: &str) {
    let file = home.work().join("kept.rewind");
    home.ok(&["export", run, file.to_str().unwrap()]);
    let elsewhere = Sandbox::bare("kept-elsewhere");
    elsewhere.ok(&["import", file.to_str().unwrap()]);
    said(&elsewhere, run);
    elsewhere.ok(&["gc", "--verify"]);
    said(&elsewhere, run);
}

#[test]
fn over_the_hosts_root() {
    let home = Sandbox::apart("kept");
    build(&home.work(), FIRST);
    let arguments = ["run", "--engine", "soft", "--memory", MEMORY, "--", "./prog"];
    let run = Job::of(&home.output(&arguments));
    assert_eq!(run.status, Some(134), "{}", run.errors);
    // A source is no input of the run.
    std::fs::write(home.work().join("prog.c"), SECOND).unwrap();
    assert!(Job::of(&home.output(&arguments)).found);
    build(&home.work(), SECOND);
    let other = Job::of(&home.output(&arguments));
    assert_eq!((other.status, other.found), (Some(0), false), "{}", other.errors);
    home.ok(&["gc", "--verify"]);
    said(&home, &run.id);
    std::fs::remove_file(home.work().join("prog")).unwrap();
    std::fs::remove_file(home.work().join("prog.c")).unwrap();
    said(&home, &run.id);
    said_elsewhere(&home, &run.id);
}

#[test]
fn over_a_directory() {
    let home = Sandbox::new("kept");
    let root = home.work().join("root");
    std::fs::create_dir_all(root.join("src")).unwrap();
    std::fs::create_dir(root.join("bin")).unwrap();
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    build(&root.join("src"), FIRST);
    let arguments = ["run", "--engine", "soft", "--memory", MEMORY, "--root", "root", "--", "/src/prog"];
    let run = Job::of(&home.output(&arguments));
    assert_eq!(run.status, Some(134), "{}", run.errors);
    said(&home, &run.id);
    build(&root.join("src"), SECOND);
    let other = Job::of(&home.output(&arguments));
    assert!(other.status == Some(0) && other.id != run.id, "{}", other.errors);
    said(&home, &run.id);
    // Going on otherwise needs files that the run has not read.
    let shell = home.output(&["shell", &run.id, "@job", "--", "/bin/busybox", "true"]);
    let text = errors(&shell);
    assert!(text.contains("only files the run has read can be read"), "{text}");
    assert!(!shell.status.success(), "{text}");
    std::fs::remove_dir_all(&root).unwrap();
    said(&home, &run.id);
    said_elsewhere(&home, &run.id);
    let whole = home.work().join("whole.rewind");
    let error = home.fails(1, &["export", "--whole", &run.id, whole.to_str().unwrap()]);
    assert!(error.contains("root") && !whole.exists(), "{error}");
    // A fork that reads nothing new goes on.
    let fork = Job::of(&home.output(&["fork", &run.id, "@job"]));
    assert!(fork.errors.contains("only files the run has read can be read"), "{}", fork.errors);
    assert_eq!(fork.id, run.id, "{}", fork.errors);
}

#[test]
fn a_stripped_program_with_its_lines_in_a_file_beside_it() {
    let home = Sandbox::apart("kept-link");
    build(&home.work(), FIRST);
    let objcopy = |arguments: &[&str]| {
        let done =
            std::process::Command::new("objcopy").args(arguments).current_dir(home.work()).output().unwrap();
        assert!(done.status.success(), "{}", errors(&done));
    };
    std::fs::create_dir(home.work().join(".debug")).unwrap();
    objcopy(&["--only-keep-debug", "prog", ".debug/prog.debug"]);
    objcopy(&["--strip-all", "--remove-section=.note.gnu.build-id", "prog"]);
    objcopy(&["--remove-section=.note.gnu.build-id", ".debug/prog.debug"]);
    objcopy(&["--add-gnu-debuglink=.debug/prog.debug", "prog"]);
    let arguments = ["run", "--engine", "soft", "--memory", MEMORY, "--", "./prog"];
    let run = Job::of(&home.output(&arguments));
    assert_eq!(run.status, Some(134), "{}", run.errors);
    said(&home, &run.id);
    // Another program's lines are nobody's.
    std::fs::rename(home.work().join(".debug"), home.work().join("debug-of-first")).unwrap();
    let without = Job::of(&home.output(&[&arguments[..5], &["--seed", "5", "--", "./prog"]].concat()));
    let place = home.ok(&["where", &without.id, "@crash"]);
    assert!(!place.contains("prog.c"), "{place}");
    let mut other = std::fs::read(home.work().join("debug-of-first/prog.debug")).unwrap();
    other.push(0);
    std::fs::create_dir(home.work().join(".debug")).unwrap();
    std::fs::write(home.work().join(".debug/prog.debug"), &other).unwrap();
    let place = home.ok(&["where", &without.id, "@crash"]);
    assert!(!place.contains("prog.c"), "{place}");
    // The first run has its own.
    let place = home.ok(&["where", &run.id, "@crash"]);
    assert!(place.contains("abort(); /* as it was */"), "{place}");
}
