//! Safe Rust, and wrong: to look and to take are two operations.

use std::{
    sync::atomic::{AtomicI32, Ordering},
    thread,
};

static SEATS: AtomicI32 = AtomicI32::new(3);

fn sell() -> i32 {
    let mut sold = 0;
    while SEATS.load(Ordering::SeqCst) > 0 {
        SEATS.fetch_sub(1, Ordering::SeqCst);
        sold += 1;
    }
    sold
}

fn main() {
    let sellers = [thread::spawn(sell), thread::spawn(sell)];
    let sold: i32 = sellers.map(|seller| seller.join().unwrap()).into_iter().sum();
    assert_eq!(sold, 3, "oversold");
}
