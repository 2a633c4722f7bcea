//! What real programs use of the kernel, one program after the other: each is the same however it is run.
//! `REWIND_TEST_SHOW=wio,wmem` runs these alone, once, and prints all they say.

use rewind_platform::{
    control::{TRACE_FAULT, TRACE_FUTEX, TRACE_MMAP, TRACE_SYSCALL},
    job::Job,
};
use testkit::{FileImage, Gatherer, Kit, Outcome, config, finish, job};
use vmm::{EndReason, EngineKind, Machine, MachineConfig, Stop, Until, address::Step};

/// Every program and what of its output must be there.
const PROGRAMS: [(&[&str], &str); 9] = [
    (&["battery"], "slept 2 s"),
    (&["sh", "/bin/jobs.sh"], ""),
    (&["wio"], "sealed: Operation not permitted"),
    (&["wmem"], "owner died: Owner died, then Success"),
    (&["wproc"], "stopped right behind RDTSC; "),
    (&["wnet"], "refused: Connection refused"),
    (&["wsys"], "10200 entries"),
    (&["/usr/bin/strace", "-f", "sh", "-c", "echo traced | cat"], "traced"),
    (&["sh", "-c", "yes 0123456789abcdef | head -n 300000 | tee /dev/fd/2 | wc -c"], "5100000"),
];

fn ended_well(outcome: &Outcome, program: &[&str]) {
    assert_eq!(outcome.failed, None);
    let shown: String = outcome.output.chars().take(20_000).collect();
    assert_eq!(outcome.stop, Stop::End(EndReason::PowerOff), "{program:?}, console:\n{}", outcome.console);
    assert_eq!(outcome.status, Some(0), "{program:?}:\n{shown}");
}

/// In a new machine from the boot keyframe.
fn restored(kit: &Kit, program: &[&str]) -> Outcome {
    let mut machine = kit.base().restore(&config());
    machine.set_job(&job(program), &Default::default()).unwrap();
    finish(&mut machine)
}

/// With every richer record, which must not show in the run.
fn traced(kit: &mut Kit, job: &Job) -> Outcome {
    let machine = kit.start(job);
    machine.set_trace_level(TRACE_SYSCALL | TRACE_FUTEX | TRACE_FAULT | TRACE_MMAP);
    let outcome = finish(machine);
    machine.set_trace_level(0);
    outcome
}

/// Stopped a hundred times on the way.
fn stopped(kit: &mut Kit, program: &[&str], steps: u64) -> Outcome {
    let machine = kit.start(&job(program));
    let (first, mut gatherer) = (machine.step().0, Gatherer::default());
    for n in 1..=100 {
        let at = Step(first + (steps - first) * n / 101);
        let stop = machine.run(&Until::step(at), &mut gatherer).unwrap();
        assert_eq!((stop, machine.step()), (Stop::Step, at));
    }
    let stop = machine.run(&Until::END, &mut gatherer).unwrap();
    gatherer.finish(machine, &stop)
}

#[test]
fn every_program_has_one_hash_however_it_is_run() {
    let mut kit = Kit::boot();
    if let Ok(names) = std::env::var("REWIND_TEST_SHOW") {
        for name in names.split(',') {
            let outcome = kit.run(&job(&name.split(' ').collect::<Vec<_>>()));
            println!("{}\nhash {name} {} {} {}", outcome.output, outcome.hash, outcome.steps, outcome.now);
        }
        return;
    }
    for (program, wanted) in PROGRAMS {
        let first = kit.run(&job(program));
        ended_well(&first, program);
        assert!(first.output.contains(wanted), "{program:?} does not say {wanted:?}:\n{}", first.output);
        let mut again = vec![("restored", restored(&kit, program))];
        // The bench has six minutes for everything; that records change nothing there, engines.rs shows.
        if testkit::engine() == EngineKind::Soft {
            again.push(("traced", traced(&mut kit, &job(program))));
            again.push(("again", kit.run(&job(program))));
            again.push(("stopped", stopped(&mut kit, program, first.steps)));
        }
        for (how, outcome) in &again {
            if outcome.hash != first.hash {
                let at = differing(&first, outcome);
                panic!("{program:?} differs {how}: {at}");
            }
            assert_eq!((outcome.steps, outcome.now), (first.steps, first.now), "{program:?} {how}");
        }
    }
}

/// The first event that differs.
fn differing(a: &Outcome, b: &Outcome) -> String {
    let pairs = a.events.iter().zip(&b.events).enumerate();
    for (n, (a, b)) in pairs {
        if a.header != b.header || a.payload != b.payload {
            let text = |p: &[u8]| String::from_utf8_lossy(p).into_owned();
            return format!(
                "event {n}:\n{:?}\n{}\nagainst\n{:?}\n{}",
                a.header,
                text(&a.payload),
                b.header,
                text(&b.payload)
            );
        }
    }
    format!("{} events against {}", a.events.len(), b.events.len())
}

/// Indexes of the pages that differ.
fn differing_pages(a: &[u8], b: &[u8]) -> Vec<usize> {
    (0..a.len() / 4096).filter(|n| a[n * 4096..][..4096] != b[n * 4096..][..4096]).collect()
}

/// Pages of the buffer in which the kernel makes its records (drivers/rewind/ring.c).
fn record_pages() -> std::ops::Range<usize> {
    const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
    let map = testkit::top().join("build/guest/System.map");
    let text = std::fs::read_to_string(map).unwrap();
    let line = text.lines().find(|line| line.ends_with(" b record")).unwrap();
    let at = (u64::from_str_radix(&line[..16], 16).unwrap() - KERNEL_MAP) as usize;
    at / 4096..(at + rewind_platform::record::RECORD_MAX as usize).div_ceil(4096)
}

fn memory_of(machine: &Machine) -> Vec<u8> {
    let memory = machine.memory();
    let mut bytes = vec![0; memory.pages() as usize * 4096];
    for (index, page) in bytes.chunks_mut(4096).enumerate() {
        memory.read(memory.address_of(index as u64), page).unwrap();
    }
    bytes
}

#[test]
fn looking_at_a_run_changes_no_byte_of_memory() {
    if testkit::engine() != EngineKind::Soft {
        // Equality of all of memory is promised between two runs of the software CPU.
        return;
    }
    let mut kit = Kit::boot();
    let program = ["switch", "3", "40"];
    let machine = kit.start(&job(&program));
    let first = machine.step().0;
    assert_eq!(machine.run(&Until::END, &mut ()).unwrap(), Stop::End(EndReason::PowerOff));
    let (plain, steps, now) = (memory_of(machine), machine.step(), machine.now());
    let compare = |how: &str, machine: &Machine, but: std::ops::Range<usize>| {
        assert_eq!((machine.step(), machine.now()), (steps, now), "{how}");
        let mut pages = differing_pages(&plain, &memory_of(machine));
        pages.retain(|page| !but.contains(page));
        assert!(pages.is_empty(), "{how}: pages {pages:x?} differ");
    };

    let machine = kit.start(&job(&program));
    for at in first + 1..steps.0 {
        assert_eq!(machine.run(&Until::step(Step(at)), &mut ()).unwrap(), Stop::Step);
    }
    assert_eq!(machine.run(&Until::END, &mut ()).unwrap(), Stop::End(EndReason::PowerOff));
    compare("stopped at every step", machine, 0..0);

    let machine = kit.start(&job(&program));
    machine.set_trace_level(TRACE_SYSCALL | TRACE_FUTEX | TRACE_FAULT | TRACE_MMAP);
    assert_eq!(machine.run(&Until::END, &mut ()).unwrap(), Stop::End(EndReason::PowerOff));
    machine.set_trace_level(0);
    // Where records are made keeps the rest of the last long one: nothing else may differ.
    compare("with richer records", machine, record_pages());

    let machine = kit.start(&job(&program));
    machine.set_records(false);
    let mut gatherer = Gatherer::default();
    let stop = machine.run(&Until::END, &mut gatherer).unwrap();
    assert!(gatherer.finish(machine, &stop).events.is_empty());
    compare("without records", machine, 0..0);
}

#[test]
fn cores_are_reported_and_change_nothing_between_runs() {
    let mut kit = Kit::boot();
    let script = "nproc; grep -c ^processor /proc/cpuinfo; ls -d /sys/devices/system/cpu/cpu[0-9]*; \
                  for i in 1 2 3 4; do (for j in 1 2 3; do echo $i.$j; sleep 0.00$i; done) & done; wait";
    let mut many = job(&["sh", "-c", script]);
    many.cores = 4;
    let (first, second) = (kit.run(&many), traced(&mut kit, &many));
    ended_well(&first, &["cores"]);
    assert!(first.output.starts_with("4\n4\n"), "{}", first.output);
    assert_eq!(first.hash, second.hash);
}

#[test]
fn the_guest_ends_by_itself_in_words() {
    let mut kit = Kit::boot();
    let restart = kit.run(&job(&["busybox", "reboot", "-f"]));
    assert_eq!(restart.stop, Stop::End(EndReason::Restart), "{}", restart.console);

    // More than the machine has: the kernel kills the program, and says so.
    // Before that it drops pages of code and reads them again, into other frames.
    let eat = r#"BEGIN { s = "x"; while (length(s) < 60000) s = s s; while (1) a[n++] = s n }"#;
    let mut hungry = |command: &[&str]| {
        let outcome = kit.run(&job(command));
        assert_eq!(outcome.status, Some(9), "{command:?}: {}", outcome.output);
        assert!(outcome.console.contains("Out of memory: Killed process"), "{}", outcome.console);
        outcome.hash
    };
    assert_eq!(hungry(&["tail", "/dev/zero"]), hungry(&["tail", "/dev/zero"]));
    hungry(&["awk", eat]);

    // No init to run.
    let mut files = testkit::kernel();
    files.initramfs = vec![0; 512].into();
    let mut machine = Machine::boot(&MachineConfig { kernel: files, ..config() }).unwrap();
    match machine.run(&Until::END, &mut ()).unwrap() {
        Stop::End(EndReason::Panic { .. }) => {}
        other => panic!("a machine without init ended with {other:?}"),
    }
    assert!(machine.ended());
}

#[test]
fn a_truncated_image_is_said() {
    let whole = std::fs::read(testkit::top().join("build/test-root.erofs")).unwrap();
    let path = std::env::temp_dir().join(format!("rewind-cut-{}.erofs", std::process::id()));
    let mut kit = Kit::boot();
    // Nothing of it; less than its description; a part of its files.
    for len in [0, 1000, 4096, whole.len() / 3] {
        std::fs::write(&path, &whole[..len]).unwrap();
        let machine = kit.start(&job(&["battery"]));
        machine.set_images(vec![Box::new(FileImage::open(&path))]);
        let outcome = finish(machine);
        println!("{len} bytes: {:?}, {:?}, {:?}", outcome.stop, outcome.failed, outcome.status);
        assert_eq!(outcome.stop, Stop::End(EndReason::PowerOff), "{}", outcome.console);
        let said = outcome.failed.is_some_and(|text| {
            text.contains("cannot mount the image") || text.contains("Input/output error")
        });
        assert!(said || outcome.status.is_some_and(|status| status != 0), "{len}: {}", outcome.output);
    }
    std::fs::remove_file(&path).unwrap();
}
