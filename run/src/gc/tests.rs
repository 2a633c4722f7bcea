use super::*;
use crate::{
    envelope,
    input::InputLog,
    keyframe::{FILE, Keyframe, PageAt},
    outcome::{End, Outcome, Recording},
    spec::tests::sample,
    testing::Scratch,
};

const MEMORY: u64 = 64 << 20;

fn keyframe(home: &Home, dir: &Path, step: u64, base: Base, bytes: &[u8]) {
    let put = |n: &u8| home.pages().put(&[*n; 4096]).unwrap();
    let mut pages: Vec<PageAt> = bytes.iter().map(|n| PageAt { page: u64::from(*n), hash: put(n) }).collect();
    pages.sort_by_key(|at| at.page);
    home.pages().sync().unwrap();
    let keyframe =
        Keyframe { step, records: 0, memory: MEMORY, base, machine: vec![], pages, written: vec![] };
    std::fs::create_dir_all(dir).unwrap();
    envelope::write(FILE, &dir.join(keyframe::file_name(step)), &keyframe).unwrap();
}

/// With its trace: without one it cannot be used.
fn boot_keyframe(home: &Home, key: Content, bytes: &[u8]) {
    let dir = home.boot_dir(key);
    keyframe(home, &dir, 5, Base::Full, bytes);
    crate::trace::TraceWriter::create(&dir).unwrap().sync().unwrap();
}

fn record(home: &Home, epoch: i64, boot: Content, kernel: Content, bytes: &[u8]) -> id::RunId {
    let mut spec = sample();
    spec.job.epoch = epoch;
    spec.kernel = kernel;
    let run = home.begin(&spec).unwrap();
    crate::trace::TraceWriter::create(run.dir().path()).unwrap().sync().unwrap();
    keyframe(home, &run.dir().keyframes(), 10, Base::Boot(boot), bytes);
    keyframe(home, &run.dir().keyframes(), 20, Base::Step(10), &[bytes[0] + 100]);
    let outcome = Outcome {
        end: End::Exited(0),
        steps: 30,
        virtual_ns: 1,
        started: None,
        started_ns: 0,
        records: 0,
        trace_hash: Content([0; 32]),
        outputs: vec![],
        missed: vec![],
    };
    let recording = Recording {
        version: "0".into(),
        engine: vmm::EngineKind::Soft,
        wall_ms: 1,
        first_event_ms: None,
        parent: None,
        boot: Some(boot),
        source: String::new(),
    };
    let mut inputs = InputLog::default();
    let logged = home.pages().put(&[bytes[0] + 200; 4096]).unwrap();
    home.pages().sync().unwrap();
    inputs.blocks.entry(0).or_default().insert(0, logged);
    run.finish(&inputs, &outcome, &recording).unwrap();
    home.runs().into_iter().find(|id| home.run(*id).unwrap().spec().unwrap().job.epoch == epoch).unwrap()
}

fn has(home: &Home, n: u8) -> bool {
    home.pages().get(PageHash::of(&[n; 4096]), &mut [0; 4096]).is_ok()
}

#[test]
fn what_a_run_names_stays_and_the_rest_goes() {
    let dir = Scratch::new("gc");
    let home = Home::open(dir.path()).unwrap();
    let (boot, other_boot) = (Content([1; 32]), Content([2; 32]));
    boot_keyframe(&home, boot, &[1, 2]);
    boot_keyframe(&home, other_boot, &[3]);
    let (kernel, other) = (home.keep_bytes(b"kernel").unwrap(), home.keep_bytes(b"other").unwrap());
    let first = record(&home, 1, boot, kernel, &[10, 11]);
    let second = record(&home, 2, boot, kernel, &[20, 11]);
    drop(home.begin(&sample()).unwrap());
    let done = collect(&home, false, true).unwrap();
    assert_eq!((done.died, done.files), (1, 2), "a dead recording, a boot keyframe and a kernel");
    let gone: Vec<u8> =
        [1, 2, 10, 11, 20, 110, 120, 210, 220].into_iter().filter(|n| !has(&home, *n)).collect();
    assert!(gone.is_empty(), "{gone:?} {done:?}");
    assert!(!has(&home, 3));
    assert!(home.blob("kernel", kernel).is_ok() && home.blob("kernel", other).is_err());
    home.run(second).unwrap().remove().unwrap();
    let done = collect(&home, false, true).unwrap();
    assert_eq!(done.pages.dropped, 3);
    assert!([1, 2, 10, 11, 110, 210].iter().all(|n| has(&home, *n)));
    assert!([20, 120, 220].iter().all(|n| !has(&home, *n)));
    prune(&home.run(first).unwrap()).unwrap();
    collect(&home, true, false).unwrap();
    assert!(!has(&home, 10) && has(&home, 210), "outside input is not prunable");
    assert!(has(&home, 1), "the boot keyframe stays");
}

#[test]
fn what_a_killed_process_was_making_goes() {
    let dir = Scratch::new("gc");
    let home = Home::open(dir.path()).unwrap();
    let (file, folder) = (home.path().join("blobs/.x.1.2.tmp"), home.path().join("boot/.y.1.3.tmp"));
    for dir in [home.path().join("blobs"), folder.clone()] {
        std::fs::create_dir_all(dir).unwrap();
    }
    std::fs::write(&file, b"half").unwrap();
    std::fs::write(folder.join("trace"), b"half").unwrap();
    let unpacked = home.cache("images").join("unpacked");
    std::fs::create_dir_all(&unpacked).unwrap();
    std::fs::write(unpacked.join(".z.1.4.tmp"), b"half").unwrap();
    std::fs::write(unpacked.join("whole"), b"whole").unwrap();
    let done = collect(&home, true, false).unwrap();
    assert!(!file.exists() && !folder.exists() && done.freed > 4, "{done:?}");
    assert!(!unpacked.join(".z.1.4.tmp").exists() && unpacked.join("whole").exists());
}

#[test]
fn keyframes_of_a_run_in_use_stay_and_one_without_a_spec_can_be_removed() {
    let dir = Scratch::new("gc");
    let home = Home::open(dir.path()).unwrap();
    let boot = Content([1; 32]);
    boot_keyframe(&home, boot, &[1]);
    let id = record(&home, 1, boot, Content([0; 32]), &[10]);
    let reader = home.run(id).unwrap();
    assert!(matches!(prune(&home.run(id).unwrap()), Err(RunError::Busy(_))));
    assert!(!keyframe::list(&reader.keyframes()).is_empty());
    drop(reader);
    let open = home.begin(&crate::spec::tests::sample()).unwrap();
    assert!(matches!(prune(&home.run(open.dir().id()).unwrap()), Err(RunError::Busy(_))));
    open.discard().unwrap();
    assert!(prune(&home.run(id).unwrap()).unwrap() > 0);
    std::fs::remove_file(home.run(id).unwrap().path().join("spec")).unwrap();
    let (runs, broken) = crate::list::runs(&home, &crate::list::Filter::default());
    assert!(runs.is_empty() && broken[0].to_string().contains("it is gone"), "{broken:?}");
    assert!(collect(&home, false, false).unwrap().damaged[0].contains("rewind rm"));
    home.run(id).unwrap().remove().unwrap();
    assert!(collect(&home, false, false).unwrap().damaged.is_empty());
}

#[test]
fn damage_is_reported_and_newer_formats_stop_it() {
    let dir = Scratch::new("gc");
    let home = Home::open(dir.path()).unwrap();
    let boot = Content([1; 32]);
    boot_keyframe(&home, boot, &[1]);
    let run = record(&home, 1, boot, Content([0; 32]), &[10]);
    record(&home, 2, boot, Content([0; 32]), &[20]);
    let path = home.run(run).unwrap().keyframes().join(keyframe::file_name(20));
    let mut bytes = std::fs::read(&path).unwrap();
    let as_version = |bytes: &[u8], version: u8| {
        let mut bytes = bytes.to_vec();
        bytes[8] = version;
        let content = bytes.len() - 32;
        let hash = blake3::hash(&bytes[..content]);
        bytes[content..].copy_from_slice(hash.as_bytes());
        bytes
    };
    std::fs::write(&path, as_version(&bytes, 99)).unwrap();
    let error = collect(&home, false, false).unwrap_err().to_string();
    assert!(error.contains("nothing was removed") && error.contains("version 99"), "{error}");
    assert!(has(&home, 110));
    // A boot keyframe can be made again, so an old one is no reason to stop.
    let old = home.boot_dir(boot).join(keyframe::file_name(5));
    let now = std::fs::read(&old).unwrap();
    std::fs::write(&path, &bytes).unwrap();
    std::fs::write(&old, as_version(&now, 1)).unwrap();
    let done = collect(&home, false, false).unwrap();
    assert!(done.damaged.len() == 1 && done.damaged[0].contains("version 1"), "{:?}", done.damaged);
    assert!(!old.exists() && done.damaged[0].contains("removed"), "{:?}", done.damaged);
    boot_keyframe(&home, boot, &[1]);
    assert!(std::fs::read(&old).unwrap() == now);
    bytes[40] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let done = collect(&home, false, false).unwrap();
    assert_eq!(done.damaged.len(), 1);
    assert!(done.damaged[0].contains(&format!("keyframe 20 of run {run}")), "{:?}", done.damaged);
    assert!(has(&home, 10) && !has(&home, 110) && has(&home, 120));
}

#[test]
fn who_lacks_pages_is_said_every_time_and_a_boot_keyframe_goes() {
    let dir = Scratch::new("gc");
    let home = Home::open(dir.path()).unwrap();
    let (boot, cut) = (Content([1; 32]), Content([2; 32]));
    boot_keyframe(&home, boot, &[1, 2]);
    boot_keyframe(&home, cut, &[3]);
    std::fs::remove_file(home.boot_dir(cut).join("trace")).unwrap();
    let first = record(&home, 1, boot, Content([0; 32]), &[10, 11]);
    let second = record(&home, 2, boot, Content([0; 32]), &[20, 11]);
    let gone = [1, 10, 110].map(|n| PageHash::of(&[n; 4096]));
    home.pages().compact(&|hash| !gone.contains(&hash), false).unwrap();
    let text = collect(&home, false, false).unwrap().damaged.join("\n");
    assert!(
        text.contains(&format!("run {first} lacks 2 pages: record it again with `rewind run --again`")),
        "{text}"
    );
    assert!(text.contains("boot 0101010101010101 lacks 1 pages; removed"), "{text}");
    assert!(text.contains("0202020202020202") && !text.contains(&second.to_string()), "{text}");
    assert!(!home.boot_dir(boot).exists() && !home.boot_dir(cut).exists());
    let damaged = collect(&home, false, false).unwrap().damaged;
    assert!(damaged.len() == 1 && damaged[0].contains(&first.to_string()), "{damaged:?}");
    home.run(first).unwrap().remove().unwrap();
    assert!(collect(&home, true, true).unwrap().damaged.is_empty());
}

#[test]
fn holes_are_not_given_back() {
    let dir = Scratch::new("gc");
    let home = Home::open(dir.path()).unwrap();
    let ram = home.cache("ram");
    std::fs::create_dir_all(&ram).unwrap();
    std::fs::File::create(ram.join("x.ram")).unwrap().set_len(1 << 31).unwrap();
    let done = collect(&home, false, false).unwrap();
    assert!(done.files == 1 && done.freed < 1 << 20, "{done:?}");
}
