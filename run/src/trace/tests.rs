use rewind_platform::record::{REC_OUTPUT, REC_SWITCH, REC_SYSCALL_ENTER};

use super::*;
use crate::testing::{Scratch, child_env, kill_points, note};

fn record(n: u64) -> Record {
    let mut payload = vec![0; (n as usize * 37) % 300];
    blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut payload);
    let kind = if n.is_multiple_of(3) { REC_OUTPUT } else { REC_SWITCH };
    let header = RecordHeader {
        len: 9999,
        kind,
        flags: 0,
        step: n / 2,
        now: n * 1000,
        thread: n % 5,
        tid: 7,
        pid: 7,
        payload_len: 0,
        aux: n as u32,
    };
    Record::new(&header, &payload)
}

fn write(dir: &std::path::Path, count: u64) -> Content {
    let mut writer = TraceWriter::create(dir).unwrap();
    for n in 0..count {
        let record = record(n);
        writer.add(&record.header, &record.payload).unwrap();
        let rich = RecordHeader { kind: REC_SYSCALL_ENTER, ..record.header };
        writer.add(&rich, &record.payload).unwrap();
    }
    writer.sync().unwrap();
    assert_eq!(writer.records(), count, "rich records are not kept");
    writer.hash()
}

#[test]
fn records_come_back_and_are_found_by_step_and_number() {
    let dir = Scratch::new("trace");
    write(dir.path(), 5000);
    let trace = TraceReader::open(dir.path()).unwrap();
    assert_eq!((trace.records(), trace.torn(), trace.last_step()), (5000, false, 2499));
    let all: Vec<_> = trace.iter().map(Result::unwrap).collect();
    assert_eq!(all, (0..5000).map(record).collect::<Vec<_>>());
    for step in [0, 1, 77, 1234, 2499, 2500] {
        let first = trace.from_step(step).next().map(Result::unwrap);
        assert_eq!(first, (step * 2 < 5000).then(|| record(step * 2)), "step {step}");
    }
    for number in [0, 1, 811, 4999, 5000] {
        let first = trace.from_record(number).next().map(Result::unwrap);
        assert_eq!(first, (number < 5000).then(|| record(number)), "record {number}");
    }
}

#[test]
fn the_hash_does_not_see_padding_but_sees_the_rest() {
    let mut base = TraceHasher::default();
    let r = record(3);
    base.add(&r.header, &r.payload);
    let hash = |header: RecordHeader, payload: &[u8]| {
        let mut hasher = TraceHasher::default();
        hasher.add(&header, payload);
        hasher.finish()
    };
    assert_eq!(hash(RecordHeader { len: 4096, ..r.header }, &r.payload), base.finish());
    assert_ne!(hash(RecordHeader { step: 99, ..r.header }, &r.payload), base.finish());
    assert_ne!(hash(r.header, &r.payload[1..]), base.finish());
}

#[test]
fn a_torn_tail_is_dropped_and_damage_inside_is_named() {
    let dir = Scratch::new("trace");
    let path = dir.path().join("trace");
    write(dir.path(), 1500);
    let whole = std::fs::read(&path).unwrap();
    let frames: Vec<_> = TraceReader::open(dir.path()).unwrap().frames.iter().map(|p| p.frame).collect();
    assert!(frames.len() > 2);
    let last = frames[frames.len() - 1];
    for cut in (0..whole.len()).step_by(61).chain([last.at as usize + 1, whole.len() - 1]) {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let trace = TraceReader::open(dir.path()).unwrap();
        let got: Vec<_> = trace.iter().map(Result::unwrap).collect();
        assert_eq!(got, (0..trace.records()).map(record).collect::<Vec<_>>());
        assert!(trace.records() < 1500);
    }
    let mut bad = whole.clone();
    bad[last.body().start as usize + 5] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    assert!(trace.torn() && trace.records() == last.first_record);
    let mut bad = whole;
    bad[frames[0].body().start as usize + 5] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let trace = TraceReader::open(dir.path()).unwrap();
    let error = trace.iter().find_map(Result::err).unwrap();
    assert!(matches!(error, TraceError::Damaged { at: FIRST, .. }), "{error}");
    const FIRST: u64 = frame::FILE_HEADER;
}

#[test]
fn a_fork_shares_its_parents_records() {
    let (parent, fork) = (Scratch::new("trace"), Scratch::new("trace"));
    write(parent.path(), 3000);
    std::fs::hard_link(parent.path().join("trace"), prefix_path(fork.path(), 0)).unwrap();
    let mut hasher = TraceHasher::default();
    (0..1234).map(record).for_each(|r| hasher.add(&r.header, &r.payload));
    let mut writer = TraceWriter::create_after(fork.path(), 1234, hasher.clone()).unwrap();
    let expected: Vec<_> = (0..1234).chain(5000..6000).map(record).collect();
    for record in &expected[1234..] {
        writer.add(&record.header, &record.payload).unwrap();
        hasher.add(&record.header, &record.payload);
    }
    writer.sync().unwrap();
    assert_eq!(writer.hash(), hasher.finish());
    let trace = TraceReader::open(fork.path()).unwrap();
    assert_eq!(trace.iter().map(Result::unwrap).collect::<Vec<_>>(), expected);
    assert_eq!(trace.from_record(1233).next().unwrap().unwrap(), record(1233));
    assert_eq!(trace.from_record(1234).next().unwrap().unwrap(), record(5000));
    assert_eq!(trace.from_step(616).map(Result::unwrap).next(), Some(record(1232)));
    // A fork of the fork, later.
    let second = Scratch::new("trace");
    for (n, file) in trace.files().enumerate() {
        std::fs::hard_link(file, prefix_path(second.path(), n)).unwrap();
    }
    let mut writer = TraceWriter::create_after(second.path(), 1300, TraceHasher::default()).unwrap();
    writer.add(&record(9).header, &record(9).payload).unwrap();
    writer.sync().unwrap();
    let got: Vec<_> = TraceReader::open(second.path()).unwrap().iter().map(Result::unwrap).collect();
    assert_eq!(got.len(), 1301);
    assert_eq!((&got[..1300], &got[1300]), (&expected[..1300], &record(9)));
}

#[test]
fn child_writes_a_trace() {
    let Some(dir) = child_env() else { return };
    let mut writer = TraceWriter::create(&dir).unwrap();
    for n in 0..2000 {
        let record = record(n);
        writer.add(&record.header, &record.payload).unwrap();
        if n % 500 == 499 {
            writer.sync().unwrap();
            note(&dir, &format!("{}\n", n + 1));
        }
    }
}

#[test]
fn dying_at_any_write_loses_no_synced_record() {
    let points = kill_points("trace::tests::child_writes_a_trace", |dir, notes| {
        let synced = notes.lines().last().map_or(0, |line| line.parse::<u64>().unwrap());
        let Ok(trace) = TraceReader::open(dir) else {
            assert_eq!(synced, 0);
            return;
        };
        assert!(trace.records() >= synced, "{} of {synced}", trace.records());
        let got: Vec<_> = trace.iter().map(Result::unwrap).collect();
        assert_eq!(got, (0..trace.records()).map(record).collect::<Vec<_>>());
    });
    println!("trace: {points} write calls, each survived twice (before it and half-way through)");
    assert!(points > 8);
}
