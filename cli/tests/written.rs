//! What keyframes say was written in pages, against what changed in them.

mod support;

use run::{
    home::Home,
    keyframe::{self, Base},
    store::PAGE_SIZE,
};
use support::{Job, MEMORY, Sandbox, test_root};

/// Followed pages; of these, those not written whole; bytes that changed in those.
#[derive(Debug, Default)]
struct Seen {
    followed: usize,
    partly: usize,
    changed: usize,
}

/// No byte of a followed page may differ from the keyframe before, but where the keyframe says that it was written.
fn compare(home: &Sandbox, id: &str, seen: &mut Seen) {
    let opened = Home::open(&home.home()).unwrap();
    let run = opened.run(opened.find(id).unwrap()).unwrap();
    let dir = run.keyframes();
    let whole = |step| keyframe::whole(&dir, id, step).unwrap();
    let get = |hash| {
        let mut content = [0; PAGE_SIZE];
        opened.pages().get(hash, &mut content).unwrap();
        content
    };
    for step in keyframe::list(&dir) {
        let after = whole(step);
        let Base::Step(base) = after.keyframe.base else { continue };
        let before = whole(base);
        for written in &after.keyframe.written {
            // Followed pages were written before.
            let old = get(before.pages[&written.page]);
            let new = get(after.pages[&written.page]);
            seen.followed += 1;
            let bytes: usize = written.ranges.iter().map(ExactSizeIterator::len).sum();
            seen.partly += usize::from(bytes < PAGE_SIZE);
            for at in (0..PAGE_SIZE).filter(|at| old[*at] != new[*at]) {
                let told = written.ranges.iter().any(|range| range.contains(&(at as u16)));
                assert!(
                    told,
                    "step {step}, page {}, byte {at:#x}: not in {:x?}",
                    written.page, written.ranges
                );
                seen.changed += usize::from(bytes < PAGE_SIZE);
            }
        }
    }
}

#[test]
fn what_changed_in_a_followed_page_was_written_there() {
    let script = "mkdir -p /tmp/d; for n in 1 2 3 4; do seq 900 | sort -rn > /tmp/d/$n & done; wait; \
        i=0; while [ $i -lt 4000 ]; do i=$((i + 1)); done; cat /tmp/d/* | md5sum; cat /tmp/d/* | od -f | tail -n 3";
    let jobs: [&[&str]; 3] = [&["sh", "-c", script], &["battery"], &["sh", "/bin/jobs.sh"]];
    for tier in ["never", "always", "hot"] {
        let home = Sandbox::new("written");
        let mut seen = Seen::default();
        for job in jobs {
            let root = test_root();
            let root = root.to_str().unwrap();
            let options = ["--engine", "soft", "--memory", MEMORY, "--spacing", "0", "--root", root, "--"];
            let arguments = [&["run"][..], &options, job].concat();
            let output = home.command(&arguments).env("REWIND_SOFT_COMPILE", tier).output().unwrap();
            let run = Job::of(&output);
            assert_eq!(run.status, Some(0), "{}", run.errors);
            compare(&home, &run.id, &mut seen);
        }
        assert!(seen.partly > 100 && seen.changed > 1000, "{tier}: {seen:?}");
    }
}
