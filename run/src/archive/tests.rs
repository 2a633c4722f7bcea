use super::{read::import, write::export, *};
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
use std::{io::Write, path::Path};

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
        steps: 30,
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
        export(&home, &run, &file, kind).unwrap();
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
            let boot = crate::boot::open(&other, whole.boot.unwrap()).unwrap().unwrap();
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
    export(&home, &home.run(id).unwrap(), &file, Kind::Replayable).unwrap();
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
    // And the good one is still good.
    std::fs::write(&file, &good).unwrap();
    import(&other, &file).unwrap();
}
