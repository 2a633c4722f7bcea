// Collections, options, a closure. SPDX-License-Identifier: MIT
use std::collections::BTreeMap;

#[inline(never)]
fn look(numbers: &[u64], name: &str) -> Option<u64> {
    let found = numbers.iter().copied().find(|n| *n > 15);
    println!("{name} {found:?}");
    found
}

fn main() {
    let numbers: Vec<u64> = vec![10, 20, 30];
    let name = String::from("rewind");
    let mut map = BTreeMap::new();
    map.insert(1u32, "one");
    let maybe = Some(5i32);
    let found = look(&numbers, &name);
    let total: u64 = numbers.iter().sum();
    std::process::exit(if found == Some(20) && total == 60 && maybe.is_some() && map.len() == 1 { 0 } else { 1 });
}
