//! What this crate's tests share: scratch directories, and running a test again in a process that dies.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::durable::fault::{self, Fault};

/// A directory that is gone when the test is.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        // In memory where that is possible: the tests that die at every write make thousands of fsyncs.
        let shm = Path::new("/dev/shm");
        let base = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let dir = base.join(format!("rewind-test-{}-{n}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Scratch(dir)
    }
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const DIR: &str = "REWIND_TEST_CHILD_DIR";
const KILL: &str = "REWIND_TEST_CHILD_KILL";

/// In a child made by this module: the directory to work in, with the fault armed. Otherwise `None`.
pub(crate) fn child_env() -> Option<PathBuf> {
    let dir = PathBuf::from(std::env::var_os(DIR)?);
    if let Ok(plan) = std::env::var(KILL) {
        let (kind, at) = plan.split_once(':').unwrap();
        fault::arm(if kind == "torn" { Fault::KillTorn } else { Fault::Kill }, at.parse().unwrap());
    }
    Some(dir)
}

/// Adds to what the parent reads as "this far the work had got". Not a durable write: it must not count.
pub(crate) fn note(dir: &Path, text: &str) {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(dir.join("notes"));
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
}

fn child(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.env(DIR, dir).env_remove(KILL).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the named test in a process of its own and passes its failure on.
pub(crate) fn in_child(test: &str) {
    let dir = Scratch::new("child");
    let output = child(test, dir.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "no test is called {test}");
}

/// Runs the named test once for each of its write calls, killed there (before the call, and again half-way
/// through it), and calls `reopen` with the directory and the notes each time. Returns the number of calls.
pub(crate) fn kill_points(test: &str, reopen: impl Fn(&Path, &str)) -> u64 {
    let mut at = 1;
    loop {
        for kind in ["before", "torn"] {
            let dir = Scratch::new("kill");
            let status = child(test, dir.path()).env(KILL, format!("{kind}:{at}")).output().unwrap();
            let notes = std::fs::read_to_string(dir.path().join("notes")).unwrap_or_default();
            if status.status.success() {
                assert!(!notes.is_empty(), "no test is called {test}");
                reopen(dir.path(), &notes);
                return at - 1;
            }
            use std::os::unix::process::ExitStatusExt;
            let text = String::from_utf8_lossy(&status.stderr);
            assert_eq!(status.status.signal(), Some(6), "died otherwise, {kind} call {at}: {text}");
            reopen(dir.path(), &notes);
        }
        at += 1;
    }
}
