//! Homes in which something was changed or lost: what can be made again is, and what cannot is said, with the remedy.

mod support;
use std::path::{Path, PathBuf};

use support::{Job, Sandbox, errors};

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

fn flip_middle(path: &Path) {
    flip(path, std::fs::metadata(path).unwrap().len() as usize / 2);
}

/// Makes pages all over the store corrupt.
fn spoil_pages(home: &Sandbox) {
    for entry in std::fs::read_dir(home.home().join("pages")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "pack") {
            let mut bytes = std::fs::read(entry.path()).unwrap();
            for at in (64..bytes.len()).step_by(16 << 10) {
                bytes[at] ^= 0x55;
            }
            std::fs::write(entry.path(), bytes).unwrap();
        }
    }
}

/// A folder as root: what a job reads of it is logged.
fn small_root(home: &Sandbox) {
    let root = home.work().join("root");
    for dir in ["bin", "etc"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    std::fs::write(root.join("etc/x"), "one").unwrap();
}

fn over_small_root(home: &Sandbox, options: &[&str]) -> Job {
    let first = ["run", "--engine", "soft", "--memory", support::MEMORY, "--root", "root"];
    let job = ["--", "/bin/busybox", "cat", "/etc/x"];
    Job::of(&home.output(&[&first, options, &job].concat()))
}

#[test]
fn a_damaged_run_is_recorded_again_and_replays() {
    // Over the host's own files, so that the run has everything a run can have.
    let home = Sandbox::apart("damaged-run");
    std::fs::write(home.work().join("x"), "one").unwrap();
    let record = |options: &[&str]| {
        let first = ["run", "--engine", "soft", "--memory", support::MEMORY];
        Job::of(&home.output(&[&first, options, &["--", "cat", "x"]].concat()))
    };
    let first = record(&[]);
    assert_eq!((first.status, &*first.out), (Some(0), "one"), "{}", first.errors);
    let run = home.home().join("runs").join(&first.id);
    assert!(record(&[]).found);
    for name in ["spec", "outcome", "recording", "images", "inputs", "origin", "trace"] {
        let file = run.join(name);
        for options in [&[][..], &["--again"]] {
            let last = std::fs::metadata(&file).unwrap().len() as usize - 5;
            flip(&file, last);
            let again = record(options);
            let what = format!("{name} {options:?}: {}", again.errors);
            assert!(again.status == Some(0) && again.out == "one" && !again.found, "{what}");
            assert_eq!(again.id, first.id, "{what}");
            assert!(home.ok(&["replay", &first.id]).contains("identical"), "{what}");
            assert!(record(&[]).found, "{what}");
        }
    }
    // Inside the trace, and in what it shares with the boot keyframe, of which a copy is damaged here.
    for name in ["trace", "trace.0"] {
        let trace = run.join(name);
        let bytes = std::fs::read(&trace).unwrap();
        std::fs::remove_file(&trace).unwrap();
        std::fs::write(&trace, bytes).unwrap();
        flip_middle(&trace);
        assert_eq!(record(&["--again"]).status, Some(0), "{name}");
        assert!(home.ok(&["replay", &first.id]).contains("identical"), "{name}");
    }
}

#[test]
fn corrupt_pages_are_said_until_the_run_is_recorded_again() {
    for verify_first in [true, false] {
        let home = Sandbox::new("damaged-pages");
        let command = ["sh", "-c", "cat /etc/group; ls -l /bin | wc -l"];
        let id = home.job(&[], &command).id;
        let other = home.job(&[], &["echo", "other"]).id;
        home.ok(&["rm", &other]);
        spoil_pages(&home);
        if verify_first {
            let error = home.fails(1, &["gc", "--verify"]);
            assert!(error.contains(&format!("run {id} lacks ")) && error.contains("--again"), "{error}");
            assert!(home.fails(1, &["gc"]).contains(&format!("run {id} lacks ")), "every time");
        }
        let again = home.job(&["--again"], &command);
        assert!(again.status == Some(0) && again.id == id, "{}", again.errors);
        assert!(home.ok(&["replay", &id]).contains("identical"));
        // The run the home came with is the only one that may lack something now.
        let output = home.output(&["gc", "--verify"]);
        assert!(!errors(&output).contains(&id), "{}", errors(&output));
        assert!(home.ok(&["replay", &id]).contains("identical"));
        home.ok(&["export", &id, home.work().join("x.rewind").to_str().unwrap()]);
    }
}

#[test]
fn a_boot_keyframe_that_cannot_be_used_is_made_again() {
    let home = Sandbox::new("damaged-boot");
    let id = home.job(&[], &["echo", "before"]).id;
    let boot = boot_dir(&home);
    let good = std::fs::read(keyframe_in(&boot)).unwrap();
    flip_middle(&keyframe_in(&boot));
    let job = home.job(&[], &["echo", "after"]);
    assert!(job.status == Some(0) && job.errors.contains("cannot be used"), "{}", job.errors);
    assert_eq!(job.errors.matches("booting the guest again").count(), 1, "{}", job.errors);
    assert!(std::fs::read(keyframe_in(&boot)).unwrap() == good, "a boot gives the same every time");
    assert!(home.ok(&["replay", &id]).contains("identical"));
    // Removed by hand.
    std::fs::remove_file(keyframe_in(&boot)).unwrap();
    assert!(home.ok(&["replay", &id]).contains("identical"));
    assert!(std::fs::read(keyframe_in(&boot)).unwrap() == good);
    // By gc, which says so once.
    flip_middle(&keyframe_in(&boot));
    let error = home.fails(1, &["gc"]);
    assert!(error.contains("is damaged") && error.contains("removed") && !boot.exists(), "{error}");
    home.ok(&["gc"]);
    assert_eq!(home.job(&[], &["echo", "again"]).status, Some(0));
    assert!(home.ok(&["replay", &id]).contains("identical"));
    home.ok(&["gc", "--verify"]);
}

fn boot_dir(home: &Sandbox) -> PathBuf {
    let mut found = std::fs::read_dir(home.home().join("boot")).unwrap().flatten().map(|entry| entry.path());
    found.find(|path| path.is_dir()).unwrap()
}

fn keyframe_in(dir: &Path) -> PathBuf {
    let mut found = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    found.find(|path| path.extension().is_some_and(|extension| extension == "kf")).unwrap()
}

#[test]
fn more_of_an_imported_run_takes_the_place_of_less() {
    let home = Sandbox::new("brings-more");
    small_root(&home);
    let id = over_small_root(&home, &[]).id;
    let file = |name: &str| home.work().join(name).to_str().unwrap().to_owned();
    home.ok(&["export", "--view", &id, &file("view")]);
    home.ok(&["export", &id, &file("replayable")]);
    home.ok(&["export", "--whole", &id, &file("whole")]);
    let elsewhere = Sandbox::bare("brings-more-elsewhere");
    elsewhere.ok(&["import", &file("view")]);
    elsewhere.fails(1, &["replay", &id]);
    elsewhere.ok(&["import", &file("replayable")]);
    assert!(elsewhere.ok(&["replay", &id]).contains("identical"));
    elsewhere.ok(&["import", &file("whole")]);
    elsewhere.ok(&["import", &file("view")]);
    elsewhere.ok(&["import", &file("replayable")]);
    elsewhere.ok(&["export", "--whole", &id, &file("again")]);
    // And over a damaged one.
    flip_middle(&elsewhere.home().join("runs").join(&id).join("images"));
    elsewhere.ok(&["import", &file("whole")]);
    assert!(elsewhere.ok(&["replay", &id]).contains("identical"));
}

/// Unmounts when the test is over.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: &Path, size: &str) -> Option<Mounted> {
        std::fs::create_dir_all(at).unwrap();
        let options = format!("size={size}");
        let mount = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "none"])
            .arg(at)
            .output();
        mount.is_ok_and(|output| output.status.success()).then(|| Mounted(at.to_owned()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// Removed when the test is over.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn run_and_replay(sandbox: &Sandbox, home: &Path) {
    let root = support::test_root();
    let with = |arguments: &[&str]| sandbox.command(arguments).env("REWIND_HOME", home).output().unwrap();
    let run = ["run", "--engine", "soft", "--memory", support::MEMORY, "--root", root.to_str().unwrap()];
    for text in ["one", "two"] {
        let job = Job::of(&with(&[&run[..], &["--", "echo", text]].concat()));
        assert_eq!((job.status, job.out.trim()), (Some(0), text), "{}", job.errors);
        let replay = with(&["replay", &job.id]);
        assert!(replay.status.success(), "{}", errors(&replay));
    }
}

#[test]
fn a_home_in_memory_needs_no_copy_of_memory() {
    let sandbox = Sandbox::bare("shm");
    let shm = Path::new("/dev/shm");
    if shm.is_dir() {
        let home = Folder(shm.join(format!("rewind-damage-{}", std::process::id())));
        run_and_replay(&sandbox, &home.0);
        assert!(!home.0.join("cache/ram").exists());
    }
    for size in ["40M", "64M"] {
        let Some(mounted) = Mounted::tmpfs(&sandbox.dir().join(size), size) else {
            println!("skipped: this user may not mount a tmpfs");
            return;
        };
        run_and_replay(&sandbox, &mounted.0.join("home"));
    }
}

#[test]
fn where_the_copy_of_memory_cannot_be_made_it_is_done_without() {
    let home = Sandbox::new("no-copy");
    let id = home.job(&[], &["echo", "before"]).id;
    let cache = home.home().join("cache/ram");
    std::fs::remove_dir_all(&cache).unwrap();
    // No folder can be made where a file is.
    std::fs::write(&cache, "").unwrap();
    assert_eq!(home.job(&[], &["echo", "after"]).status, Some(0));
    assert!(home.ok(&["replay", &id]).contains("identical"));
}

#[test]
fn a_whole_run_does_not_give_way_to_less() {
    let home = Sandbox::new("less");
    let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; seq 20000 | md5sum; echo done";
    let command = ["sh", "-c", script];
    let whole = home.job(&[], &command);
    assert_eq!(whole.status, Some(0), "{}", whole.errors);
    let cut = home.job(&["--again", "--timeout", "0.001"], &command);
    assert!(cut.errors.contains("timed-out"), "{}", cut.errors);
    assert!(home.job(&[], &command).found, "the whole one is still there");
    assert!(home.ok(&["replay", &whole.id]).contains("identical"));
    // Of one that was stopped, what somebody exported to look at is less than what is here.
    let stopped = home.job(&["--seed", "3", "--timeout", "0.001"], &command);
    let file = home.work().join("view.rewind");
    home.ok(&["export", "--view", &stopped.id, file.to_str().unwrap()]);
    let _ = home.output(&["import", file.to_str().unwrap()]);
    assert!(home.ok(&["replay", &stopped.id]).contains("identical"));
}
