//! The same programs on both engines: one trace hash each. On `soft`, everywhere, the hashes are written to
//! `build/trace-hashes`; in the test bench `kvm` must come to the same ones, which the bench's script makes here
//! first, and runs some on `soft` inside, too.

use std::{collections::BTreeMap, fmt::Write as _};

use testkit::{Kit, Outcome, config, job, top};
use vmm::{EngineKind, MachineConfig, Stop};

/// Name and command.
const PROGRAMS: [(&str, &[&str]); 16] = [
    ("battery", &["battery"]),
    ("jobs", &["sh", "/bin/jobs.sh"]),
    ("forktree", &["forktree", "4"]),
    ("switch", &["switch", "4", "500"]),
    ("random", &["random"]),
    ("deadlock", &["deadlock"]),
    ("deadlock-tcp", &["deadlock", "tcp"]),
    ("pipewait", &["pipewait"]),
    ("sleep", &["/usr/bin/sleep", "3"]),
    ("sha256sum", &["sha256sum", "/usr/bin/sleep"]),
    ("sort", &["sh", "-c", "seq 1 2000 | sort -r | uniq | md5sum"]),
    (
        "awk",
        &["sh", "-c", "seq 1 300 | awk '{ s += $1 * $1; t[$1 % 7] += s } END { print s, t[3], length(t) }'"],
    ),
    ("gzip", &["sh", "-c", "gzip -c /usr/bin/sleep | gunzip -c | cksum"]),
    ("find", &["sh", "-c", "find /bin /etc -type f | sort | cksum; ls -l /etc | wc -l"]),
    (
        "files",
        &[
            "sh",
            "-c",
            "cd /tmp; for i in 1 2 3 4; do mkdir d$i; echo $i > d$i/f; ln -s f d$i/l; done; cat */l; du -a | sort; rm -r d*; ls",
        ],
    ),
    (
        "signals",
        &[
            "sh",
            "-c",
            "trap 'echo caught' USR1; kill -USR1 $$; (sleep 5 & kill $!; wait $!; echo $?); timeout 1 sleep 9; echo $?",
        ],
    ),
];

fn hashes(engine: EngineKind, wanted: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let mut kit = Kit::boot_with(&MachineConfig { engine, ..config() });
    println!("program       steps  virtual ns      trace hash on {}", engine.name());
    let mut hashes = BTreeMap::new();
    for (name, command) in PROGRAMS.into_iter().filter(|(name, _)| wanted(name)) {
        let outcome: Outcome = kit.run(&job(command));
        assert_eq!(outcome.failed, None, "{name}");
        assert!(matches!(outcome.stop, Stop::End(_)), "{name}: {:?}", outcome.stop);
        println!("{name:12} {:>6} {:>11}  {}", outcome.steps, outcome.now, outcome.hash);
        hashes.insert(name.to_owned(), format!("{} {} {}", outcome.hash, outcome.steps, outcome.now));
    }
    hashes
}

/// A line for each program: name, hash, steps, virtual nanoseconds.
fn text(hashes: &BTreeMap<String, String>) -> String {
    hashes.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "{name} {value}");
        text
    })
}

#[test]
fn programs_have_one_hash_on_every_engine() {
    if testkit::engine() == EngineKind::Soft {
        let hashes = hashes(EngineKind::Soft, |_| true);
        let path = top().join("build/trace-hashes");
        std::fs::write(&path, text(&hashes)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        return;
    }
    let path =
        std::env::var("REWIND_EXPECTED_HASHES").expect("REWIND_EXPECTED_HASHES names the file made by soft");
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let kvm = hashes(EngineKind::Kvm, |_| true);
    assert_eq!(text(&kvm), expected, "kvm here, soft outside");
    let inside = hashes(EngineKind::Soft, |name| matches!(name, "battery" | "switch" | "random"));
    for (name, hash) in inside {
        assert_eq!(hash, kvm[&name], "{name}: soft and kvm side by side");
    }
}
