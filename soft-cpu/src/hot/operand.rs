//! Registers, addresses and TLB hits as the fast forms use them.
//!
//! Everything here is `unsafe` with one contract: `cpu` is the running CPU, `op` a live op lowered for the handler that
//! calls (so its register numbers are below 32, or byte offsets below 136 where the size is 1), `tlb` the table of
//! the current privilege.

use crate::{
    access::mark,
    block::{Link, Op, jump_key, jump_slot},
    cpu::Cpu,
    flags::{cc, kind},
    handler::next,
    insn::BASE,
    tlb::{self, Entry},
};

/// Defines handlers, over sizes and the like (`const NAME`) and a type (`; type NAME: BOUND`). SAFETY of all: the contract
/// of this module.
macro_rules! handlers {
    ($($(#[$doc:meta])* fn $name:ident<$(const $p:ident),* $(; type $t:ident: $bound:path)?>($cpu:ident, $op:ident, $tlb:ident) $body:block)*) => {$(
        $(#[$doc])*
        pub(super) unsafe extern "C" fn $name<$($t: $bound,)? $(const $p: u8),*>(
            $cpu: *mut $crate::cpu::Cpu,
            $op: *const $crate::block::Op,
            $tlb: *const $crate::tlb::Entry,
        ) -> *const $crate::block::Op {
            // SAFETY: the contract of `operand`.
            unsafe { $body }
        }
    )*};
}
pub(super) use handlers;

/// All ones in `S` bytes.
pub(super) const fn ones<const S: u8>() -> u64 {
    !0 >> (64 - 8 * S as u32)
}

/// Sign bit of an `S`-byte value.
pub(super) const fn sign<const S: u8>(value: u64) -> bool {
    value >> (8 * S as u32 - 1) & 1 != 0
}

/// Sign-extended from `S` bytes.
pub(super) const fn extend<const S: u8>(value: u64) -> i64 {
    (value << (64 - 8 * S as u32)) as i64 >> (64 - 8 * S as u32)
}

/// Whole register.
#[inline(always)]
pub(super) unsafe fn whole(cpu: *mut Cpu, n: u8) -> u64 {
    // SAFETY: the module's contract.
    unsafe { (&raw const (*cpu).gpr).cast::<u64>().add(n as usize).read() }
}

/// Register of `S` bytes, zero-extended.
#[inline(always)]
pub(super) unsafe fn get<const S: u8>(cpu: *mut Cpu, n: u8) -> u64 {
    // SAFETY: the module's contract; reading a part of a register is reading initialised bytes of it.
    unsafe {
        if S == 1 {
            u64::from((&raw const (*cpu).gpr).cast::<u8>().add(n as usize).read())
        } else {
            whole(cpu, n) & ones::<S>()
        }
    }
}

/// Writes a register of `S` bytes as the architecture does.
#[inline(always)]
pub(super) unsafe fn put<const S: u8>(cpu: *mut Cpu, n: u8, value: u64) {
    // SAFETY: the module's contract.
    unsafe {
        let file = &raw mut (*cpu).gpr;
        match S {
            1 => file.cast::<u8>().add(n as usize).write(value as u8),
            2 => file.cast::<u64>().add(n as usize).cast::<u16>().write(value as u16),
            4 => file.cast::<u64>().add(n as usize).write(value & 0xffff_ffff),
            _ => file.cast::<u64>().add(n as usize).write(value),
        }
    }
}

/// Linear address of the memory operand in `b`, `c`, `d` and `imm`.
#[inline(always)]
pub(super) unsafe fn address(cpu: *mut Cpu, op: *const Op) -> u64 {
    // SAFETY: the module's contract.
    unsafe {
        let op = &*op;
        whole(cpu, op.b).wrapping_add(whole(cpu, op.c) << (op.d & 3)).wrapping_add(i64::from(op.imm) as u64)
    }
}

/// Host address of a readable operand of `len` bytes, or null.
#[inline(always)]
pub(super) unsafe fn readable(tlb: *const Entry, at: u64, len: u64) -> *const u8 {
    // SAFETY: a slot is inside the table.
    let e = unsafe { &*tlb.add(tlb::slot(at)) };
    if at ^ e.read > 4096 - len {
        return std::ptr::null();
    }
    at.wrapping_add(e.addend) as *const u8
}

/// Host address of an operand of `len` bytes that is about to be written, or null.
#[inline(always)]
pub(super) unsafe fn writable(tlb: *const Entry, at: u64, len: u64) -> *mut u8 {
    // SAFETY: a slot is inside the table.
    let e = unsafe { &*tlb.add(tlb::slot(at)) };
    if at ^ e.write > 4096 - len {
        return std::ptr::null_mut();
    }
    // SAFETY: the tag covers `len` bytes of a page with marks, as the entry says.
    unsafe { mark(at.wrapping_add(e.marks), len as usize) };
    at.wrapping_add(e.addend) as *mut u8
}

/// Reads `S` bytes at a host address a TLB hit gave.
#[inline(always)]
pub(super) unsafe fn peek<const S: u8>(at: *const u8) -> u64 {
    // SAFETY: the TLB hit covers `S` bytes.
    unsafe {
        match S {
            1 => u64::from(at.read()),
            2 => u64::from(at.cast::<u16>().read_unaligned()),
            4 => u64::from(at.cast::<u32>().read_unaligned()),
            _ => at.cast::<u64>().read_unaligned(),
        }
    }
}

/// Writes `S` bytes at a host address a TLB hit gave.
#[inline(always)]
pub(super) unsafe fn poke<const S: u8>(at: *mut u8, value: u64) {
    // SAFETY: the TLB hit covers `S` bytes.
    unsafe {
        match S {
            1 => at.write(value as u8),
            2 => at.cast::<u16>().write_unaligned(value as u16),
            4 => at.cast::<u32>().write_unaligned(value as u32),
            _ => at.cast::<u64>().write_unaligned(value),
        }
    }
}

pub(super) const ADD: u8 = 0;
pub(super) const SUB: u8 = 1;
pub(super) const AND: u8 = 2;
pub(super) const OR: u8 = 3;
pub(super) const XOR: u8 = 4;
pub(super) const CMP: u8 = 5;
pub(super) const TEST: u8 = 6;

/// The operation, not masked.
#[inline(always)]
pub(super) const fn compute<const K: u8>(a: u64, b: u64) -> u64 {
    match K {
        ADD => a.wrapping_add(b),
        SUB | CMP => a.wrapping_sub(b),
        AND | TEST => a & b,
        OR => a | b,
        _ => a ^ b,
    }
}

/// Does the operation have a destination?
pub(super) const fn writes<const K: u8>() -> bool {
    K != CMP && K != TEST
}

/// Leaves the flags of the operation. `result` and `b` are masked.
#[inline(always)]
pub(super) unsafe fn set_flags<const K: u8, const S: u8>(cpu: *mut Cpu, result: u64, b: u64) {
    // SAFETY: the module's contract.
    let lazy = unsafe { &mut (*cpu).lazy };
    lazy.dst = result;
    match K {
        ADD => (lazy.src, lazy.cc) = (b, const { cc(kind::ADD, S) }),
        SUB | CMP => (lazy.src, lazy.cc) = (b, const { cc(kind::SUB, S) }),
        _ => lazy.cc = const { cc(kind::LOGIC, S) },
    }
}

/// Follows a guarded link: BASE moves by `by`.
#[inline(always)]
pub(super) unsafe fn jump_by(cpu: *mut Cpu, by: i64, slot: *const Op, tlb: *const Entry) -> *const Op {
    // SAFETY: the module's contract; `slot` is a link slot of the running block.
    unsafe {
        let base = (&raw mut (*cpu).gpr).cast::<u64>().add(BASE as usize);
        let old = base.read();
        let new = old.wrapping_add(by as u64);
        base.write(new);
        let link = slot.cast::<Link>().read();
        if link.key == 0 || link.key == jump_key(new, (*cpu).jump_tags[(new >> 63) as usize]) {
            next!(cpu, link.target, tlb);
        }
        (*cpu).link_same_page = old ^ new < 4096;
        crate::handler::unlinked(cpu, slot, tlb)
    }
}

/// The entry op at linear `rip`, if the jump cache knows it, or null.
#[inline(always)]
pub(super) unsafe fn cached(cpu: *mut Cpu, rip: u64) -> *const Op {
    // SAFETY: the module's contract; the slot is inside the jump cache.
    unsafe {
        let jump = (*cpu).jump_cache.add(jump_slot(rip)).read();
        if jump.key == jump_key(rip, (*cpu).jump_tags[(rip >> 63) as usize]) {
            jump.target
        } else {
            std::ptr::null()
        }
    }
}
