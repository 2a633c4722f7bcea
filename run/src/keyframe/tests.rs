use super::*;
use crate::testing::Scratch;

const MEMORY: u64 = 64 << 20;

fn content(n: u64) -> [u8; PAGE_SIZE] {
    let mut page = [0; PAGE_SIZE];
    page[..8].copy_from_slice(&n.to_le_bytes());
    page
}

fn save(dir: &Path, store: &PageStore, step: u64, base: Base, pages: &[(u64, u64)]) -> Keyframe {
    let pages =
        pages.iter().map(|&(page, n)| PageAt { page, hash: store.put(&content(n)).unwrap() }).collect();
    let keyframe = Keyframe {
        step,
        records: step * 2,
        memory: MEMORY,
        base,
        machine: vec![1, 2],
        pages,
        written: vec![],
    };
    store.sync().unwrap();
    envelope::write(FILE, &dir.join(file_name(step)), &keyframe).unwrap();
    keyframe
}

#[test]
fn a_chain_gives_each_page_its_last_content() {
    let dir = Scratch::new("keyframes");
    let store = PageStore::open(&dir.path().join("store"));
    let boot = Content([9; 32]);
    save(dir.path(), &store, 10, Base::Boot(boot), &[(0, 1), (5, 2), (7, 3)]);
    save(dir.path(), &store, 20, Base::Step(10), &[(5, 4), (9, 5)]);
    save(dir.path(), &store, 30, Base::Step(20), &[(5, 0), (11, 6)]);
    assert_eq!(list(dir.path()), [10, 20, 30]);
    let whole = whole(dir.path(), "r", 30).unwrap();
    assert_eq!(whole.boot, Some(boot));
    let mut got = Vec::new();
    let load = whole.load::<()>("r", &store, |page, bytes| {
        got.push((page, bytes[0]));
        Ok(())
    });
    load.unwrap();
    assert_eq!(got, [(0, 1), (5, 0), (7, 3), (9, 5), (11, 6)]);
}

#[test]
fn a_corrupt_page_names_run_and_keyframe() {
    let dir = Scratch::new("keyframes");
    let store = PageStore::open(&dir.path().join("store"));
    let keyframe = save(dir.path(), &store, 10, Base::Full, &[(3, 77)]);
    let whole = whole(dir.path(), "b1d6981401d5d15f", 10).unwrap();
    let pack = dir.path().join("store/000001.pack");
    let mut bytes = std::fs::read(&pack).unwrap();
    let end = bytes.len() - 3;
    bytes[end] ^= 0x40;
    std::fs::write(&pack, bytes).unwrap();
    let error =
        whole.load::<std::io::Error>("b1d6981401d5d15f", &PageStore::open(store.dir()), |_, _| Ok(()));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("keyframe 10 of run b1d6981401d5d15f, page 3"), "{text}");
    assert!(text.contains(&keyframe.pages[0].hash.to_string()), "{text}");
}

#[test]
fn nonsense_is_refused() {
    let good = Keyframe {
        step: 5,
        records: 0,
        memory: MEMORY,
        base: Base::Step(4),
        machine: vec![],
        pages: vec![PageAt { page: 1, hash: PageHash::ZERO }, PageAt { page: 2, hash: PageHash::ZERO }],
        written: vec![],
    };
    assert!(check(&good, "r", 5).is_ok());
    let mut swapped = good.clone();
    swapped.pages.swap(0, 1);
    let mut beyond = good.clone();
    beyond.pages[1].page = MEMORY / 4096;
    let bad = [
        Keyframe { base: Base::Step(5), ..good.clone() },
        Keyframe { memory: 1 << 40, ..good.clone() },
        Keyframe { step: 6, ..good.clone() },
        swapped,
        beyond,
    ];
    bad.iter().for_each(|bad| assert!(check(bad, "r", 5).is_err(), "{bad:?}"));
}

#[test]
fn there_is_no_raw_copy_in_memory_nor_where_it_cannot_be_kept() {
    let dir = Scratch::new("keyframes");
    let store = PageStore::open(&dir.path().join("store"));
    save(dir.path(), &store, 10, Base::Full, &[(0, 1)]);
    let whole = whole(dir.path(), "r", 10).unwrap();
    let shm = Path::new("/dev/shm");
    if dir.path().starts_with(shm) {
        let cache = dir.path().join("not/there/yet");
        assert_eq!(raw_file(&cache, Content([4; 32]), &whole, "r", &store).unwrap(), None);
        assert!(!cache.exists());
    }
    let file = on_disk("no-folder");
    std::fs::write(&file, "").unwrap();
    assert_eq!(raw_file(&file.join("x"), Content([4; 32]), &whole, "r", &store).unwrap(), None);
    std::fs::remove_file(&file).unwrap();
}

/// A place that is no file system in memory, as [`Scratch`] may be.
fn on_disk(name: &str) -> std::path::PathBuf {
    let target = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    target.join(format!("rewind-test-{}-{name}", std::process::id()))
}

#[test]
fn the_raw_copy_is_sparse_right_and_remade_when_touched() {
    let dir = Scratch::new("keyframes");
    let store = PageStore::open(&dir.path().join("store"));
    let cache = on_disk("raw");
    save(dir.path(), &store, 10, Base::Full, &[(0, 1), (100, 2), (MEMORY / 4096 - 1, 3)]);
    let whole = whole(dir.path(), "r", 10).unwrap();
    let Some(path) = raw_file(&cache, Content([4; 32]), &whole, "r", &store).unwrap() else {
        println!("skipped: the build is in memory");
        return;
    };
    let check = || {
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, MEMORY);
        assert_eq!((bytes[0], bytes[100 * 4096], bytes[MEMORY as usize - 4096]), (1, 2, 3));
        assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 3);
    };
    check();
    use std::os::unix::fs::MetadataExt;
    assert!(std::fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20, "holes are holes");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0] = 99;
    std::fs::write(&path, bytes).unwrap();
    raw_file(&cache, Content([4; 32]), &whole, "r", &store).unwrap();
    check();
    std::fs::remove_dir_all(&cache).unwrap();
}
