//! Which address a memory operand gets.

use fastrand::Rng;

use crate::layout::{CODE, DATA, DATA_READ_ONLY, HIGH, PAGE, READ_ONLY_FIRST, STACK, WRITABLE_SECOND};

/// Preference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// Anything, mostly writable data.
    Any,
    /// As `Any`, but within what a 32-bit displacement reaches.
    Low,
    /// Mostly the stack.
    Stack,
    /// Always writable, far from the edges.
    Safe,
}

/// An address for an access of `size` bytes: mostly fine, often across a boundary, sometimes a fault.
pub(super) fn choose_target(rng: &mut Rng, preference: Target, size: u64) -> u64 {
    let size = size.max(1);
    // The first byte so that the access ends or crosses at `edge`.
    let across = |rng: &mut Rng, edge: u64| edge - rng.u64(..=size);
    let inside = |rng: &mut Rng, base: u64, len: u64| {
        let at = base + rng.u64(..len - size.min(len - 1));
        match rng.u8(..4) {
            0 => at,
            1 => at & !7,
            _ => at & !15,
        }
    };
    if preference == Target::Safe {
        return inside(rng, DATA.base + 0x400, DATA.size() - 0x800);
    }
    if preference == Target::Stack && rng.u8(..8) != 0 {
        return match rng.u8(..24) {
            0 => across(rng, STACK.base),
            1 => across(rng, STACK.end()),
            2 => across(rng, STACK.base + PAGE),
            3 => inside(rng, STACK.base, STACK.size()),
            _ => inside(rng, STACK.base + 0x800, STACK.size() - 0x1000) & !7,
        };
    }
    match rng.u8(..64) {
        0..38 => inside(rng, DATA.base, DATA.size()),
        38..44 => across(rng, DATA.base + PAGE),
        44 | 45 => across(rng, DATA.end()),
        46 => across(rng, DATA.base),
        47 => across(rng, DATA_READ_ONLY.end()),
        48 => across(rng, WRITABLE_SECOND.base),
        49 => across(rng, WRITABLE_SECOND.end()),
        50..53 => inside(rng, DATA_READ_ONLY.base, DATA_READ_ONLY.size()),
        53 => inside(rng, READ_ONLY_FIRST.base, READ_ONLY_FIRST.size()),
        54 => inside(rng, STACK.base, STACK.size()),
        // The code pages, away from what runs.
        55 => inside(rng, CODE.base + 0x1c00, 0x400),
        56 | 57 if preference != Target::Low => inside(rng, HIGH.base, HIGH.size()),
        58 if preference != Target::Low => {
            let edge = HIGH.base + rng.u64(..2) * PAGE;
            across(rng, edge)
        }
        59 if preference != Target::Low => match rng.u8(..6) {
            0 => (1u64 << 47) - rng.u64(..=size),
            1 => 0xffff_8000_0000_0000 - rng.u64(..=size),
            2 => 0xffff_8000_0000_0000 + rng.u64(..0x1000),
            3 => (1u64 << 47) + rng.u64(..1 << 62),
            4 => 0u64.wrapping_sub(rng.u64(1..=size)),
            _ => rng.u64(..64),
        },
        60 => DATA.base - PAGE + rng.u64(..PAGE),
        61 => rng.u64(..0x1000),
        _ => inside(rng, DATA.base, DATA.size()),
    }
}
