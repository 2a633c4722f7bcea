//! What real programs use of the kernel, one program after the other: each is the same however it is run. Prints a line
//! `hash PROGRAM HASH STEPS NOW DOUBLED` each, by which the test bench compares the engines. Where they differ,
//! `REWIND_TEST_SHOW=wio,wmem` runs these alone, once, and prints all they say.
//!
//! DOUBLED counts instructions that faulted twice, first as a read and then as a write, which a read-modify-write of an
//! untouched page does inside QEMU's emulator and on no CPU (self-test: write-fault). Each is a step too many.

use std::collections::BTreeMap;

use rewind_platform::{
    control::{TRACE_FAULT, TRACE_FUTEX, TRACE_MMAP, TRACE_SYSCALL},
    job::Job,
    record::{REC_FAULT, RecordHeader},
};
use testkit::{FileImage, Gatherer, Kit, Outcome, config, finish, job};
use vmm::{EndReason, EngineKind, Machine, MachineConfig, RecordSink, Stop, Until, address::Step};

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

/// Counts instructions that faulted as a read, then again as a write.
#[derive(Default)]
struct Doubled {
    gatherer: Gatherer,
    /// Each thread's last fault: address, instruction, error code.
    last: BTreeMap<u64, (u64, u64, u32)>,
    count: u64,
}

impl RecordSink for Doubled {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        const WRITE: u32 = 2;
        if header.kind == REC_FAULT {
            let word = |at: usize| u64::from_le_bytes(payload[at..at + 8].try_into().unwrap());
            let fault = (word(0), word(8), header.aux);
            if self.last.insert(header.thread, fault) == Some((fault.0, fault.1, fault.2 & !(WRITE | 1)))
                && fault.2 & WRITE != 0
            {
                self.count += 1;
            }
        }
        self.gatherer.record(header, payload);
    }

    fn console(&mut self, text: &[u8]) {
        self.gatherer.console(text);
    }
}

/// With every richer record, which must not show in the run; and how many instructions faulted twice.
fn traced(kit: &mut Kit, job: &Job) -> (Outcome, u64) {
    let machine = kit.start(job);
    machine.set_trace_level(TRACE_SYSCALL | TRACE_FUTEX | TRACE_FAULT | TRACE_MMAP);
    let mut sink = Doubled::default();
    let stop = machine.run(&Until::END, &mut sink).unwrap();
    let outcome = sink.gatherer.finish(machine, &stop);
    machine.set_trace_level(0);
    (outcome, sink.count)
}

/// The line by which engines are compared.
fn tell(name: &str, outcome: &Outcome, doubled: u64) {
    println!("hash {name} {} {} {} {doubled}", outcome.hash_without_console(), outcome.steps, outcome.now);
    if testkit::engine() == EngineKind::Soft {
        assert_eq!(doubled, 0, "{name}: a read-modify-write is one fault");
    }
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
        let name = program.join(" ").replace(' ', "_");
        let (traced, doubled) = traced(&mut kit, &job(program));
        tell(&name, &first, doubled);
        let mut again = vec![("traced", traced), ("restored", restored(&kit, program))];
        // The bench has six minutes for everything.
        if testkit::engine() == EngineKind::Soft {
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
    let (first, (second, doubled)) = (kit.run(&many), traced(&mut kit, &many));
    ended_well(&first, &["cores"]);
    assert!(first.output.starts_with("4\n4\n"), "{}", first.output);
    assert_eq!(first.hash, second.hash);
    tell("cores", &first, doubled);
}

#[test]
fn the_guest_ends_by_itself_in_words() {
    let mut kit = Kit::boot();
    let restart = kit.run(&job(&["busybox", "reboot", "-f"]));
    assert_eq!(restart.stop, Stop::End(EndReason::Restart), "{}", restart.console);

    // More than the machine has: the kernel kills the program, and says so.
    let (again, doubled) = traced(&mut kit, &job(&["tail", "/dev/zero"]));
    let hungry = [kit.run(&job(&["tail", "/dev/zero"])), kit.run(&job(&["tail", "/dev/zero"]))];
    assert_eq!(hungry[0].status, Some(9), "{}", hungry[0].output);
    assert!(hungry[0].console.contains("Out of memory: Killed process"), "{}", hungry[0].console);
    assert_eq!(hungry[0].hash, hungry[1].hash);
    // The engines are compared without the kernel's words, which show undefined flags.
    tell("hungry", &again, doubled);

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

/// More of them, for the comparison of the engines: name and command.
const UTILITIES: [(&str, &[&str]); 12] = [
    ("forktree", &["forktree", "4"]),
    ("switch", &["switch", "4", "500"]),
    ("random", &["random"]),
    ("deadlock", &["deadlock"]),
    ("deadlock-tcp", &["deadlock", "tcp"]),
    ("pipewait", &["pipewait"]),
    ("sleep", &["/usr/bin/sleep", "3"]),
    ("sort", &["sh", "-c", "seq 1 2000 | sort -r | uniq | md5sum"]),
    (
        "awk",
        &["sh", "-c", "seq 1 300 | awk '{ s += $1 * $1; t[$1 % 7] += s } END { print s, t[3], length(t) }'"],
    ),
    ("gzip", &["sh", "-c", "gzip -c /usr/bin/sleep | gunzip -c | cksum"]),
    (
        "files",
        &[
            "sh",
            "-c",
            "cd /tmp; for i in 1 2 3; do mkdir d$i; echo $i > d$i/f; ln -s f d$i/l; done; cat */l; du -a | sort; rm -r d*; ls",
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

#[test]
fn utilities_have_one_hash() {
    let mut kit = Kit::boot();
    for (name, command) in UTILITIES {
        let (first, second) = (kit.run(&job(command)), kit.run(&job(command)));
        assert_eq!(first.failed, None, "{name}");
        assert!(matches!(first.stop, Stop::End(_)), "{name}: {:?}", first.stop);
        println!("hash {name} {} {} {}", first.hash, first.steps, first.now);
        assert_eq!(
            (&first.hash, first.steps, &first.output),
            (&second.hash, second.steps, &second.output),
            "{name}"
        );
    }
}
