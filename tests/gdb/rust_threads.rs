// Threads and a lock. SPDX-License-Identifier: MIT
use std::sync::{Mutex, atomic::{AtomicU32, Ordering}};

static HITS: AtomicU32 = AtomicU32::new(0);
static TOTAL: Mutex<u64> = Mutex::new(0);

#[inline(never)]
fn add(n: u64) {
    *TOTAL.lock().unwrap() += n;
    HITS.fetch_add(1, Ordering::SeqCst);
}

fn main() {
    std::thread::scope(|scope| {
        for n in 1..=3 {
            scope.spawn(move || add(n));
        }
    });
    let total = *TOTAL.lock().unwrap();
    assert!(total == 6 && HITS.load(Ordering::SeqCst) == 3);
}
