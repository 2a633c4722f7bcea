//! Which guest registers are in which host registers while a piece of code runs.

use std::mem::offset_of;

use super::emit::{Code, Host, RBP, RBX, RDI};
use crate::cpu::Cpu;

/// Host registers that hold guest registers. RAX, RCX and RSI are scratch, RDX and RDI fixed.
const POOL: [Host; 10] =
    [RBX, RBP, Host(8), Host(9), Host(10), Host(11), Host(12), Host(13), Host(14), Host(15)];

#[derive(Clone, Copy, Debug)]
struct Held {
    guest: u8,
    dirty: bool,
    used: u32,
}

/// The assignment. Guest registers are numbers below 16.
#[derive(Clone, Debug, Default)]
pub(super) struct Registers {
    held: [Option<Held>; POOL.len()],
    clock: u32,
    /// Registers of the current instruction before this time must not be given up.
    pinned: u32,
}

/// Distance of a general or pseudo register from the CPU.
pub(super) fn place(register: u8) -> i32 {
    (offset_of!(Cpu, gpr) + 8 * usize::from(register)) as i32
}

impl Registers {
    /// A new instruction: what earlier ones used may be given up.
    pub(super) fn next(&mut self) {
        self.pinned = self.clock;
    }

    fn find(&mut self, guest: u8) -> Option<usize> {
        let at = self.held.iter().position(|h| h.is_some_and(|h| h.guest == guest))?;
        self.clock += 1;
        if let Some(held) = &mut self.held[at] {
            held.used = self.clock;
        }
        Some(at)
    }

    fn take(&mut self, code: &mut Code, guest: u8) -> usize {
        let free = self.held.iter().position(Option::is_none).unwrap_or_else(|| {
            // No instruction uses more than five, so the least recently used is not one of the current one's.
            let least = |at: &usize| self.held[*at].map_or(0, |h| h.used);
            let at = (0..POOL.len()).min_by_key(least).unwrap_or(0);
            debug_assert!(least(&at) <= self.pinned);
            if let Some(held) = self.held[at]
                && held.dirty
            {
                code.store(8, RDI, place(held.guest), POOL[at]);
            }
            at
        });
        self.clock += 1;
        self.held[free] = Some(Held { guest, dirty: false, used: self.clock });
        free
    }

    /// The host register with the value of a guest register.
    pub(super) fn get(&mut self, code: &mut Code, guest: u8) -> Host {
        if let Some(at) = self.find(guest) {
            return POOL[at];
        }
        let at = self.take(code, guest);
        code.load(8, POOL[at], RDI, place(guest));
        POOL[at]
    }

    /// The host register a guest register is to be written in, with its old value: for partial writes and results that
    /// depend on it.
    pub(super) fn change(&mut self, code: &mut Code, guest: u8) -> Host {
        let host = self.get(code, guest);
        self.dirty(guest);
        host
    }

    /// The host register a guest register is to be written in completely.
    pub(super) fn set(&mut self, code: &mut Code, guest: u8) -> Host {
        let at = match self.find(guest) {
            Some(at) => at,
            None => self.take(code, guest),
        };
        self.dirty(guest);
        POOL[at]
    }

    fn dirty(&mut self, guest: u8) {
        for held in self.held.iter_mut().flatten() {
            held.dirty |= held.guest == guest;
        }
    }

    /// Exchanges two guest registers.
    pub(super) fn exchange(&mut self, code: &mut Code, a: u8, b: u8) {
        self.change(code, a);
        self.change(code, b);
        for held in self.held.iter_mut().flatten() {
            held.guest = match held.guest {
                g if g == a => b,
                g if g == b => a,
                g => g,
            };
        }
    }

    /// Stores what memory does not have. Leaves the host's flags alone; the assignment stays as it is.
    pub(super) fn store_all(&self, code: &mut Code) {
        for (host, held) in POOL.into_iter().zip(self.held) {
            if let Some(held) = held
                && held.dirty
            {
                code.store(8, RDI, place(held.guest), host);
            }
        }
    }
}
