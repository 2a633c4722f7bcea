//! Threads, channels, hashing, formatting and floating point of the Rust library.

use std::{collections::BTreeMap, sync::mpsc, thread};

fn collatz(mut n: u64) -> u32 {
    let mut steps = 0;
    while n != 1 {
        n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        steps += 1;
    }
    steps
}

fn main() {
    let (send, receive) = mpsc::channel();
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let send = send.clone();
            thread::spawn(move || {
                for n in (1 + worker..20_000).step_by(4) {
                    send.send((n, collatz(n))).unwrap();
                }
            })
        })
        .collect();
    drop(send);
    let mut histogram = BTreeMap::new();
    for (_, steps) in receive {
        *histogram.entry(steps).or_insert(0u32) += 1;
    }
    for worker in workers {
        worker.join().unwrap();
    }
    let most = histogram.iter().max_by_key(|&(steps, count)| (count, steps)).unwrap();
    println!("{} lengths, most frequent {most:?}", histogram.len());
    let e: f64 = (1..20).rev().fold(1.0, |e, n| 1.0 + e / f64::from(n));
    println!("{e} {:e} {:?} {:>8.3}", e.powi(40), f32::MAX, e.ln().sin());
    println!("{:?}", "naïve café 日本".chars().rev().collect::<String>().to_uppercase());
    let caught = std::panic::catch_unwind(|| [1, 2, 3][std::hint::black_box(7)]);
    println!("{}", caught.is_err());
    println!("{}", i128::MAX / 1_000_000_007 % 97);
}
