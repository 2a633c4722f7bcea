//! What is run, on which root, and how its output is judged.

use rewind_platform::job::Job;

/// Which initramfs a workload needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// The benchmark's own programs and a shell.
    Small,
    /// The host's C compiler.
    Compiler,
}

/// One thing to time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// Its name in the result lines.
    pub(crate) name: &'static str,
    pub(crate) root: Root,
    /// Program and arguments.
    pub(crate) argv: &'static [&'static str],
    /// Its own time is what it takes beyond a run of the empty job on the same root.
    pub(crate) beyond_boot: bool,
    /// It must print this, where it does not depend on the host's programs.
    pub(crate) prints: Option<&'static str>,
}

/// The job that does nothing, on either root.
pub(crate) const EMPTY: &[&str] = &["/bench/hello"];

/// All of them, in the order of the table.
pub(crate) const ALL: [Workload; 5] = [
    Workload { name: "boot", root: Root::Small, argv: EMPTY, beyond_boot: false, prints: Some("booted\n") },
    Workload {
        name: "syscall-fork-fault",
        root: Root::Small,
        argv: &["/bench/micro"],
        beyond_boot: true,
        prints: Some("calls 300000\nrounds 4000\nforks 62252\nfaults 7592800\n"),
    },
    Workload {
        name: "integer",
        root: Root::Small,
        argv: &["/bench/integer"],
        beyond_boot: true,
        prints: Some("sieve 216816\ncollatz 48762334\nmix 64356755630840046\n"),
    },
    Workload {
        name: "sha256",
        root: Root::Small,
        argv: &["/usr/bin/dash", "-c", "truncate -s 100000000 /tmp/zeros && sha256sum /tmp/zeros"],
        beyond_boot: true,
        prints: Some("a993f8c574e0fea8c1cdcbcd9408d9e2e107ee6e4d120edcfa11decd53fa0cae  /tmp/zeros\n"),
    },
    Workload {
        name: "gcc",
        root: Root::Compiler,
        argv: &["/usr/bin/dash", "-c", "gcc -O2 -c /bench/file.c -o /tmp/file.o && sha256sum /tmp/file.o"],
        beyond_boot: true,
        prints: None,
    },
];

/// The job for a command line. The initramfs is the root.
pub(crate) fn job(argv: &[&str]) -> Job {
    Job {
        argv: argv.iter().map(|word| word.as_bytes().to_vec()).collect(),
        env: vec![b"PATH=/usr/bin:/bin".to_vec(), b"HOME=/root".to_vec()],
        cwd: b"/".to_vec(),
        user: String::new(),
        hostname: "bench".into(),
        cores: 1,
        seed: [1; 32],
        epoch: 1_700_000_000,
        images: 0,
        tty: false,
        outputs: Vec::new(),
        overlay_bytes: 0,
    }
}
