use rewind_platform::record::{REC_OUTPUT, RecordHeader};

use super::*;
use crate::{
    input::InputLog,
    outcome::{End, Recording},
    spec::tests::sample,
    testing::{Scratch, child_env, in_child, kill_points, note},
    trace::TraceWriter,
};

fn outcome(steps: u64, end: End) -> Outcome {
    Outcome {
        end,
        steps,
        virtual_ns: steps * 2000,
        started: Some(3),
        started_ns: 6000,
        records: 1,
        trace_hash: hash_of(b"hello"),
        outputs: vec![],
        missed: vec![],
    }
}

fn recording() -> Recording {
    Recording {
        version: "0".into(),
        engine: vmm::EngineKind::Soft,
        wall_ms: 5,
        first_event_ms: None,
        parent: None,
        boot: None,
        source: String::new(),
    }
}

fn header() -> RecordHeader {
    RecordHeader {
        len: 0,
        kind: REC_OUTPUT,
        flags: 0,
        step: 9,
        now: 1,
        thread: 1,
        tid: 1,
        pid: 1,
        payload_len: 0,
        aux: 1,
    }
}

/// What [`write_trace`] leads to.
fn hash_of(text: &[u8]) -> Content {
    let mut hasher = crate::trace::TraceHasher::default();
    hasher.add(&header(), text);
    hasher.finish()
}

fn write_trace(run: &OpenRun, text: &[u8]) {
    let mut writer = TraceWriter::create(run.dir().path()).unwrap();
    writer.add(&header(), text).unwrap();
    writer.sync().unwrap();
}

fn record(home: &Home, outcome: &Outcome) -> Result<Finished, FinishError> {
    let run = home.begin(&sample()).unwrap();
    write_trace(&run, b"hello");
    run.finish(&InputLog::default(), outcome, &recording())
}

#[test]
fn a_run_is_found_and_not_made_twice() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    assert!(home.finished(&sample()).is_none());
    let done = outcome(10, End::Exited(0));
    assert!(matches!(record(&home, &done), Ok(Finished::New(_))));
    let (run, found) = home.finished(&sample()).unwrap();
    assert_eq!((run.id(), found), (sample().id(), done.clone()));
    assert_eq!(run.trace().unwrap().records(), 1);
    drop(run);
    assert!(matches!(record(&home, &done), Ok(Finished::Same(_))));
    assert!(home.open_runs().is_empty());
    let error = record(&home, &outcome(11, End::Exited(0))).unwrap_err();
    assert!(error.to_string().contains("must never"), "{error}");
    assert_eq!(home.open_runs().len(), 1, "the different one is kept for diff");
}

#[test]
fn a_run_that_was_stopped_is_replaced() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    record(&home, &outcome(4, End::TimedOut)).unwrap();
    assert!(home.finished(&sample()).is_none());
    assert_eq!(home.runs(), [sample().id()], "but it can be looked at");
    assert!(matches!(record(&home, &outcome(10, End::Exited(0))), Ok(Finished::Replaced(_))));
    assert!(home.finished(&sample()).is_some());
}

#[test]
fn a_damaged_run_is_replaced_and_a_whole_one_stays() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    let done = outcome(10, End::Exited(0));
    let made = || {
        let run = home.begin(&sample()).unwrap();
        write_trace(&run, b"hello");
        let page = home.pages().put(&[7; 4096]).unwrap();
        home.pages().sync().unwrap();
        let mut kept = crate::kept::Kept::default();
        kept.add(0, [(3, page)].into());
        crate::envelope::write(crate::kept::FILE, &run.dir().path().join("images"), &kept).unwrap();
        run.finish(&InputLog::default(), &done, &recording()).unwrap()
    };
    assert!(matches!(made(), Finished::New(_)));
    assert!(matches!(made(), Finished::Same(_)));
    let path = dir.path().join("runs").join(sample().id().to_string());
    let whole = || RunDir::open(sample().id(), path.clone()).is_ok_and(|run| run.seems_whole());
    for name in ["spec", "outcome", "recording", "images", "trace"] {
        let file = path.join(name);
        let good = std::fs::read(&file).unwrap();
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        let mut newer = good.clone();
        newer[8] ^= 4;
        for bad in [bad, newer, good[..good.len() / 2].to_vec(), Vec::new()] {
            std::fs::write(&file, bad).unwrap();
            assert!(!whole(), "{name}");
            assert!(matches!(made(), Finished::Replaced(_)), "{name}");
            assert!(std::fs::read(&file).unwrap() == good && whole(), "{name}");
        }
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(made(), Finished::Replaced(_)), "{name} is gone");
        assert!(whole() && matches!(made(), Finished::Same(_)), "{name}");
    }
    home.pages().compact(&|_| false, false).unwrap();
    assert!(matches!(made(), Finished::Same(_)), "its page has come back");
    // What is only seen by reading everything: a page that is not there, a keyframe.
    let lost = crate::keyframe::Keyframe {
        step: 5,
        records: 1,
        memory: 64 << 20,
        base: crate::keyframe::Base::Full,
        machine: vec![],
        pages: vec![crate::keyframe::PageAt { page: 4, hash: crate::store::PageHash([9; 32]) }],
        written: vec![],
    };
    let file = path.join("keyframes").join(crate::keyframe::file_name(5));
    crate::envelope::write(crate::keyframe::FILE, &file, &lost).unwrap();
    assert!(whole());
    assert!(matches!(made(), Finished::Replaced(_)));
    std::fs::write(path.join("keyframes").join(crate::keyframe::file_name(4)), "no keyframe").unwrap();
    assert!(whole());
    assert!(matches!(made(), Finished::Replaced(_)));
    assert!(matches!(made(), Finished::Same(_)));
}

#[test]
fn an_imported_run_gives_way_to_one_that_brings_more() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    let done = outcome(10, End::Exited(0));
    let made = |boot: bool, images: Option<bool>| {
        let run = home.begin(&sample()).unwrap();
        write_trace(&run, b"hello");
        let path = run.dir().path().to_owned();
        std::fs::write(path.join("imported"), "").unwrap();
        if boot {
            std::fs::create_dir(path.join("boot")).unwrap();
            TraceWriter::create(&path.join("boot")).unwrap().sync().unwrap();
        }
        if let Some(whole) = images {
            let kept = crate::kept::Kept { whole, ..Default::default() };
            crate::envelope::write(crate::kept::FILE, &path.join("images"), &kept).unwrap();
        }
        run.finish(&InputLog::default(), &done, &recording()).unwrap()
    };
    assert!(matches!(made(false, None), Finished::New(_)));
    assert!(matches!(made(true, Some(false)), Finished::Replaced(_)));
    assert!(matches!(made(false, None), Finished::Same(_)));
    assert!(matches!(made(true, Some(true)), Finished::Replaced(_)));
    assert!(matches!(made(true, Some(false)), Finished::Same(_)));
}

#[test]
fn outside_input_is_part_of_the_id() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    let run = home.begin(&sample()).unwrap();
    let mut inputs = InputLog::default();
    let page = home.pages().put(&[3; 4096]).unwrap();
    home.pages().sync().unwrap();
    inputs.blocks.entry(0).or_default().insert(17, page);
    let Finished::New(dir) = run.finish(&inputs, &outcome(1, End::Exited(0)), &recording()).unwrap() else {
        panic!("not new");
    };
    assert_ne!(dir.id(), sample().id());
    assert_eq!(dir.spec().unwrap().outside, Some(inputs.hash()));
    assert_eq!(dir.spec().unwrap().closed(), sample());
    assert_eq!(dir.inputs().unwrap(), inputs);
}

#[test]
fn homes_of_other_versions_and_other_directories_are_refused() {
    let dir = Scratch::new("home");
    std::fs::write(dir.path().join("precious"), "x").unwrap();
    assert!(matches!(Home::open(dir.path()), Err(HomeError::Foreign(_))));
    std::fs::remove_file(dir.path().join("precious")).unwrap();
    drop(Home::open(dir.path()).unwrap());
    std::fs::write(dir.path().join("version"), "0\n").unwrap();
    let error = Home::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("version 0"), "{error}");
}

#[test]
fn a_run_of_a_newer_program_is_refused_before_it_is_recorded_again() {
    use crate::envelope::{Kind, ReadError, write};
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    record(&home, &outcome(4, End::Exited(0))).unwrap();
    let path = dir.path().join("runs").join(sample().id().to_string()).join("outcome");
    let as_version = |version| {
        write(Kind { version, ..crate::outcome::FILE }, &path, &7u64).unwrap();
        std::fs::read(&path).unwrap()
    };
    let newer = as_version(crate::outcome::FILE.version + 1);
    let error = home.begin(&sample()).unwrap_err();
    assert!(matches!(error, RunError::File { source: ReadError::Version { .. }, .. }), "{error}");
    assert!(error.to_string().contains("update this program"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), newer);
    assert!(home.open_runs().is_empty());
    as_version(crate::outcome::FILE.version - 1);
    record(&home, &outcome(4, End::Exited(0))).unwrap();
    assert!(home.finished(&sample()).is_some());
}

#[test]
fn a_fork_without_records_of_its_own_has_its_parents_up_to_where_it_began() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    let mut spec = sample();
    let parent = home.begin(&spec).unwrap();
    (0..9).for_each(|n| write_trace(&parent, format!("{n}").as_bytes()));
    let whole = parent.dir().trace().unwrap().records();
    spec.job.epoch += 1;
    let fork = home.begin(&spec).unwrap();
    let path = fork.dir().path().to_owned();
    std::fs::copy(parent.dir().path().join("trace"), crate::trace::prefix_path(&path, 0)).unwrap();
    TraceWriter::create_after(&path, 0, Default::default()).unwrap().sync().unwrap();
    fork.dir().inherits(0).unwrap();
    assert!(whole > 0);
    assert_eq!(fork.dir().trace().unwrap().records(), 0, "while it is recorded");
    let mut done = outcome(3, End::Interrupted);
    done.records = 0;
    let Finished::New(fork) = fork.finish(&InputLog::default(), &done, &recording()).unwrap() else {
        panic!("not new")
    };
    std::fs::remove_file(fork.path().join("inherited")).unwrap();
    assert_eq!(fork.trace().unwrap().records(), 0, "as recorded before that file was written");
}

#[test]
fn what_a_killed_import_left_is_no_run_and_a_finished_one_is_listed() {
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    let listed = || crate::list::runs(&home, &crate::list::Filter::default()).0.len();
    let open = home.begin(&sample()).unwrap();
    assert_eq!(listed(), 1);
    std::fs::write(open.dir().path().join("imported"), "").unwrap();
    assert_eq!(listed(), 0);
    write_trace(&open, b"x");
    open.finish(&InputLog::default(), &outcome(1, End::Exited(0)), &recording()).unwrap();
    assert_eq!(listed(), 1);
}

#[test]
fn a_run_takes_the_place_of_another_where_paths_cannot_be_exchanged() {
    let dir = Scratch::new("home");
    let (one, other) = (dir.path().join("new"), dir.path().join("old"));
    for (path, text) in [(&one, "new"), (&other, "old")] {
        std::fs::create_dir(path).unwrap();
        std::fs::write(path.join("x"), text).unwrap();
    }
    super::open_run::take_place_by_renaming(&one, &other).unwrap();
    assert_eq!(std::fs::read_to_string(other.join("x")).unwrap(), "new");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn gc_needs_the_home_alone_and_rm_the_run() {
    let dir = Scratch::new("home");
    let (a, b) = (Home::open(dir.path()).unwrap(), Home::open(dir.path()).unwrap());
    assert!(matches!(a.alone(|| ()), Err(HomeError::Busy(_))));
    record(&b, &outcome(4, End::Exited(0))).unwrap();
    let (one, two) = (a.run(sample().id()).unwrap(), b.run(sample().id()).unwrap());
    assert!(matches!(one.remove(), Err(RunError::Busy(_))));
    two.remove().unwrap();
    assert!(a.runs().is_empty());
    drop(b);
    a.alone(|| ()).unwrap();
    let run = a.begin(&sample()).unwrap();
    assert!(a.run(run.dir().id()).unwrap().is_being_recorded());
}

#[test]
fn a_read_only_home_can_be_read_and_says_so_when_written() {
    // Root ignores permission bits, so the read-only mount is one that really is: a file where `open/` should be.
    let dir = Scratch::new("home");
    let home = Home::open(dir.path()).unwrap();
    record(&home, &outcome(4, End::Exited(0))).unwrap();
    std::fs::remove_dir_all(dir.path().join("open")).unwrap();
    std::fs::write(dir.path().join("open"), "").unwrap();
    assert!(home.finished(&sample()).is_some());
    let error = home.begin(&sample()).unwrap_err().to_string();
    assert!(error.contains("open"), "{error}");
}

#[test]
fn child_records_a_run() {
    let Some(dir) = child_env() else { return };
    let home = Home::open(&dir.join("home")).unwrap();
    for n in 0..3u64 {
        let mut spec = sample();
        spec.job.epoch = n as i64;
        let run = home.begin(&spec).unwrap();
        write_trace(&run, format!("run {n}").as_bytes());
        let page = home.pages().put(&[n as u8 + 1; 4096]).unwrap();
        home.pages().sync().unwrap();
        let keyframe = crate::keyframe::Keyframe {
            step: 9,
            records: 1,
            memory: 64 << 20,
            base: crate::keyframe::Base::Full,
            machine: vec![],
            pages: vec![crate::keyframe::PageAt { page: 4, hash: page }],
            written: vec![],
        };
        let path = run.dir().keyframes().join(crate::keyframe::file_name(9));
        crate::envelope::write(crate::keyframe::FILE, &path, &keyframe).unwrap();
        run.finish(&InputLog::default(), &outcome(n, End::Exited(0)), &recording()).unwrap();
        note(&dir, &format!("{n}\n"));
    }
    home.run({
        let mut spec = sample();
        spec.job.epoch = 2;
        spec.id()
    })
    .unwrap()
    .remove()
    .unwrap();
    note(&dir, "removed\n");
}

#[test]
fn dying_at_any_write_of_a_recording_loses_no_finished_run() {
    let points = kill_points("home::tests::child_records_a_run", |dir, notes| {
        let home = Home::open(&dir.join("home")).unwrap();
        let finished = notes.lines().filter(|line| line.parse::<u64>().is_ok()).count() as u64;
        for id in home.runs() {
            let run = home.run(id).unwrap();
            let outcome = run.outcome().unwrap().expect("what is in runs/ is finished");
            assert_eq!(run.spec().unwrap().job.epoch as u64, outcome.steps);
            assert_eq!(run.trace().unwrap().iter().map(Result::unwrap).count(), 1);
            let whole = crate::keyframe::whole(&run.keyframes(), "r", 9).unwrap();
            whole.load::<()>("r", home.pages(), |_, _| Ok(())).unwrap();
        }
        let count = home.runs().len() as u64;
        // Run 2 may be on its way out.
        let least = if finished == 3 { 2 } else { finished };
        assert!(count >= least && count <= finished + 1, "{count} runs, {finished} finished");
        // Every open one can be looked at or is named as not being a run.
        for id in home.open_runs() {
            if let Ok(run) = home.run(id) {
                assert!(!run.is_being_recorded());
                let _ = run.trace();
            }
        }
        // The same work goes through afterwards.
        let mut spec = sample();
        spec.job.epoch = 7;
        let run = home.begin(&spec).unwrap();
        write_trace(&run, b"after");
        run.finish(&InputLog::default(), &outcome(7, End::Exited(0)), &recording()).unwrap();
        assert!(home.finished(&spec).is_some());
    });
    println!("recording: {points} write calls, each survived twice (before it and half-way through)");
    assert!(points > 30);
}

#[test]
fn a_full_disk_while_recording_keeps_what_is_finished() {
    let Some(dir) = child_env() else {
        return in_child("home::tests::a_full_disk_while_recording_keeps_what_is_finished");
    };
    use crate::durable::fault::{Fault, arm};
    let home = Home::open(&dir.join("home")).unwrap();
    record(&home, &outcome(4, End::Exited(0))).unwrap();
    let mut spec = sample();
    spec.job.epoch = 9;
    let mut failed = 0;
    for at in 1..100 {
        arm(Fault::NoSpace, at);
        let result = (|| {
            let run = home.begin(&spec)?;
            run.finish(&InputLog::default(), &outcome(1, End::Exited(0)), &recording()).map_err(|error| {
                match error {
                    FinishError::Write(error) => RunError::Write(error),
                    other => panic!("{other}"),
                }
            })
        })();
        arm(Fault::NoSpace, u64::MAX >> 3);
        assert!(home.finished(&sample()).is_some());
        match result {
            Ok(_) => break,
            Err(error) => {
                assert!(error.to_string().contains("No space left"), "{error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 5, "{failed}");
    assert!(home.finished(&spec).is_some());
}
