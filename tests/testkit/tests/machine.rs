//! The machine's promises, end to end, on the engine that `REWIND_TEST_ENGINE` names.
//!
//! Each test prints the table it stands on.

use std::{collections::BTreeSet, process::Command, time::Instant};

use rewind_platform::{
    control::{DECISION_PREEMPT, DecisionEntry, SLOT_ARMED, SLOT_DONE},
    record::REC_DECISION,
    state::{ST_RETURNS, ST_SYSCALL},
};
use testkit::{Gatherer, Kit, Outcome, Snapshot, config, finish, job};
use vmm::{EndReason, Machine, MachineConfig, Stop, Until, address::Step};

const POWER_OFF: Stop = Stop::End(EndReason::PowerOff);

/// For the figures printed only.
#[expect(clippy::disallowed_methods, reason = "speed is measured in the host's time")]
fn wall_clock() -> Instant {
    Instant::now()
}

fn ended_well(outcome: &Outcome) {
    assert_eq!(outcome.failed, None);
    assert_eq!(outcome.stop, POWER_OFF, "console:\n{}", outcome.console);
    assert_eq!(outcome.status, Some(0), "output:\n{}", outcome.output);
}

/// Programs that together use most of what the platform makes deterministic.
const PROGRAMS: [&[&str]; 5] =
    [&["battery"], &["sh", "/bin/jobs.sh"], &["forktree", "4"], &["switch", "4", "500"], &["random"]];

#[test]
fn each_program_has_one_hash_in_five_runs() {
    println!("program                     hash of five runs      steps     virtual ns");
    let mut kit = Kit::boot();
    for program in PROGRAMS {
        // One from a boot of its own, one in a new machine from the boot keyframe, three in one that is reset.
        let mut outcomes = vec![finish(&mut booted(program)), finish(&mut restored(&kit, program))];
        outcomes.extend((0..3).map(|_| kit.run(&job(program))));
        let hashes: BTreeSet<_> = outcomes.iter().map(|o| (&o.hash, o.steps, o.now)).collect();
        println!("{:26}  {:?}", program.join(" "), hashes);
        ended_well(&outcomes[0]);
        assert!(!outcomes[0].output.is_empty());
        assert_eq!(hashes.len(), 1, "{program:?} differs");
    }
}

fn booted(program: &[&str]) -> Machine {
    let mut machine = Machine::boot(&config()).unwrap();
    machine.set_images(vec![Box::new(testkit::FileImage::test_root())]);
    assert_eq!(machine.run(&Until::END, &mut ()).unwrap(), Stop::Job);
    machine.set_job(&job(program), &Default::default()).unwrap();
    machine
}

fn restored(kit: &Kit, program: &[&str]) -> Machine {
    let mut machine = kit.base().restore(&config());
    machine.set_job(&job(program), &Default::default()).unwrap();
    machine
}

#[test]
fn five_seeds_give_different_randomness_and_one_hash_each() {
    println!("seed  hash              getrandom, AT_RANDOM, mapping, stack, heap");
    let mut kit = Kit::boot();
    let mut words = BTreeSet::new();
    for seed in 1..=5 {
        let mut job = job(&["random"]);
        job.seed = [seed; 32];
        let (first, second) = (kit.run(&job), kit.run(&job));
        ended_well(&first);
        println!("{seed:4}  {}  {}", first.hash, first.output.trim());
        assert_eq!((&first.hash, &first.output), (&second.hash, &second.output));
        for word in first.output.split_whitespace() {
            assert!(words.insert(word.to_owned()), "{word} came with two seeds");
        }
    }
}

#[test]
fn captures_go_on_in_fresh_processes_as_the_run_did() {
    let mut kit = Kit::boot();
    let whole = kit.run(&job(&["battery"]));
    ended_well(&whole);
    let folder = std::env::temp_dir().join(format!("rewind-testkit-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let first = first_step(&mut kit, &["battery"]);
    println!("captured at  rest of the trace   as in the run itself");
    for n in 0..10 {
        let at = first + (whole.steps - first) * n / 10;
        let machine = kit.start(&job(&["battery"]));
        assert_eq!(machine.run(&Until::step(Step(at)), &mut ()).unwrap(), Stop::Step);
        let snapshot = Snapshot::take(machine);
        let rest = finish(machine);
        let file = folder.join(n.to_string());
        std::fs::write(&file, postcard::to_allocvec(&snapshot).unwrap()).unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_testkit-resume")).arg(&file).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let (resumed, expected) =
            (String::from_utf8(out.stdout).unwrap(), format!("{} {} {}", rest.hash, rest.steps, rest.now));
        println!("{at:11}  {expected}  {}", resumed.trim() == expected);
        assert_eq!(resumed.trim(), expected);
        assert_eq!((rest.steps, rest.now), (whole.steps, whole.now));
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Steps committed when init asks for its job, plus one.
fn first_step(kit: &mut Kit, program: &[&str]) -> u64 {
    kit.start(&job(program)).step().0 + 1
}

#[test]
fn a_run_stopped_a_thousand_times_is_the_run_never_stopped() {
    let mut kit = Kit::boot();
    let program = ["switch", "4", "500"];
    let whole = kit.run(&job(&program));
    ended_well(&whole);
    let first = first_step(&mut kit, &program);
    let machine = kit.start(&job(&program));
    let (mut gatherer, mut stops) = (Gatherer::default(), 0);
    for n in 0..1000 {
        let at = first + (whole.steps - first) * n / 1000;
        let stop = machine.run(&Until::step(Step(at)), &mut gatherer).unwrap();
        assert_eq!((stop, machine.step()), (Stop::Step, Step(at)));
        stops += 1;
    }
    let stop = machine.run(&Until::END, &mut gatherer).unwrap();
    let stopped = gatherer.finish(machine, &stop);
    println!("never stopped {}, stopped {stops} times {}", whole.hash, stopped.hash);
    assert_eq!((whole.hash, whole.steps, whole.now), (stopped.hash, stopped.steps, stopped.now));
}

#[test]
fn what_waits_for_ever_is_found_and_named() {
    const DAY: u64 = 86_400_000_000_000;
    let mut kit = Kit::boot();
    let cases: [(&[&str], EndReason, usize); 7] = [
        (&["deadlock"], EndReason::Stalled, 2),
        (&["deadlock", "tcp"], EndReason::Stalled, 2),
        (&["pipewait"], EndReason::Stalled, 1),
        (&["/usr/bin/sleep", "infinity"], EndReason::Stalled, 1),
        (&["busybox", "sleep", "infinity"], EndReason::Stalled, 1),
        (&["deadlock", "timer"], EndReason::Idling, 2),
        (&["deadlock", "tcp", "timer"], EndReason::Idling, 2),
    ];
    for (program, end, waiting) in cases {
        let (outcome, again) = (kit.run(&job(program)), kit.run(&job(program)));
        let waiters = outcome.waiters();
        println!(
            "{:26} {:?} at step {}, {} ns: {}",
            program.join(" "),
            outcome.stop,
            outcome.steps,
            outcome.now,
            waiters.join("; ")
        );
        assert_eq!(outcome.failed, None);
        assert_eq!(outcome.stop, Stop::End(end), "{program:?}: {}", outcome.console);
        assert_eq!(waiters.len(), waiting, "{program:?}");
        assert!(!outcome.output.contains("never"));
        assert_eq!(outcome.hash, again.hash, "{program:?}");
    }
    let start = wall_clock();
    let outcome = kit.run(&job(&["sleep", "86400"]));
    ended_well(&outcome);
    println!("sleep 86400: {} virtual ns in {:.2} s", outcome.now, start.elapsed().as_secs_f64());
    assert!((DAY..DAY + DAY / 1000).contains(&outcome.now));
}

#[test]
fn a_preempted_thread_is_followed_by_another_every_time() {
    let mut kit = Kit::boot();
    let program = ["switch", "4", "2000"];
    let whole = kit.run(&job(&program));
    ended_well(&whole);
    let places = places(&mut kit, &program, whole.steps);
    let mut followed = 0;
    for (at, place) in &places {
        let machine = kit.start(&job(&program));
        machine.set_decisions(std::slice::from_ref(place)).unwrap();
        let mut gatherer = Gatherer::default();
        // Undisturbed, this step is the named thread's.
        assert_eq!(machine.run(&Until::step(*at), &mut gatherer).unwrap(), Stop::Step);
        let (next, stop) = (machine.thread(), machine.run(&Until::END, &mut gatherer).unwrap());
        let outcome = gatherer.finish(machine, &stop);
        ended_well(&outcome);
        let applied: Vec<_> = outcome.events.iter().filter(|e| e.header.kind == REC_DECISION).collect();
        assert_eq!(applied.len(), 1, "{place:?}");
        assert_eq!((applied[0].header.thread, applied[0].header.step), (place.thread, at.0 - 1));
        assert_eq!(machine.decisions_done().unwrap()[0].state, SLOT_DONE);
        assert_ne!(next, 0, "a thread outside the job followed at {at:?}");
        if next != place.thread {
            followed += 1;
        } else {
            let near = outcome.events.iter().filter(|e| e.header.step.abs_diff(at.0) < 4);
            let near: Vec<_> =
                near.map(|e| (e.header.step, e.header.kind, e.header.tid, e.header.aux)).collect();
            println!("{at:?} {place:?} went on; (step, kind, tid, aux) near it: {near:?}");
        }
    }
    println!("{followed} of {} preemptions were followed by another thread", places.len());
    assert_eq!((followed, places.len()), (100, 100));
}

/// A hundred places at which all four threads can run.
fn places(kit: &mut Kit, program: &[&str], steps: u64) -> Vec<(Step, DecisionEntry)> {
    let first = first_step(kit, program);
    let machine = kit.start(&job(program));
    let mut places = Vec::new();
    // All threads wait at a barrier first and none is near its end: wherever one is, the others can run.
    let (from, to) = (first + (steps - first) / 8, first + (steps - first) * 5 / 8);
    for n in 0..100 {
        let at = Step(from + (to - from) * n / 100);
        assert_eq!(machine.run(&Until::step(at), &mut ()).unwrap(), Stop::Step);
        let entry = DecisionEntry {
            thread: machine.thread(),
            syscall: machine.state_u64(ST_SYSCALL).unwrap(),
            returns: machine.state_u64(ST_RETURNS).unwrap() as u32,
            kind: DECISION_PREEMPT,
            state: SLOT_ARMED,
            arg: 0,
        };
        places.push((at, entry));
    }
    places
}

#[test]
fn few_exits_and_many_steps() {
    let mut kit = Kit::boot();
    for program in [&["sh", "/bin/forks.sh"][..], &["switch", "1", "300000"]] {
        let base = kit.start(&job(program)).step().0;
        let start = wall_clock();
        let outcome = kit.run(&job(program));
        let seconds = start.elapsed().as_secs_f64();
        ended_well(&outcome);
        let steps = outcome.steps - base;
        let exits = outcome.exits as f64 * 100.0 / steps as f64;
        println!(
            "{:20} {steps} steps in {seconds:.2} s ({:.0}/s), {} exits, image I/O included ({exits:.3} per 100 steps)",
            program.join(" "),
            steps as f64 / seconds,
            outcome.exits
        );
        if testkit::engine() == vmm::EngineKind::Kvm {
            assert!(exits <= 1.0);
        }
    }
}

#[test]
fn init_says_what_it_cannot_do() {
    let mut kit = Kit::boot();
    let mut failing = |change: &dyn Fn(&mut rewind_platform::job::Job)| {
        let mut job = job(&["random"]);
        change(&mut job);
        kit.run(&job)
    };
    let user = failing(&|j| j.user = "nobody-here".into());
    assert!(user.failed.unwrap().contains("no such user: nobody-here"));
    let folder = failing(&|j| j.cwd = b"/not/here".to_vec());
    assert!(folder.failed.unwrap().contains("working directory /not/here"));
    let images = failing(&|j| j.images = 2);
    assert!(images.failed.unwrap().contains("2 images"));
    let absent = failing(&|j| j.argv = vec![b"no-such-program".to_vec()]);
    assert_eq!((absent.failed, absent.status), (None, Some(127 << 8)));
    assert!(absent.output.contains("no such program: no-such-program"));
    let data = failing(&|j| j.argv = vec![b"/etc/passwd".to_vec()]);
    assert_eq!((data.failed, data.status), (None, Some(126 << 8)));
    let dropped = failing(&|j| {
        j.user = "user".into();
        j.cwd = b"/tmp".to_vec();
        j.argv =
            [&b"sh"[..], b"-c", b"id; pwd; hostname; echo x > f; cat f; exit 7"].map(<[u8]>::to_vec).to_vec();
    });
    assert_eq!(dropped.status, Some(7 << 8));
    assert_eq!(dropped.output, "uid=1000(user) gid=1000(user) groups=1000(user)\n/tmp\nrewind\nx\n");
    let killed = failing(&|j| j.argv = [&b"sh"[..], b"-c", b"kill -9 $$"].map(<[u8]>::to_vec).to_vec());
    assert_eq!(killed.status, Some(9));
    let terminal = failing(&|j| {
        j.tty = true;
        j.argv = [&b"sh"[..], b"-c", b"tty; test -t 0 && stty size"].map(<[u8]>::to_vec).to_vec();
    });
    assert_eq!((terminal.status, terminal.output.as_str()), (Some(0), "/dev/pts/0\r\n24 80\r\n"));
}

#[test]
fn too_little_memory_is_said() {
    let config = MachineConfig { memory: 64 << 20, ..config() };
    let mut machine = match Machine::boot(&config) {
        Ok(machine) => machine,
        Err(error) => {
            assert!(error.to_string().contains("--memory"), "{error}");
            return;
        }
    };
    // It may be enough; then it must come to its job.
    assert_eq!(machine.run(&Until::END, &mut ()).unwrap(), Stop::Job);
}
