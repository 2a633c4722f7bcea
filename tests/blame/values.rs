// Enums with content, boxes, vectors, cells, thread-locals.
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Mutex;

enum Kind {
    Plain,
    Bulk(u32),
}

struct Part {
    count: u32,
}

struct Order {
    kind: Kind,
    item: Box<Part>,
    parts: Vec<Part>,
    next: Option<Box<Part>>,
    pair: (i32, i8),
}

static LOCKED: Mutex<u64> = Mutex::new(5);
thread_local! { static LOCAL: Cell<u32> = const { Cell::new(3) }; }

#[inline(never)]
fn stop(order: &Order, counted: &Rc<RefCell<Part>>) {
    if order.item.count > 0 && counted.borrow().count > 0 && matches!(order.kind, Kind::Bulk(_)) {
        std::process::abort();
    }
}

fn main() {
    let mut order = Order {
        kind: Kind::Plain,
        item: Box::new(Part { count: 0 }),
        parts: vec![Part { count: 1 }, Part { count: 2 }],
        next: Some(Box::new(Part { count: 0 })),
        pair: (1, -1),
    };
    let counted = Rc::new(RefCell::new(Part { count: 1 }));
    *LOCKED.lock().unwrap() = 6; // LOCKED
    LOCAL.with(|own| own.set(4)); // LOCAL
    counted.borrow_mut().count = 11; // COUNTED
    order.parts[1].count += 5; // PART
    order.item.count = 8; // ITEM
    order.kind = Kind::Bulk(9); // KIND
    order.pair.0 -= 5; // PAIR
    if let Some(next) = &mut order.next {
        next.count = 77; // NEXT
    }
    stop(&order, &counted);
}
