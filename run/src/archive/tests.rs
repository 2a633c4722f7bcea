use super::*;
use crate::{
    home::Home,
    input::InputLog,
    keyframe::{self, Base, Keyframe, PageAt},
    outcome::{End, Outcome, Recording},
    spec::tests::sample,
    testing::Scratch,
    trace::TraceWriter,
};
use rewind_platform::record::{REC_OUTPUT, RecordHeader};
use std::{io::Write, path::Path, sync::atomic::AtomicBool};

fn none(_: &crate::spec::ImageSpec, _: &str) -> std::io::Result<crate::root::Root> {
    panic!("its one image is logged")
}

fn export(
    home: &Home,
    run: &crate::home::RunDir,
    file: &Path,
    kind: Kind,
    find: crate::seek::FindImage<'_>,
) -> Result<(), ArchiveError> {
    super::export(home, run, file, kind, find, &|_| {}, &AtomicBool::new(false))
}

fn import(home: &Home, file: &Path) -> Result<crate::home::RunDir, ArchiveError> {
    super::import(home, file, &AtomicBool::new(false)).map(|imported| imported.run)
}

fn header(step: u64) -> RecordHeader {
    RecordHeader {
        len: 0,
        kind: REC_OUTPUT,
        flags: 0,
        step,
        now: step,
        thread: 1,
        tid: 1,
        pid: 1,
        payload_len: 0,
        aux: 1,
    }
}

/// A home with one run that has everything a run can have.
fn made(dir: &Path) -> (Home, crate::id::RunId) {
    let home = Home::open(dir).unwrap();
    let mut spec = sample();
    spec.kernel = home.keep_bytes(b"a kernel").unwrap();
    spec.initramfs = home.keep_bytes(b"an initramfs").unwrap();
    let key = crate::boot::key(&spec, vmm::EngineKind::Soft);
    let boot = home.boot_dir(key);
    std::fs::create_dir_all(&boot).unwrap();
    let mut writer = TraceWriter::create(&boot).unwrap();
    writer.add(&header(1), b"booting").unwrap();
    writer.sync().unwrap();
    let put = |n: u8| home.pages().put(&[n; 4096]).unwrap();
    let keyframe = |step, base, n: u8| Keyframe {
        step,
        records: 1,
        memory: spec.memory,
        base,
        machine: vec![1],
        pages: vec![PageAt { page: u64::from(n), hash: put(n) }],
        written: vec![],
    };
    let save = |dir: &Path, keyframe: &Keyframe| {
        let path = dir.join(keyframe::file_name(keyframe.step));
        crate::envelope::write(keyframe::FILE, &path, keyframe).unwrap();
    };
    save(&boot, &keyframe(5, Base::Full, 1));
    let run = home.begin(&spec).unwrap();
    save(&run.dir().keyframes(), &keyframe(10, Base::Boot(key), 2));
    save(&run.dir().keyframes(), &keyframe(20, Base::Step(10), 3));
    let mut inputs = InputLog::default();
    inputs.blocks.entry(0).or_default().insert(7, put(4));
    home.pages().sync().unwrap();
    let mut writer = TraceWriter::create(run.dir().path()).unwrap();
    for step in 1..3000 {
        writer.add(&header(step), format!("line {step}\n").as_bytes()).unwrap();
    }
    writer.sync().unwrap();
    let outcome = Outcome {
        end: End::Exited(0),
        steps: 3000,
        virtual_ns: 1,
        started: Some(6),
        started_ns: 1,
        records: writer.records(),
        trace_hash: writer.hash(),
        outputs: vec![],
        missed: vec![],
    };
    let recording = Recording {
        version: "0".into(),
        engine: vmm::EngineKind::Soft,
        wall_ms: 1,
        first_event_ms: None,
        parent: None,
        boot: Some(key),
        source: "x".into(),
    };
    run.finish(&inputs, &outcome, &recording).unwrap();
    let id = home.runs()[0];
    (home, id)
}

#[test]
fn a_run_goes_to_another_home_whole() {
    let (from, to) = (Scratch::new("archive"), Scratch::new("archive"));
    let (home, id) = made(&from.path().join("home"));
    let run = home.run(id).unwrap();
    for (kind, name) in [(Kind::View, "view"), (Kind::Replayable, "all")] {
        let file = from.path().join(name);
        export(&home, &run, &file, kind, &none).unwrap();
        let other = Home::open(&to.path().join(name)).unwrap();
        let got = import(&other, &file).unwrap();
        assert_eq!(got.id(), id);
        assert_eq!(got.spec().unwrap(), run.spec().unwrap());
        assert_eq!(got.outcome().unwrap(), run.outcome().unwrap());
        assert_eq!(got.trace().unwrap().records(), 2999);
        let keyframes = keyframe::list(&got.keyframes());
        assert_eq!(keyframes.len(), if kind == Kind::View { 0 } else { 2 });
        if kind == Kind::Replayable {
            assert_eq!(other.blob("kernel", run.spec().unwrap().kernel).unwrap(), b"a kernel");
            let whole = keyframe::whole(&got.keyframes(), "r", 20).unwrap();
            whole.load::<std::io::Error>("r", other.pages(), |_, _| Ok(())).unwrap();
            let boot = crate::boot::open_own(&other, &got, whole.boot.unwrap()).unwrap().unwrap();
            assert!(crate::boot::open(&other, whole.boot.unwrap()).unwrap().is_none(), "nobody else's");
            assert_eq!(boot.records, 1);
        }
        assert_eq!(import(&other, &file).unwrap().id(), id, "a second time changes nothing");
        assert_eq!(other.runs().len(), 1);
        assert!(other.open_runs().is_empty());
    }
}

/// Packs entries as an exporter would, with a right checksum: only their content is wrong.
fn packed(entries: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut stream = Vec::new();
    for (tag, bytes) in entries {
        stream.push(*tag);
        stream.extend((bytes.len() as u64).to_le_bytes());
        stream.extend(bytes);
    }
    let hash = blake3::hash(&stream);
    stream.push(tag::END);
    stream.extend(32u64.to_le_bytes());
    stream.extend(hash.as_bytes());
    wrap(&stream)
}

fn wrap(stream: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend(VERSION.to_le_bytes());
    file.extend(zstd::encode_all(stream, 3).unwrap());
    file
}

/// The entries of a good file.
fn entries(file: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let stream = zstd::decode_all(&file[12..]).unwrap();
    let (mut rest, mut found) = (&stream[..], Vec::new());
    while rest[0] != tag::END {
        let len = u64::from_le_bytes(rest[1..9].try_into().unwrap()) as usize;
        found.push((rest[0], rest[9..9 + len].to_vec()));
        rest = &rest[9 + len..];
    }
    found
}

#[test]
fn hostile_files_are_refused_and_leave_nothing() {
    let (from, to) = (Scratch::new("archive"), Scratch::new("archive"));
    let (home, id) = made(&from.path().join("home"));
    let file = from.path().join("x");
    export(&home, &home.run(id).unwrap(), &file, Kind::Replayable, &none).unwrap();
    let good = std::fs::read(&file).unwrap();
    let list = entries(&good);
    let other = Home::open(&to.path().join("home")).unwrap();
    let mut tried = 0;
    let mut refused = |what: &str, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = import(&other, &file).err().unwrap_or_else(|| panic!("{what} was taken"));
        assert!(!error.to_string().is_empty());
        assert!(other.runs().is_empty() && other.open_runs().is_empty(), "{what} left something");
        tried += 1;
    };
    type Frames = Vec<(u8, Vec<u8>)>;
    let with = |change: &dyn Fn(&mut Frames)| {
        let mut list = list.clone();
        change(&mut list);
        packed(&list)
    };
    let at = |tag| list.iter().position(|(found, _)| *found == tag).unwrap();
    refused("nothing", b"");
    refused("text", b"hello, this is not a run at all");
    for cut in (12..good.len()).step_by(good.len() / 40) {
        refused("a cut file", &good[..cut]);
    }
    for n in (12..good.len()).step_by(good.len() / 60) {
        let mut bad = good.clone();
        bad[n] ^= 0x10;
        // A bit zstd does not use changes nothing.
        if zstd::decode_all(&bad[12..]).ok() != zstd::decode_all(&good[12..]).ok() {
            refused("a flipped bit", &bad);
        }
    }
    let mut version = good.clone();
    version[8] = 9;
    refused("another version", &version);
    refused("trailing data", &[&good[..], &wrap(b"more")].concat());
    refused("a page twice", &with(&|l| l.push(l[at(tag::PAGE)].clone())));
    refused("a page nothing names", &with(&|l| l.push((tag::PAGE, vec![99; 4096]))));
    refused("a page of zeros", &with(&|l| l.push((tag::PAGE, vec![0; 4096]))));
    refused("a short page", &with(&|l| l[at(tag::PAGE)].1.truncate(100)));
    refused("a missing page", &with(&|l| drop(l.remove(at(tag::PAGE)))));
    refused("a wrong page", &with(&|l| l[at(tag::PAGE)].1[5] ^= 1));
    refused("a keyframe twice", &with(&|l| l.insert(at(tag::KEYFRAME), l[at(tag::KEYFRAME)].clone())));
    refused("another kernel", &with(&|l| l[at(tag::KERNEL)].1.push(0)));
    refused("no kernel", &with(&|l| drop(l.remove(at(tag::KERNEL)))));
    refused("a changed record", &with(&|l| l[at(tag::RECORDS)].1[8] ^= 1));
    refused("records twice", &with(&|l| l.insert(at(tag::RECORDS), l[at(tag::RECORDS)].clone())));
    refused("no records", &with(&|l| l.retain(|(tag, _)| *tag != tag::RECORDS)));
    refused("two specs", &with(&|l| l.insert(1, l[0].clone())));
    refused("no spec", &with(&|l| drop(l.remove(0))));
    refused("another order", &with(&|l| l.swap(0, 1)));
    refused("an unknown entry", &with(&|l| l.push((77, vec![1]))));
    refused("another boot", &with(&|l| l[at(tag::BOOT_KEY)].1[0] ^= 1));
    let mut endless = Vec::new();
    endless.push(tag::SPEC);
    endless.extend(u64::MAX.to_le_bytes());
    refused("a huge claim", &wrap(&endless));
    // A bomb: a gigabyte of zeros in some kilobytes. It is refused at its first entry's length.
    let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    let mut first = vec![tag::RECORDS];
    first.extend((1u64 << 30).to_le_bytes());
    bomb.write_all(&first).unwrap();
    (0..1024).for_each(|_| bomb.write_all(&[0; 1 << 20]).unwrap());
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(bomb.finish().unwrap());
    refused("a bomb", &bytes);
    println!("{tried} hostile files refused");
    // What nobody records is refused for what it is, with all checksums right.
    let refused_for = |words: &str, bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let error = import(&other, &file).unwrap_err().to_string();
        assert!(error.contains(words), "{words}: {error}");
        assert!(other.runs().is_empty() && other.open_runs().is_empty(), "{words} left something");
    };
    let with_outcome = |change: &dyn Fn(&mut Outcome)| {
        with(&|l| {
            let bytes = &mut l[at(tag::OUTCOME)].1;
            let mut outcome = crate::envelope::decode(crate::outcome::FILE, bytes, &file).unwrap();
            change(&mut outcome);
            *bytes = crate::envelope::encode(crate::outcome::FILE, &outcome);
        })
    };
    refused_for("impossible steps", &with_outcome(&|outcome| outcome.steps = u64::MAX));
    refused_for("impossible steps", &with_outcome(&|outcome| outcome.started = Some(3001)));
    refused_for("after its end", &with_outcome(&|outcome| outcome.steps = 15));
    refused_for("builds on one that is not there", &with(&|l| drop(l.remove(at(tag::KEYFRAME)))));
    refused_for("out of order", &with(&|l| l.swap(at(tag::RECORDS), at(tag::RECORDS) + 1)));
    // And the good one is still good.
    std::fs::write(&file, &good).unwrap();
    import(&other, &file).unwrap();
}

/// A generator that is the same on every machine (Knuth's MMIX constants).
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Bytes changed, cut, added or repeated, at some places.
fn mutated(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len().max(1));
        match random.below(6) {
            _ if bytes.is_empty() => bytes.push(random.below(256) as u8),
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.below(256) as u8),
            4 => drop(bytes.drain(at..(at + 1 + random.below(40)).min(bytes.len()))),
            _ => {
                let piece = bytes[at..(at + 1 + random.below(40)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

/// An envelope's body mutated, with its length and hash made right again.
fn reframed(file: &[u8], random: &mut Random) -> Vec<u8> {
    if file.len() < 52 {
        return mutated(file, random);
    }
    let body = mutated(&file[20..file.len() - 32], random);
    let mut out = file[..12].to_vec();
    out.extend((body.len() as u64).to_le_bytes());
    out.extend(body);
    let hash = blake3::hash(&out);
    out.extend(hash.as_bytes());
    out
}

#[test]
fn mutated_archives_are_refused_or_taken_whole() {
    let (from, to) = (Scratch::new("fuzz"), Scratch::new("fuzz"));
    let (home, id) = made(&from.path().join("home"));
    let file = from.path().join("x");
    export(&home, &home.run(id).unwrap(), &file, Kind::Replayable, &none).unwrap();
    let good = std::fs::read(&file).unwrap();
    let list = entries(&good);
    let rounds = std::env::var("REWIND_FUZZ").map_or(400, |rounds| rounds.parse().unwrap());
    let other = Home::open(&to.path().join("home")).unwrap();
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..rounds {
        let random = &mut Random(seed);
        let bytes = match seed % 4 {
            0 => mutated(&good, random),
            // Right checksums around wrong content, of the whole and of the entry.
            1 | 2 => {
                let mut list = list.clone();
                let at = random.below(list.len());
                let entry = &mut list[at];
                entry.1 = if seed % 4 == 1 { mutated(&entry.1, random) } else { reframed(&entry.1, random) };
                packed(&list)
            }
            _ => {
                let mut list = list.clone();
                let (a, b) = (random.below(list.len()), random.below(list.len()));
                match random.below(4) {
                    0 => list.swap(a, b),
                    1 => drop(list.remove(a)),
                    2 => list.insert(a, list[b].clone()),
                    _ => list[a].0 = random.below(16) as u8,
                }
                packed(&list)
            }
        };
        std::fs::write(&file, bytes).unwrap();
        match import(&other, &file) {
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
                assert!(
                    other.runs().is_empty() && other.open_runs().is_empty(),
                    "seed {seed} left something"
                );
            }
            // A change that means nothing, or what only says how it was recorded; all of it can be read.
            Ok(run) => {
                taken += 1;
                assert_eq!(run.spec().unwrap().id(), run.id(), "seed {seed}");
                run.outcome().unwrap();
                run.recording().unwrap();
                run.trace().unwrap().iter().for_each(|record| drop(record.unwrap()));
                for step in keyframe::list(&run.keyframes()) {
                    let whole = keyframe::whole(&run.keyframes(), "r", step);
                    if let Ok(whole) = whole {
                        whole.load::<std::io::Error>("r", other.pages(), |_, _| Ok(())).unwrap();
                    }
                }
                run.remove().unwrap();
            }
        }
    }
    println!("{rounds} mutated archives: {refused} refused, {taken} taken whole");
    assert!(refused > rounds / 2);
    std::fs::write(&file, &good).unwrap();
    import(&other, &file).unwrap();
}

/// Highest memory use of this process so far, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn bombs_take_bounded_memory() {
    if crate::testing::child_env().is_none() {
        return crate::testing::in_child("archive::tests::bombs_take_bounded_memory");
    }
    let (from, to) = (Scratch::new("bomb"), Scratch::new("bomb"));
    let (home, id) = made(&from.path().join("home"));
    let file = from.path().join("x");
    export(&home, &home.run(id).unwrap(), &file, Kind::Replayable, &none).unwrap();
    let list = entries(&std::fs::read(&file).unwrap());
    let other = Home::open(&to.path().join("home")).unwrap();
    // A spec of the largest machine, whose keyframes name page after page.
    let mut spec = home.run(id).unwrap().spec().unwrap();
    spec.memory = 64 << 30;
    let pages = |step: u64| {
        let hash =
            |page: u64| crate::store::PageHash(*blake3::hash(&(step << 32 | page).to_le_bytes()).as_bytes());
        (0..150_000).map(|page| PageAt { page, hash: hash(page) }).collect::<Vec<_>>()
    };
    let start = list.iter().position(|(tag, _)| *tag == tag::KEYFRAME).unwrap();
    let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let mut entry = |tag: u8, bytes: &[u8]| {
        bomb.write_all(&[tag]).unwrap();
        bomb.write_all(&(bytes.len() as u64).to_le_bytes()).unwrap();
        bomb.write_all(bytes).unwrap();
    };
    for (tag, bytes) in &list[..start] {
        match *tag {
            tag::SPEC => entry(*tag, &crate::envelope::encode(crate::spec::FILE, &spec)),
            tag::BOOT_KEY | tag::BOOT | tag::BOOT_RECORDS => {}
            _ => entry(*tag, bytes),
        }
    }
    for step in 1..=3 {
        let keyframe = Keyframe {
            step,
            records: 1,
            memory: 64 << 30,
            base: Base::Full,
            machine: vec![],
            pages: pages(step),
            written: vec![],
        };
        entry(tag::KEYFRAME, &crate::envelope::encode(keyframe::FILE, &keyframe));
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(bomb.finish().unwrap());
    std::fs::write(&file, bytes).unwrap();
    let error = import(&other, &file).unwrap_err().to_string();
    assert!(error.contains("different pages"), "{error}");
    // Records without end, in a file of some kilobytes.
    let mut bomb = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    let mut records = list.iter().find(|(tag, _)| *tag == tag::RECORDS).unwrap().1.clone();
    // All of one step: in order however often they come.
    let mut at = 0;
    while let Some(bytes) = records.get_mut(at..at + crate::trace::RECORD_HEADER) {
        let mut header: RecordHeader = bytemuck::pod_read_unaligned(bytes);
        header.step = 3000;
        bytes.copy_from_slice(bytemuck::bytes_of(&header));
        at += header.len as usize;
    }
    for (tag, bytes) in list[..4].iter().chain(std::iter::repeat_n(&(tag::RECORDS, records.clone()), 4000)) {
        bomb.write_all(&[*tag]).unwrap();
        bomb.write_all(&(bytes.len() as u64).to_le_bytes()).unwrap();
        bomb.write_all(bytes).unwrap();
    }
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(bomb.finish().unwrap());
    std::fs::write(&file, bytes).unwrap();
    let error = import(&other, &file).unwrap_err().to_string();
    assert!(error.contains("more records"), "{error}");
    assert!(other.runs().is_empty() && other.open_runs().is_empty());
    println!("at most {} MB of memory", peak() >> 20);
    assert!(peak() < 900 << 20, "{} MB", peak() >> 20);
}

#[test]
fn importing_again_mends_a_boot_trace_that_was_cut() {
    let (from, to) = (Scratch::new("archive"), Scratch::new("archive"));
    let (home, id) = made(&from.path().join("home"));
    let file = from.path().join("x");
    export(&home, &home.run(id).unwrap(), &file, Kind::Replayable, &none).unwrap();
    let other = Home::open(&to.path().join("home")).unwrap();
    let boot = import(&other, &file).unwrap().own_boot();
    let trace = boot.join("trace");
    let whole = std::fs::read(&trace).unwrap();
    std::fs::write(&trace, &whole[..16]).unwrap();
    import(&other, &file).unwrap();
    assert_eq!(std::fs::read(&trace).unwrap(), whole);
}
