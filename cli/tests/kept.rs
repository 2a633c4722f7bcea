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
        .arg("prog")
        .args(options)
        .arg("prog.c")
        .current_dir(top)
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

/// What `where` says of the crash of a program over the host's root.
fn crash_of(home: &Sandbox, command: &[&str]) -> (String, String) {
    let run =
        Job::of(&home.output(&[&["run", "--engine", "soft", "--memory", MEMORY, "--"], command].concat()));
    assert_eq!(run.status, Some(134), "{}", run.errors);
    let place = home.ok(&["where", &run.id, "@crash"]);
    (run.id, place)
}

#[test]
fn sources_that_are_not_kept_are_not_shown_as_they_are_now() {
    let home = Sandbox::apart("kept-odd");
    let gcc = |arguments: &[&str]| {
        let built =
            std::process::Command::new("gcc").args(arguments).current_dir(home.work()).output().unwrap();
        assert!(built.status.success(), "{}", errors(&built));
    };
    let write = |name: &str, text: &str| std::fs::write(home.work().join(name), text).unwrap();
    let later = |name: &str| {
        let path = home.work().join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("/* later */\n/* later */\n{text}")).unwrap();
    };
    let crashing = "#include <stdlib.h>\nvoid lib(void) {\n\tabort(); /* as it was */\n}\n";
    for folder in ["usr/src", "lib", "bin", "plugins"] {
        std::fs::create_dir_all(home.work().join(folder)).unwrap();
    }
    // A folder called usr is no system's, a program in a link's folder has its libraries by its own.
    write("usr/src/l.c", crashing);
    write("p.c", "void lib(void);\nint main(void) { lib(); return 0; }\n");
    gcc(&["-g", "-shared", "-fPIC", "usr/src/l.c", "-o", "lib/libl.so"]);
    gcc(&["-g", "p.c", "-o", "lib/p", "-Llib", "-ll", "-Wl,-rpath,$ORIGIN"]);
    std::os::unix::fs::symlink("../lib/p", home.work().join("bin/p")).unwrap();
    // A plug-in.
    write("plugins/l.c", crashing);
    gcc(&["-g", "-shared", "-fPIC", "plugins/l.c", "-o", "plugins/plug.so"]);
    write(
        "dl.c",
        "#include <dlfcn.h>\nint main(void) { void (*f)(void) = dlsym(dlopen(\"plugins/plug.so\", 2), \"lib\"); f(); }\n",
    );
    gcc(&["-g", "dl.c", "-o", "dl"]);
    let (linked, linked_place) = crash_of(&home, &["bin/p"]);
    let (plugged, plugged_place) = crash_of(&home, &["./dl"]);
    for name in ["usr/src/l.c", "plugins/l.c", "p.c", "dl.c"] {
        later(name);
    }
    gcc(&["-g", "-shared", "-fPIC", "plugins/l.c", "-o", "plugins/plug.so"]);
    for (run, place) in [(&linked, &linked_place), (&plugged, &plugged_place)] {
        assert!(place.contains("l.c:3") && place.contains("abort(); /* as it was */"), "{place}");
        assert_eq!(&home.ok(&["where", run, "@crash"]), place);
    }
    // The job makes its source itself.
    write("n.c", "/* before */\n/* before */\n/* before */\n/* before */\nint main(void) { return 0; }\n");
    write("made.c", "#include <stdlib.h>\n\n\nint main(void) {\n\tabort();\n}\n");
    let (_, place) = crash_of(&home, &["sh", "-c", "cp made.c n.c && gcc -g n.c -o n && exec ./n"]);
    assert!(place.contains("n.c:5") && !place.contains("return 0"), "{place}");
    // Looking at what the run has not read, which is another now.
    write("unread", "as it was\n");
    let (run, _) = crash_of(&home, &["bin/p"]);
    assert_eq!(home.ok(&["cat", &run, "unread"]), "as it was\n");
    write("unread", "as it is now\n");
    let error = home.fails(1, &["cat", &run, "unread"]);
    assert!(!error.contains("as it is now"), "{error}");
}

#[test]
fn a_run_that_says_it_is_its_own_parent_can_be_looked_at() {
    let home = Sandbox::new("kept-circle");
    let run = home.job(&[], &["sh", "-c", "kill -SEGV $$"]);
    let path = home.home().join("runs").join(&run.id).join("recording");
    let mut recording: run::outcome::Recording = run::envelope::read(run::outcome::RECORDING, &path).unwrap();
    recording.parent = Some((run::id::from_hex(&run.id).map(run::id::RunId).unwrap(), 0));
    run::envelope::write(run::outcome::RECORDING, &path, &recording).unwrap();
    for command in [&["where", &*run.id, "@crash"][..], &["ls", "--forks-of", &run.id]] {
        assert!(!home.ok(command).is_empty(), "{command:?}");
    }
}

#[test]
fn forks_go_on_when_other_files_were_made_beside() {
    let home = Sandbox::apart("kept-fork");
    std::fs::write(home.work().join("t"), "echo a &\necho b\nwait\n").unwrap();
    let run = Job::of(&home.output(&["run", "--engine", "soft", "--memory", MEMORY, "--", "sh", "t"]));
    assert_eq!(run.status, Some(0), "{}", run.errors);
    let events = home.ok(&["events", &run.id, "--json", "--kind", "fork"]);
    let fork: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let step = fork["step"].to_string();
    std::fs::write(home.work().join("other"), "").unwrap();
    for number in ["1", "2"] {
        let child = Job::of(&home.output(&["fork", &run.id, &step, "--schedule", number]));
        assert_eq!(child.status, Some(0), "{}", child.errors);
        assert!(home.ok(&["replay", &child.id]).contains("identical"));
    }
    let place =
        serde_json::json!([{ "place": { "thread": fork["child"], "syscall": 1 }, "action": "preempt" }]);
    std::fs::write(home.work().join("d"), place.to_string()).unwrap();
    let child = Job::of(&home.output(&["fork", &run.id, &step, "--decisions", "d"]));
    assert_eq!(child.status, Some(0), "{}", child.errors);
    // What the run itself was is not recorded twice, also where it came from elsewhere.
    let whole = home.job(&[], &["sh", "-c", "echo x"]);
    let file = home.work().join("whole.rewind");
    let plain = home.work().join("plain.rewind");
    home.ok(&["export", "--whole", &whole.id, file.to_str().unwrap()]);
    home.ok(&["export", &whole.id, plain.to_str().unwrap()]);
    let elsewhere = Sandbox::bare("kept-fork-elsewhere");
    elsewhere.ok(&["import", plain.to_str().unwrap()]);
    assert!(!elsewhere.output(&["shell", &whole.id, "@job", "-c", "md5sum /bin/*"]).status.success());
    elsewhere.ok(&["import", file.to_str().unwrap()]);
    elsewhere.ok(&["shell", &whole.id, "@job", "-c", "md5sum /bin/*"]);
    let again = Job::of(&elsewhere.output(&["fork", &whole.id, "@job"]));
    assert_eq!((again.status, &again.id), (Some(0), &whole.id), "{}", again.errors);
    assert!(elsewhere.ok(&["replay", &whole.id]).contains("identical"));
    let error = home.fails(1, &["export", "--whole", &run.id, file.to_str().unwrap()]);
    assert!(error.contains("own root"), "{error}");
}
