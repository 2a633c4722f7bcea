// What is indexed behind Rust's boxes, references, counts and cells; thread-locals the compiler describes twice.
// SPDX-License-Identifier: MIT
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

thread_local! {
    static TWICE: RefCell<Vec<u32>> = RefCell::new(vec![3]);
    static LAZY: Cell<u64> = Cell::new(1);
    static CONST: Cell<u64> = const { Cell::new(1) };
}

#[inline(never)]
fn stop(boxed: &Box<[u16; 3]>, counted: &Rc<RefCell<Vec<u8>>>, single: &Box<u32>, raw: *const u16) {
    if boxed[1] > 0 && counted.borrow().len() > 1 && **single > 0 && !raw.is_null() {
        std::process::abort();
    }
}

fn main() {
    TWICE.with(|own| own.borrow_mut().push(4)); // TWICE
    LAZY.with(|own| own.set(9)); // LAZY
    CONST.with(|own| own.set(8)); // CONST
    let mut boxed = Box::new([1u16, 2, 3]);
    let counted = Rc::new(RefCell::new(vec![1u8, 2, 3]));
    let single = Box::new(7u32);
    boxed[1] = 22; // BOXED
    counted.borrow_mut()[1] = 55; // COUNTED
    let raw = boxed.as_ptr();
    stop(&boxed, &counted, &single, raw);
}
