//! A field through two pointers. SPDX-License-Identifier: MIT
struct Price {
    cents: i32,
    reduced: bool,
}
struct Item {
    price: Box<Price>,
}
struct Order {
    item: Box<Item>,
}

static mut ORDER: *const Order = std::ptr::null();
static mut TOTAL: u64 = 0;

#[inline(never)]
fn reduce(item: &mut Item) {
    item.price.cents = 250; // REDUCED
    item.price.reduced = true;
}

fn main() {
    let mut order = Order { item: Box::new(Item { price: Box::new(Price { cents: 300, reduced: false }) }) };
    reduce(&mut order.item);
    // SAFETY: one thread.
    unsafe {
        ORDER = &order;
        TOTAL = order.item.price.cents as u64; // TOTAL
        std::hint::black_box(std::ptr::addr_of!(ORDER));
    }
    std::process::abort();
}
