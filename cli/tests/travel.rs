//! Runs in other homes, forks, several processes at once, and going back and forth.

mod support;
use std::collections::BTreeMap;

use run::{
    home::Home,
    root::Root,
    seek::Timeline,
    spec::{Content, ImageSpec},
};
use support::{Job, MEMORY, Sandbox, errors, test_root};
use vmm::address::{Instructions, Position, Step};

/// Work with processes, files and a pipe, long enough for keyframes.
const BUSY: &str = "mkdir -p /tmp/d; for n in 1 2 3 4; do seq 300 | sort -rn > /tmp/d/$n & done; wait; cat /tmp/d/* | wc -l; \
    for n in 1 2 3 4 5 6; do seq 200 | tail -n 1; done";

/// The root of an exported run's job, as a directory of its own.
fn small_root(home: &Sandbox) {
    let root = home.work().join("root");
    for dir in ["bin", "etc"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    std::fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    std::fs::write(root.join("etc/used"), "used\n").unwrap();
    std::fs::write(root.join("etc/other"), "other\n").unwrap();
    std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
}

#[test]
fn an_exported_run_replays_in_an_empty_home_without_its_root() {
    let home = Sandbox::new("export");
    small_root(&home);
    let script = "while read line; do echo $line; done < /etc/used";
    let arguments =
        ["run", "--engine", "soft", "--memory", MEMORY, "--root", "root", "--", "/bin/sh", "-c", script];
    let run = Job::of(&home.output(&arguments));
    assert_eq!(run.out, "used\n", "{}", run.errors);
    let host =
        Job::of(&home.output(&["run", "--engine", "soft", "--memory", MEMORY, "--", "cat", "root/etc/used"]));
    assert_eq!(host.out, "used\n", "{}", host.errors);
    for (id, kind, name) in [
        (&run.id, "--json", "plain"),
        (&run.id, "--whole", "whole"),
        (&run.id, "--view", "view"),
        (&host.id, "--json", "host"),
    ] {
        home.ok(&["export", id, name, kind]);
    }
    // Another host: no root, no home.
    std::fs::rename(home.work().join("root"), home.dir().join("away")).unwrap();
    let there = |name: &str| {
        let there = Sandbox::bare("import");
        std::fs::copy(home.work().join(name), there.work().join(name)).unwrap();
        let text = there.ok(&["import", name]);
        assert!(text.starts_with("run "), "{text}");
        there
    };
    let plain = there("plain");
    assert!(plain.ok(&["replay", &run.id]).contains("identical"));
    assert_eq!(plain.ok(&["log", &run.id]), "used\n");
    assert_eq!(plain.ok(&["cat", &run.id, "/etc/used"]), "used\n", "what it read is there");
    let error = plain.fails(1, &["cat", &run.id, "/etc/other"]);
    assert!(error.contains("did not read"), "{error}");
    // From there it goes on.
    plain.ok(&["export", &run.id, "again"]);
    plain.ok(&["gc", "--verify"]);
    assert!(plain.ok(&["replay", &run.id]).contains("identical"), "gc keeps what an imported run needs");
    let third = Sandbox::bare("third");
    std::fs::copy(plain.work().join("again"), third.work().join("again")).unwrap();
    third.ok(&["import", "again"]);
    assert!(third.ok(&["replay", &run.id]).contains("identical"));
    let whole = there("whole");
    assert_eq!(whole.ok(&["cat", &run.id, "/etc/other"]), "other\n");
    assert_eq!(whole.ok(&["shell", &run.id, "@job", "-c", "read x < /etc/other; echo $x"]), "other\n");
    let checked =
        whole.ok(&["check", "--engine", "soft", "--schedules", "1", "--from", "@job", "--run", &run.id]);
    assert!(checked.contains("0 of 2 schedules tried"), "the root that came along is taken: {checked}");
    let view = there("view");
    assert_eq!(view.ok(&["log", &run.id]), "used\n");
    let error = view.fails(1, &["replay", &run.id]);
    assert!(error.contains("view") || error.contains("look at only"), "{error}");
    let host_there = there("host");
    assert!(host_there.ok(&["replay", &host.id]).contains("identical"));
    assert_eq!(host_there.ok(&["log", &host.id]), "used\n");
    // The folder its recording names is one of another machine, and not opened.
    for onward in [&["check", "--run", &*host.id][..], &["fork", &host.id, "@job"]] {
        let error = host_there.fails(1, onward);
        assert!(error.contains("came from elsewhere without its root"), "{onward:?}: {error}");
    }
    // What somebody else says of a run is not taken for having run it.
    std::fs::rename(home.dir().join("away"), plain.work().join("root")).unwrap();
    let own = Job::of(&plain.output(&arguments));
    assert_eq!((&own.id, own.found, &*own.out), (&run.id, false, "used\n"), "{}", own.errors);
    assert!(Job::of(&plain.output(&arguments)).found);
}

#[test]
fn different_and_equal_runs_at_once_in_one_home() {
    let home = Sandbox::new("at-once");
    let root = test_root();
    let seeds = ["1", "2", "3", "1"];
    let start = |seed: &&str| {
        let options =
            ["run", "--engine", "soft", "--memory", MEMORY, "--spacing", "50", "--seed", seed, "--root"];
        let mut command = home.command(&options);
        command.arg(&root).args(["--", "sh", "-c", BUSY]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = seeds.iter().map(start).collect();
    let jobs: Vec<Job> =
        children.into_iter().map(|child| Job::of(&child.wait_with_output().unwrap())).collect();
    for job in &jobs {
        assert_eq!(
            (job.status, &*job.out),
            (Some(0), "1200\n200\n200\n200\n200\n200\n200\n"),
            "{}",
            job.errors
        );
    }
    assert_eq!(jobs[0].id, jobs[3].id);
    home.ok(&["gc", "--verify"]);
    for job in &jobs[..3] {
        assert!(home.ok(&["replay", &job.id]).contains("identical"));
    }
}

#[test]
fn a_fork_with_decisions_is_a_run_of_its_own() {
    let home = Sandbox::new("fork");
    let parent = home.job(&[], &["sh", "-c", BUSY]);
    let events = home.ok(&["events", &parent.id, "--json", "--kind", "fork"]);
    let fork: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let (step, thread) = (fork["step"].as_u64().unwrap() - 200, fork["thread"].clone());
    let decisions: Vec<_> = (0..400)
        .map(|syscall| {
            let place =
                serde_json::json!({ "thread": thread, "syscall": syscall, "returns": 0, "offset": 0 });
            serde_json::json!({ "place": place, "action": "preempt" })
        })
        .collect();
    std::fs::write(home.work().join("decisions"), serde_json::to_vec(&decisions).unwrap()).unwrap();
    let arguments = ["fork", &parent.id, &step.to_string(), "--decisions", "decisions"];
    let output = home.output(&arguments);
    let child = Job::of(&output);
    assert_eq!(child.status, Some(0), "{}", child.errors);
    assert_ne!(child.id, parent.id);
    assert!(Job::of(&home.output(&arguments)).found, "it is known");
    let difference = home.output(&["diff", &parent.id, &child.id]);
    assert_eq!(difference.status.code(), Some(1), "{}", errors(&difference));
    let decided = home.ok(&["events", &child.id, "--kind", "decision"]);
    assert!(!decided.is_empty(), "a decision was applied");
    for id in [&parent.id, &child.id] {
        assert!(home.ok(&["replay", id]).contains("identical"));
    }
    let listed = home.ok(&["ls", "--json", "--forks-of", &parent.id]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["run"], *child.id);
    home.ok(&["rm", &parent.id]);
    home.ok(&["gc"]);
    assert!(home.ok(&["replay", &child.id]).contains("identical"), "it needs its parent no more");
}

#[test]
fn a_fork_by_number_is_the_same_schedule_each_time() {
    let home = Sandbox::new("schedule");
    let script = "for n in 1 2 3 4 5 6; do echo a$n; done & for n in 1 2 3 4 5 6; do echo b$n; done; wait";
    let parent = home.job(&["--cores", "2"], &["sh", "-c", script]);
    let events = home.ok(&["events", &parent.id, "--json", "--kind", "fork"]);
    let fork: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let step = fork["step"].as_u64().unwrap().to_string();
    let at = |number: &str| Job::of(&home.output(&["fork", &parent.id, &step, "--schedule", number]));
    let mut outputs = std::collections::BTreeSet::new();
    for number in ["1", "2", "3", "4", "5", "6"] {
        let child = at(number);
        assert_eq!(child.status, Some(0), "{}", child.errors);
        assert!(child.errors.contains(&format!("schedule {number}: ")), "{}", child.errors);
        outputs.insert(child.out.clone());
        let again = at(number);
        assert_eq!((again.id, again.out, again.found), (child.id.clone(), child.out, true));
        assert!(home.ok(&["replay", &child.id]).contains("identical"));
        for decision in home.ok(&["events", &child.id, "--json", "--kind", "decision"]).lines() {
            let decision: serde_json::Value = serde_json::from_str(decision).unwrap();
            assert!(decision["step"].as_u64().unwrap() >= step.parse().unwrap(), "{decision}");
        }
    }
    assert!(outputs.len() > 1, "threads ran in other orders: {outputs:?}");
    assert!(home.fails(2, &["fork", &parent.id, &step, "--schedule", "0"]).contains("--schedule"));
    assert!(home.fails(1, &["fork", &parent.id, "900000", "--schedule", "1"]).contains("past the end"));
}

/// Positions tried on each of three runs: more of them with `REWIND_SEEKS`.
fn positions() -> u64 {
    std::env::var("REWIND_SEEKS").map_or(3, |text| text.parse().unwrap())
}

/// BLAKE3 of all RAM and the CPU's registers.
fn state(timeline: &mut Timeline<'_>) -> String {
    let machine = timeline.looking();
    let mut hasher = blake3::Hasher::new();
    let mut page = vec![0; 1 << 20];
    let memory = machine.memory().clone();
    for start in (0..memory.pages()).step_by(256) {
        memory.read(memory.address_of(start), &mut page).unwrap();
        hasher.update(&page);
    }
    let cpu = machine.cpu().unwrap();
    hasher.update(format!("{:?} {:x} {:x}", cpu.gpr, cpu.rip, cpu.rflags).as_bytes());
    hasher.finalize().to_hex()[..16].to_owned()
}

/// A run over the test root, to go about in.
fn timeline<'h>(opened: &'h Home, id: &str) -> Timeline<'h> {
    let root = test_root();
    let cache = opened.cache("images");
    let find = |_: &ImageSpec, _: &str| {
        let options = image::OpenOptions { cache: &cache, directory: Default::default(), progress: &|_| {} };
        let image = std::sync::Arc::new(image::open(&root, &options).map_err(std::io::Error::other)?);
        let spec = ImageSpec { content: Content(image.id.0), len: image.image().len() };
        let open = std::sync::Arc::new(move || Ok(image.image()));
        Ok(Root {
            spec,
            source: "the test root".into(),
            open,
            logged: false,
            origin: None,
            same: None,
            files: None,
        })
    };
    let run = opened.run(opened.find(id).unwrap()).unwrap();
    Timeline::open(opened, run, None, &find, &|_| {}).unwrap()
}

#[test]
fn a_decision_that_still_holds_a_thread_up_is_not_taken_again() {
    let home = Sandbox::new("held");
    let script = "for n in 1 2 3 4 5 6; do echo a$n; done & for n in 1 2 3 4 5 6; do echo b$n; done; wait";
    let parent = home.job(&[], &["sh", "-c", script]);
    let events = home.ok(&["events", &parent.id, "--json", "--kind", "fork"]);
    let fork: serde_json::Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let thread = u64::from_str_radix(fork["child"].as_str().unwrap_or_default(), 16).unwrap();
    let step = fork["step"].as_u64().unwrap();
    for action in [serde_json::json!({ "stall": 3_000_000 }), serde_json::json!("preempt")] {
        let decisions: Vec<_> = (2..40)
            .step_by(3)
            .map(|syscall| {
                let place =
                    serde_json::json!({ "thread": thread, "syscall": syscall, "returns": 0, "offset": 0 });
                serde_json::json!({ "place": place, "action": action })
            })
            .collect();
        std::fs::write(home.work().join("decisions"), serde_json::to_vec(&decisions).unwrap()).unwrap();
        // A keyframe at every stop of the recording.
        let arguments = ["fork", &parent.id, &step.to_string(), "--decisions", "decisions", "--spacing", "0"];
        let child = Job::of(&home.output(&arguments));
        assert_eq!(child.status, Some(0), "{}", child.errors);
        let taken = home.ok(&["events", &child.id, "--json", "--kind", "decision"]);
        let opened = Home::open(&home.home()).unwrap();
        let mut run = timeline(&opened, &child.id);
        let last = Position { step: Step(run.last()), offset: Instructions(0) };
        for keyframe in run.keyframes() {
            run.restore(keyframe).unwrap();
            run.seek(last).unwrap();
        }
        // And from checkpoints at each step after each decision.
        let mut places = 0;
        for line in taken.lines() {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            let at = event["step"].as_u64().unwrap();
            for step in (at..last.step.0.min(at + 12)).step_by(3) {
                run.seek(Position { step: Step(step), offset: Instructions(0) }).unwrap();
                let here = run.checkpoint().unwrap();
                run.seek(last).unwrap();
                run.return_to(&here).unwrap();
                run.seek(last).unwrap();
                places += 1;
            }
        }
        assert!(places > 10, "{action}: {places} places\n{taken}");
    }
}

#[test]
fn richer_events_are_of_the_whole_run_whatever_its_keyframes() {
    let home = Sandbox::new("richer");
    let run = home.job(&["--spacing", "0"], &["sh", "-c", BUSY]);
    let opened = Home::open(&home.home()).unwrap();
    assert!(timeline(&opened, &run.id).keyframes().len() > 1, "{}", run.errors);
    drop(opened);
    let plain = home.ok(&["events", &run.id, "--kind", "exec"]);
    assert!(plain.lines().count() > 5, "{plain}");
    assert_eq!(home.ok(&["events", &run.id, "--syscalls", "--kind", "exec"]), plain);
}

#[test]
fn any_place_is_the_same_place_however_one_comes_to_it() {
    let home = Sandbox::new("seeks");
    let jobs = [("sh", vec!["-c", BUSY]), ("battery", vec![]), ("sh", vec!["/bin/jobs.sh"])];
    let mut random = 42u64;
    let mut number = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut seeks = 0;
    for (program, rest) in jobs {
        let command: Vec<&str> = [program].into_iter().chain(rest).collect();
        let job = home.job(&["--spacing", "30", "--out", "/tmp"], &command);
        assert_eq!(job.status, Some(0), "{}", job.errors);
        let opened = Home::open(&home.home()).unwrap();
        let mut there = timeline(&opened, &job.id);
        let (first, last) = (there.first() + 1, there.last());
        // In the order they are drawn, from wherever the last one left off; some inside a step.
        let mut found: BTreeMap<Position, String> = BTreeMap::new();
        for n in 0..positions() {
            let step = Step(first + number(last - first));
            let at = Position { step, offset: Instructions(if n % 3 == 2 { 1 } else { 0 }) };
            match there.seek(at) {
                Ok(()) => {}
                // That step had no instruction of its own: a system call at once, or the end.
                Err(
                    run::error::StageError::NoSuchInstruction { .. } | run::error::StageError::PastEnd { .. },
                ) => continue,
                Err(error) => panic!("{at}: {error}"),
            }
            let state = state(&mut there);
            if let Some(before) = found.insert(at, state.clone()) {
                assert_eq!(before, state, "{at} twice");
            }
            seeks += 1;
        }
        // In their order, from one end to the other, without a keyframe.
        assert!(home.fails(1, &["prune", &job.id]).contains("in use"), "who goes about in it counts on them");
        drop(there);
        home.ok(&["prune", &job.id]);
        let mut straight = timeline(&opened, &job.id);
        straight.restore(straight.first()).unwrap();
        for (at, expected) in &found {
            straight.seek(*at).unwrap();
            assert_eq!(&state(&mut straight), expected, "{at} of {}", job.id);
            seeks += 1;
        }
    }
    println!("{seeks} seeks on three runs, each verified against the recording, each place with one state");
}
