use std::os::unix::fs::FileExt;

use super::*;
use crate::testing::{Scratch, child_env, in_child, kill_points};

fn page(n: u64) -> [u8; PAGE_SIZE] {
    // Half compressible, half noise.
    let mut page = [n as u8; PAGE_SIZE];
    let noise = blake3::hash(&n.to_le_bytes());
    let mut reader = blake3::Hasher::new_keyed(noise.as_bytes()).finalize_xof();
    reader.fill(&mut page[..(n as usize * 97) % PAGE_SIZE]);
    page[0] = 1;
    page
}

fn get(store: &PageStore, hash: PageHash) -> Result<[u8; PAGE_SIZE], PageError> {
    let mut out = [0; PAGE_SIZE];
    store.get(hash, &mut out).map(|()| out)
}

#[test]
fn pages_come_back_and_are_stored_once() {
    let dir = Scratch::new("store");
    let store = PageStore::open(dir.path());
    assert_eq!(store.put(&[0; PAGE_SIZE]).unwrap(), PageHash::ZERO);
    assert_eq!(store.disk_bytes(), 0, "zero pages are never stored");
    let hashes: Vec<_> = (0..200).map(|n| store.put(&page(n)).unwrap()).collect();
    assert_eq!(get(&store, hashes[7]).unwrap(), page(7), "before sync");
    store.sync().unwrap();
    let size = store.disk_bytes();
    hashes.iter().enumerate().for_each(|(n, h)| assert_eq!(store.put(&page(n as u64)).unwrap(), *h));
    store.sync().unwrap();
    assert_eq!(store.disk_bytes(), size, "deduplicated");
    let again = PageStore::open(dir.path());
    for (n, hash) in hashes.iter().enumerate() {
        assert_eq!(get(&again, *hash).unwrap(), page(n as u64));
    }
    assert!(matches!(get(&again, PageHash([9; 32])), Err(PageError::Missing { .. })));
}

#[test]
fn two_writers_use_two_packs_and_see_each_other() {
    let dir = Scratch::new("store");
    let (a, b) = (PageStore::open(dir.path()), PageStore::open(dir.path()));
    let first = a.put(&page(1)).unwrap();
    let second = b.put(&page(2)).unwrap();
    a.sync().unwrap();
    b.sync().unwrap();
    assert_eq!(packs::list(dir.path()), [1, 2]);
    assert_eq!(get(&a, second).unwrap(), page(2));
    assert_eq!(get(&b, first).unwrap(), page(1));
    drop((a, b));
    let c = PageStore::open(dir.path());
    c.put(&page(3)).unwrap();
    c.sync().unwrap();
    assert_eq!(packs::list(dir.path()), [1, 2], "a free pack is used again");
}

#[test]
fn a_corrupt_page_is_an_error_and_verify_heals() {
    let dir = Scratch::new("store");
    let store = PageStore::open(dir.path());
    let hashes: Vec<_> = (0..20).map(|n| store.put(&page(n)).unwrap()).collect();
    store.sync().unwrap();
    drop(store);
    let scan = packs::scan_index(dir.path(), 1, 0).unwrap().unwrap();
    let at = scan.entries[11].1;
    let file = File::options().write(true).open(packs::pack_path(dir.path(), 1)).unwrap();
    file.write_all_at(&[0xa5; 3], at.offset + u64::from(at.len) / 2).unwrap();
    let store = PageStore::open(dir.path());
    let error = get(&store, hashes[11]).unwrap_err();
    assert!(matches!(error, PageError::Corrupt { .. }), "{error}");
    assert!(error.to_string().contains("000001.pack"));
    let done = store.compact(&|_| true, true).unwrap();
    assert_eq!((done.kept, done.corrupt, done.dropped), (19, 1, 0));
    assert!(matches!(get(&store, hashes[11]), Err(PageError::Missing { .. })));
    store.put(&page(11)).unwrap();
    store.sync().unwrap();
    assert_eq!(get(&store, hashes[11]).unwrap(), page(11));
    assert_eq!(get(&store, hashes[19]).unwrap(), page(19));
}

#[test]
fn a_corrupt_page_is_stored_anew_by_who_has_it_and_the_good_copy_stays() {
    for doubt in [true, false] {
        let dir = Scratch::new("store");
        let store = PageStore::open(dir.path());
        let hashes: Vec<_> = (0..20).map(|n| store.put(&page(n)).unwrap()).collect();
        store.sync().unwrap();
        drop(store);
        let at = packs::scan_index(dir.path(), 1, 0).unwrap().unwrap().entries[11].1;
        let file = File::options().write(true).open(packs::pack_path(dir.path(), 1)).unwrap();
        file.write_all_at(&[0xa5; 3], at.offset + u64::from(at.len) / 2).unwrap();
        let store = PageStore::open(dir.path());
        store.put(&page(11)).unwrap();
        assert!(get(&store, hashes[11]).is_err(), "a page that is known is not looked at");
        if doubt {
            store.doubt();
            store.put(&page(11)).unwrap();
        } else {
            store.put_checked(&page(11)).unwrap();
        }
        assert_eq!(get(&store, hashes[11]).unwrap(), page(11));
        store.sync().unwrap();
        let size = store.disk_bytes();
        store.put_checked(&page(11)).unwrap();
        store.sync().unwrap();
        assert_eq!(store.disk_bytes(), size, "once");
        let other = PageStore::open(dir.path());
        assert_eq!(get(&other, hashes[11]).unwrap(), page(11), "another process finds the good copy");
        drop(other);
        let done = store.compact(&|_| true, false).unwrap();
        assert_eq!((done.kept, done.corrupt, done.dropped), (20, 0, 1));
        for (n, hash) in hashes.iter().enumerate() {
            assert_eq!(get(&store, *hash).unwrap(), page(n as u64));
        }
    }
}

#[test]
fn compact_keeps_what_lives() {
    let dir = Scratch::new("store");
    let store = PageStore::open(dir.path());
    let hashes: Vec<_> = (0..100).map(|n| store.put(&page(n)).unwrap()).collect();
    store.sync().unwrap();
    let live: std::collections::BTreeSet<_> = hashes.iter().step_by(3).copied().collect();
    let done = store.compact(&|hash| live.contains(&hash), false).unwrap();
    assert_eq!((done.kept, done.dropped), (34, 66));
    assert!(done.freed > 0);
    for (n, hash) in hashes.iter().enumerate() {
        assert_eq!(get(&store, *hash).ok(), live.contains(hash).then(|| page(n as u64)));
    }
    let second = store.compact(&|hash| live.contains(&hash), false).unwrap();
    assert_eq!((second.kept, second.dropped, second.freed), (34, 0, 0));
}

#[test]
fn a_torn_tail_is_dropped_wherever_it_is_torn() {
    let dir = Scratch::new("store");
    let store = PageStore::open(dir.path());
    let first = store.put(&page(1)).unwrap();
    store.sync().unwrap();
    let (pack, idx) = (packs::pack_path(dir.path(), 1), packs::index_path(dir.path(), 1));
    let whole = std::fs::metadata(&idx).unwrap().len();
    let second = store.put(&page(2)).unwrap();
    store.sync().unwrap();
    drop(store);
    let (pack_bytes, idx_bytes) = (std::fs::read(&pack).unwrap(), std::fs::read(&idx).unwrap());
    for cut in whole..idx_bytes.len() as u64 {
        std::fs::write(&pack, &pack_bytes).unwrap();
        std::fs::write(&idx, &idx_bytes[..cut as usize]).unwrap();
        let store = PageStore::open(dir.path());
        assert_eq!(get(&store, first).unwrap(), page(1));
        assert!(matches!(get(&store, second), Err(PageError::Missing { .. })));
        let third = store.put(&page(3)).unwrap();
        store.put(&page(2)).unwrap();
        store.sync().unwrap();
        drop(store);
        let store = PageStore::open(dir.path());
        for (n, hash) in [(1, first), (2, second), (3, third)] {
            assert_eq!(get(&store, hash).unwrap(), page(n), "cut at {cut}");
        }
    }
}

#[test]
fn other_versions_and_strangers_are_refused_by_name() {
    let dir = Scratch::new("store");
    let store = PageStore::open(dir.path());
    let hash = store.put(&page(1)).unwrap();
    store.sync().unwrap();
    drop(store);
    let idx = packs::index_path(dir.path(), 1);
    let whole = std::fs::read(&idx).unwrap();
    // Entries that another version has checks for.
    let mut other = whole.clone();
    other[8] = 7;
    other[16..].fill(1);
    std::fs::write(&idx, &other).unwrap();
    let error = get(&PageStore::open(dir.path()), hash).unwrap_err();
    assert!(error.to_string().contains("version 7"), "{error}");
}

#[test]
fn a_damaged_header_costs_nothing_and_strangers_only_their_own_pages() {
    let dir = Scratch::new("store");
    let store = PageStore::open(dir.path());
    let hash = store.put(&page(1)).unwrap();
    store.sync().unwrap();
    drop(store);
    let (pack, idx) = (packs::pack_path(dir.path(), 1), packs::index_path(dir.path(), 1));
    let (whole_pack, whole_idx) = (std::fs::read(&pack).unwrap(), std::fs::read(&idx).unwrap());
    for at in 0..index::HEADER as usize {
        let (mut bad_pack, mut bad_idx) = (whole_pack.clone(), whole_idx.clone());
        bad_pack[at] ^= 1;
        bad_idx[at] ^= 1;
        std::fs::write(&pack, &bad_pack).unwrap();
        std::fs::write(&idx, &bad_idx).unwrap();
        let store = PageStore::open(dir.path());
        assert_eq!(get(&store, hash).unwrap(), page(1), "byte {at}");
        let second = store.put(&page(2)).unwrap();
        store.sync().unwrap();
        drop(store);
        let store = PageStore::open(dir.path());
        assert_eq!((get(&store, hash).unwrap(), get(&store, second).unwrap()), (page(1), page(2)));
        assert_eq!(store.compact(&|_| true, true).unwrap().kept, 2);
        assert_eq!((get(&store, hash).unwrap(), get(&store, second).unwrap()), (page(1), page(2)));
        drop(store);
        for number in packs::list(dir.path()) {
            std::fs::remove_file(packs::pack_path(dir.path(), number)).unwrap();
            std::fs::remove_file(packs::index_path(dir.path(), number)).unwrap();
        }
    }
    // Under another number: found nowhere, not written over, and found again when its name is put right.
    let (strange_pack, strange_idx) = (packs::pack_path(dir.path(), 5), packs::index_path(dir.path(), 5));
    std::fs::write(&strange_pack, &whole_pack).unwrap();
    std::fs::write(&strange_idx, &whole_idx).unwrap();
    let store = PageStore::open(dir.path());
    assert!(matches!(get(&store, hash), Err(PageError::Missing { .. })));
    store.put(&page(2)).unwrap();
    store.sync().unwrap();
    drop(store);
    PageStore::open(dir.path()).compact(&|_| true, true).unwrap();
    assert_eq!(std::fs::read(&strange_idx).unwrap(), whole_idx);
    for number in packs::list(dir.path()).into_iter().filter(|number| *number != 5) {
        std::fs::remove_file(packs::pack_path(dir.path(), number)).unwrap();
        std::fs::remove_file(packs::index_path(dir.path(), number)).unwrap();
    }
    std::fs::rename(&strange_pack, &pack).unwrap();
    std::fs::rename(&strange_idx, &idx).unwrap();
    assert_eq!(get(&PageStore::open(dir.path()), hash).unwrap(), page(1));
}

#[test]
fn a_page_that_could_not_be_written_is_told_of_by_the_next_sync_whoever_has_put_it() {
    let Some(dir) = child_env() else {
        return in_child(
            "store::tests::a_page_that_could_not_be_written_is_told_of_by_the_next_sync_whoever_has_put_it",
        );
    };
    let store = PageStore::open(&dir.join("pages"));
    // Pages that do not compress: some 1 MiB of them is written before the sync.
    let noise = |n: u64| {
        let mut page = [0; PAGE_SIZE];
        blake3::Hasher::new().update(&n.to_le_bytes()).finalize_xof().fill(&mut page);
        page
    };
    let first = store.put(&noise(0)).unwrap();
    durable::fault::arm(durable::fault::Fault::NoSpace, 1);
    let failed = (1..300).filter(|n| store.put(&noise(*n)).is_err()).count();
    assert!(failed > 0);
    durable::fault::arm(durable::fault::Fault::NoSpace, u64::MAX >> 3);
    let late = store.put(&noise(999)).unwrap();
    let error = store.sync().unwrap_err().to_string();
    assert!(error.contains("No space left") && error.contains("rewind gc"), "{error}");
    assert!(matches!(get(&store, first), Err(PageError::Missing { .. })));
    // Told once: what is put from now on is a new start.
    store.put(&noise(0)).unwrap();
    store.sync().unwrap();
    for (hash, n) in [(first, 0), (late, 999)] {
        assert_eq!(get(&store, hash).unwrap(), noise(n));
    }
}

#[test]
fn pages_of_another_process_are_relied_on_once_their_index_is_on_the_disk() {
    let dir = Scratch::new("store");
    let (a, b) = (PageStore::open(dir.path()), PageStore::open(dir.path()));
    a.put(&page(1)).unwrap();
    a.sync().unwrap();
    let (index, away) = (packs::index_path(dir.path(), 1), dir.path().join("away"));
    b.put(&page(1)).unwrap();
    std::fs::rename(&index, &away).unwrap();
    assert!(matches!(b.sync(), Err(PageError::Io { .. })), "it has nothing of its own to write, and looks");
    std::fs::rename(&away, &index).unwrap();
    b.put(&page(1)).unwrap();
    b.sync().unwrap();
    b.put(&page(1)).unwrap();
    std::fs::rename(&index, &away).unwrap();
    b.sync().unwrap(); // what was seen of it is on the disk: once is enough
}

/// The work whose every write is a place to die: pages in several syncs, each sync noted in a file the parent
/// reads, so that it knows what must still be there.
#[test]
fn child_puts_pages() {
    let Some(dir) = child_env() else { return };
    let store = PageStore::open(&dir.join("pages"));
    for batch in 0..4u64 {
        for n in 0..30 {
            store.put(&page(batch * 30 + n)).unwrap();
        }
        store.sync().unwrap();
        crate::testing::note(&dir, &format!("{batch}\n"));
    }
    let live = |hash: PageHash| (0..120).step_by(2).any(|n| PageHash::of(&page(n)) == hash);
    store.compact(&live, false).unwrap();
    crate::testing::note(&dir, "compacted\n");
}

#[test]
fn dying_at_any_write_loses_nothing_that_was_synced() {
    let points = kill_points("store::tests::child_puts_pages", |dir, notes| {
        let store = PageStore::open(&dir.join("pages"));
        let synced = notes.lines().filter(|line| line.parse::<u64>().is_ok()).count() as u64;
        let compacted = synced == 4; // the compaction may have begun
        for n in (0..synced * 30).step_by(if compacted { 2 } else { 1 }) {
            assert_eq!(get(&store, PageHash::of(&page(n))).unwrap(), page(n), "page {n}");
        }
        // And the home goes on being usable.
        for n in 0..120 {
            store.put(&page(n)).unwrap();
        }
        store.sync().unwrap();
        drop(store);
        let store = PageStore::open(&dir.join("pages"));
        (0..120).for_each(|n| assert_eq!(get(&store, PageHash::of(&page(n))).unwrap(), page(n)));
        store.compact(&|_| true, true).unwrap();
        (0..120).for_each(|n| assert_eq!(get(&store, PageHash::of(&page(n))).unwrap(), page(n)));
    });
    println!("page store: {points} write calls, each survived twice (before it and half-way through)");
    assert!(points > 20);
}

#[test]
fn a_full_disk_is_a_clear_error_and_loses_nothing() {
    let Some(dir) = child_env() else {
        return in_child("store::tests::a_full_disk_is_a_clear_error_and_loses_nothing");
    };
    let store = PageStore::open(&dir.join("pages"));
    let first = store.put(&page(1)).unwrap();
    store.sync().unwrap();
    for at in 1..4 {
        durable::fault::arm(durable::fault::Fault::NoSpace, at);
        let error = store.put(&page(2)).and_then(|_| store.sync()).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        assert!(error.contains("rewind gc"), "{error}");
        durable::fault::arm(durable::fault::Fault::NoSpace, u64::MAX >> 3);
        assert_eq!(get(&store, first).unwrap(), page(1));
    }
    let second = store.put(&page(2)).unwrap();
    store.sync().unwrap();
    assert_eq!(get(&store, second).unwrap(), page(2));
}
