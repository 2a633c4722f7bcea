//! What the command's tests share: homes of their own with the guest booted already, and running the command in them.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod trace;

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// RAM of the machines here, as the command takes it.
pub(crate) const MEMORY: &str = "128M";

/// The checkout's top folder.
pub(crate) fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// A folder with a home in it, gone when the test is.
pub(crate) struct Sandbox {
    dir: PathBuf,
}

impl Sandbox {
    /// With a home in which the guest has booted.
    pub(crate) fn new(name: &str) -> Sandbox {
        let sandbox = Sandbox::bare(name);
        copy(&template(), &sandbox.home());
        sandbox
    }

    /// As [`Sandbox::new`], in /tmp, which shows a job over the host's root nothing but the way to its own directory:
    /// what other tests do there does not change what the job sees.
    pub(crate) fn apart(name: &str) -> Sandbox {
        let sandbox = Sandbox::below(&std::env::temp_dir(), name);
        copy(&template(), &sandbox.home());
        sandbox
    }

    /// With nothing in it.
    pub(crate) fn bare(name: &str) -> Sandbox {
        Sandbox::below(&scratch(), name)
    }

    fn below(base: &Path, name: &str) -> Sandbox {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = base.join(format!("rewind-{name}-{}-{n}", std::process::id()));
        std::fs::create_dir_all(dir.join("work")).unwrap();
        Sandbox { dir: dir.canonicalize().unwrap() }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// The directory the command is run in.
    pub(crate) fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// `rewind ARGUMENTS`.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rewind"));
        command
            .args(arguments)
            .current_dir(self.work())
            .env("REWIND_HOME", self.home())
            .env("HOME", &self.dir);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What it prints; it must succeed.
    pub(crate) fn ok(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", errors(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// What it complains of; it must fail with this status.
    pub(crate) fn fails(&self, status: i32, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", errors(&output));
        errors(&output)
    }

    /// Bytes of the runs and pages in the home; what several runs share counts once.
    pub(crate) fn bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt;
        let mut files = std::collections::BTreeMap::new();
        let mut dirs = vec![self.home().join("runs"), self.home().join("pages")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).unwrap() {
                let entry = entry.unwrap();
                let meta = entry.metadata().unwrap();
                if meta.is_dir() {
                    dirs.push(entry.path());
                } else {
                    files.insert(meta.ino(), meta.len());
                }
            }
        }
        files.values().sum()
    }

    /// Runs a job over the test root; what the command says, with the run's id taken from its last line.
    pub(crate) fn job(&self, options: &[&str], command: &[&str]) -> Job {
        let root = test_root();
        let mut arguments =
            vec!["run", "--engine", "soft", "--memory", MEMORY, "--root", root.to_str().unwrap()];
        arguments.extend(options);
        arguments.push("--");
        arguments.extend(command);
        Job::of(&self.output(&arguments))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What `rewind run` said.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) id: String,
    pub(crate) out: String,
    pub(crate) errors: String,
    pub(crate) status: Option<i32>,
    /// It was recorded before.
    pub(crate) found: bool,
}

impl Job {
    pub(crate) fn of(output: &Output) -> Job {
        let errors = errors(output);
        let line = errors.lines().last().unwrap_or_default();
        let id = line.strip_prefix("run ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        Job {
            id: id.into(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            found: line.contains("recorded before"),
            status: output.status.code(),
            errors,
        }
    }
}

pub(crate) fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Where tests may write: the same file system as the template, which is shared by hard links.
fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Does `work` once at a time among all test processes.
fn alone<T>(what: &str, work: impl FnOnce() -> T) -> T {
    std::fs::create_dir_all(scratch()).unwrap();
    let lock = File::create(scratch().join(format!("{what}.lock"))).unwrap();
    lock.lock().unwrap();
    work()
}

/// `build/test-root.erofs`, made if it is not there.
pub(crate) fn test_root() -> PathBuf {
    alone("test-root", || {
        let status = Command::new(top().join("tests/guest/build.sh")).status().unwrap();
        assert!(status.success(), "tests/guest/build.sh failed");
    });
    top().join("build/test-root.erofs")
}

/// A home in which a run was made with the present guest and command, so that the boot is done.
fn template() -> PathBuf {
    let root = test_root();
    alone("template", || {
        let mut hasher = blake3::Hasher::new();
        for file in [env!("CARGO_BIN_EXE_rewind"), "build/guest/vmlinux", "build/guest/initramfs.cpio"] {
            hasher.update_reader(File::open(top().join(file)).unwrap()).unwrap();
        }
        let home = scratch().join(format!("template-{}", &hasher.finalize().to_hex()[..16]));
        if !home.join("whole").is_file() {
            for entry in std::fs::read_dir(scratch()).unwrap().flatten() {
                if entry.file_name().to_string_lossy().starts_with("template-") {
                    std::fs::remove_dir_all(entry.path()).unwrap();
                }
            }
            let output = Command::new(env!("CARGO_BIN_EXE_rewind"))
                .args(["run", "--engine", "soft", "--memory", MEMORY, "--root"])
                .arg(&root)
                .args(["--", "/bin/true"])
                .env("REWIND_HOME", &home)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", errors(&output));
            File::create(home.join("whole")).unwrap();
        }
        home
    })
}

fn copy(from: &Path, to: &Path) {
    // Sparse, and with its times: the copy of guest memory in the cache is known by them.
    let status = Command::new("cp")
        .args(["-a", "--sparse=always", "--reflink=auto"])
        .args([from, to])
        .status()
        .unwrap();
    assert!(status.success());
}
