//! A block's code: runs of instructions that have templates become pieces of host code, each entered through the op it
//! begins at; the ops in between are run as ever.
//!
//! The contract with the rest is the handlers': a piece is entered with the guest's state in memory, and leaves it there.
//! An access that misses the TLB stores what is held in registers and jumps to `handler::slow` with its op, which does the
//! instruction in its general form and goes on with the next op: so faults, watches, self-modifying code and
//! everything rare happen in one place only.

use std::mem::offset_of;

use super::{
    emit::{Alu, Code, Hole, Host, RAX, RCX, RDI, RDX, RSI},
    registers::{Registers, place},
};
use crate::{
    block::{Block, Handler, Op},
    cpu::Cpu,
    flags::{Lazy, cc, kind},
    handler,
    hot::flags_unseen,
    insn::{BASE, Insn, Opd, ZERO},
    tlb::{self, Entry},
};

pub(super) const LAZY_DST: i32 = (offset_of!(Cpu, lazy) + offset_of!(Lazy, dst)) as i32;
pub(super) const LAZY_SRC: i32 = (offset_of!(Cpu, lazy) + offset_of!(Lazy, src)) as i32;
pub(super) const LAZY_CC: i32 = (offset_of!(Cpu, lazy) + offset_of!(Lazy, cc)) as i32;

/// The host condition "above".
const ABOVE: u8 = 7;
const NOT_SIGN: u8 = 9;

/// A way out of the piece: where it is taken, and what has to be stored first.
struct Exit {
    hole: Hole,
    registers: Registers,
    op: *const Op,
}

/// What the host's flags are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostFlags {
    /// Nothing known.
    Unknown,
    /// The guest's.
    Guest,
}

/// The generator of one piece.
pub(super) struct Generator<'a> {
    pub(super) code: Code,
    pub(super) registers: Registers,
    exits: Vec<Exit>,
    pub(super) block: &'a Block,
    /// The op of the current instruction.
    pub(super) op: *const Op,
    pub(super) host_flags: HostFlags,
    /// Kind and size of the flag source in memory, if it is known.
    pub(super) source: Option<(u32, u8)>,
    /// SSE is known to be on.
    pub(super) vectors_checked: bool,
}

/// A piece and the op it begins at.
pub(super) struct Piece {
    pub(super) op: usize,
    pub(super) code: Vec<u8>,
}

/// The pieces of a block that have at least `least` instructions.
pub(super) fn pieces(block: &Block, least: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 1;
    while at < block.ops.len() {
        let mut generator = Generator {
            code: Code::default(),
            registers: Registers::default(),
            exits: Vec::new(),
            block,
            op: std::ptr::null(),
            host_flags: HostFlags::Unknown,
            source: None,
            vectors_checked: false,
        };
        let first = at;
        let (next, instructions) = generator.piece(at);
        if instructions >= least {
            pieces.push(Piece { op: first, code: generator.code.bytes });
        }
        // The op that could not be compiled, or the end.
        at = if next < block.ops.len() { next + usize::from(block.covers[next].slots) } else { next };
    }
    pieces
}

impl Generator<'_> {
    /// Compiles from an op on; the op behind, and how many instructions there are.
    fn piece(&mut self, first: usize) -> (usize, usize) {
        let (mut at, mut count) = (first, 0);
        while at < self.block.ops.len() {
            let covers = self.block.covers[at];
            self.op = &raw const self.block.ops[at];
            if at == 1 {
                self.enter();
            } else if covers.count == 0 {
                // Falls out of the block's end.
                if std::ptr::fn_addr_eq(self.block.ops[at].run, handler::go_on as Handler) {
                    self.leave_by(self.block.ops[at].as_word() as i64, at + 1, false);
                    self.finish();
                    return (self.block.ops.len(), count + 1);
                }
                break;
            } else {
                let first = usize::from(covers.first);
                let mut ended = false;
                for n in first..first + usize::from(covers.count) {
                    self.registers.next();
                    let insn = &self.block.insns[n];
                    let unseen = flags_unseen(&self.block.insns[n..]);
                    if insn.ends {
                        if !self.end(insn, at) {
                            // The first of a fused pair has stored its flags; the branch alone is not an op.
                            return self.unfinished(at, covers.count, count);
                        }
                        ended = true;
                    } else if !self.instruction(insn, unseen) {
                        return self.unfinished(at, 1, count);
                    }
                    count += 1;
                }
                if ended {
                    self.finish();
                    return (self.block.ops.len(), count);
                }
            }
            at += usize::from(covers.slots);
        }
        self.unfinished(at, 1, count)
    }

    /// Goes on with the op at `at` as it is.
    fn unfinished(&mut self, at: usize, insns: u8, count: usize) -> (usize, usize) {
        if insns > 1 {
            // Part of a pair is done: such a block stays as it is.
            return (at, 0);
        }
        if at >= self.block.ops.len() {
            return (at, 0);
        }
        self.registers.store_all(&mut self.code);
        self.code.constant(RSI, &raw const self.block.ops[at] as u64);
        self.code.jump_memory(RSI);
        self.finish();
        (at, count)
    }

    /// The ways out, behind the code.
    fn finish(&mut self) {
        for exit in std::mem::take(&mut self.exits) {
            self.code.here(exit.hole);
            exit.registers.store_all(&mut self.code);
            self.code.constant(RSI, exit.op as u64);
            self.code.jump_absolute(handler::slow as *const () as u64);
        }
    }

    /// Takes a way out to `slow` if the condition holds.
    pub(super) fn exit_if(&mut self, condition: u8) {
        let hole = self.code.jump_if(condition);
        self.exits.push(Exit { hole, registers: self.registers.clone(), op: self.op });
    }

    /// The block's entry: takes its instructions from the budget.
    fn enter(&mut self) {
        let count = offset_of!(Cpu, count) as i32;
        let entry = self.op as u64;
        let word = self.block.ops[1].as_word();
        self.code.constant(RAX, word);
        self.code.alu_load(8, Alu::Add, RAX, RDI, count);
        self.code.test(4, RAX, RAX);
        let spent = self.code.jump_if(NOT_SIGN);
        self.code.store(8, RDI, count, RAX);
        self.code.store(8, RDI, offset_of!(Cpu, entered) as i32, RSI);
        // Over the way out.
        let go = self.code.jump();
        self.code.here(spent);
        self.code.constant(RSI, entry);
        self.code.jump_absolute(handler::out_of_budget as *const () as u64);
        self.code.here(go);
    }

    /// Host register with a guest or pseudo register's value; RAX for a pseudo register.
    fn address_part(&mut self, register: u8, scratch: Host) -> Option<Host> {
        if register == ZERO {
            return None;
        }
        if register < 16 {
            return Some(self.registers.get(&mut self.code, register));
        }
        self.code.load(8, scratch, RDI, place(register));
        Some(scratch)
    }

    /// Can the address of the memory operand be computed?
    pub(super) fn has_address(insn: &Insn) -> bool {
        !insn.addr32 && i32::try_from(insn.disp).is_ok()
    }

    /// The linear address of the memory operand, in RAX or wherever `to` says. Leaves the host's flags alone but for a
    /// segment base.
    pub(super) fn address(&mut self, size: u8, to: Host, insn: &Insn, segment: bool) {
        let base = self.address_part(insn.base, RAX);
        let index = self.address_part(insn.index, RCX).map(|index| (index, insn.scale));
        self.code.lea(size, to, base, index, insn.disp as i32);
        if segment && insn.seg != ZERO {
            self.host_flags = HostFlags::Unknown;
            self.code.alu_load(8, Alu::Add, to, RDI, place(insn.seg));
        }
    }

    /// From the linear address in RAX to the host's in RAX, or out.
    pub(super) fn access(&mut self, len: u8, write: bool) {
        const SLOTS: u32 = tlb::SIZE as u32 - 1;
        const ENTRY: u32 = size_of::<Entry>() as u32;
        let tag = if write { offset_of!(Entry, write) } else { offset_of!(Entry, read) };
        self.host_flags = HostFlags::Unknown;
        self.code.mov(4, RCX, RAX);
        self.code.shift(4, 5, RCX, 12 - ENTRY.trailing_zeros() as u8);
        self.code.alu_immediate(4, Alu::And, RCX, (SLOTS * ENTRY) as i32);
        self.code.alu(8, Alu::Add, RCX, RDX);
        self.code.load(8, RSI, RCX, tag as i32);
        self.code.alu(8, Alu::Xor, RSI, RAX);
        self.code.alu_immediate(8, Alu::Cmp, RSI, 4096 - i32::from(len));
        self.exit_if(ABOVE);
        if write {
            self.code.mov(8, RSI, RAX);
            self.code.alu_load(8, Alu::Add, RSI, RCX, offset_of!(Entry, marks) as i32);
            for piece in 0..len.div_ceil(8) {
                self.code.store_immediate(len.min(8), RSI, i32::from(piece) * 8, -1);
            }
        }
        self.code.alu_load(8, Alu::Add, RAX, RCX, offset_of!(Entry, addend) as i32);
    }

    /// The memory operand's host address in RAX.
    pub(super) fn operand(&mut self, insn: &Insn, len: u8, write: bool) {
        self.address(8, RAX, insn, true);
        self.access(len, write);
    }

    /// Notes in memory what the flags come from. Leaves the host's flags alone.
    pub(super) fn note_kind(&mut self, source: u32, size: u8) {
        self.code.store_immediate(4, RDI, LAZY_CC, cc(source, size) as i32);
        self.source = Some((source, size));
    }

    /// Makes the host's flags the guest's; false if it cannot be done.
    pub(super) fn want_flags(&mut self) -> bool {
        if self.host_flags == HostFlags::Guest {
            return true;
        }
        let Some((source, size)) = self.source else { return false };
        match source {
            kind::SUB => {
                self.code.load(8, RAX, RDI, LAZY_DST);
                self.code.load(8, RCX, RDI, LAZY_SRC);
                self.code.alu(8, Alu::Add, RAX, RCX);
                self.code.alu(size, Alu::Cmp, RAX, RCX);
            }
            kind::ADD => {
                self.code.load(8, RAX, RDI, LAZY_DST);
                self.code.load(8, RCX, RDI, LAZY_SRC);
                self.code.alu(8, Alu::Sub, RAX, RCX);
                self.code.alu(size, Alu::Add, RAX, RCX);
            }
            kind::LOGIC => {
                self.code.load(8, RAX, RDI, LAZY_DST);
                self.code.test(size, RAX, RAX);
            }
            _ => return false,
        }
        self.host_flags = HostFlags::Guest;
        true
    }

    /// Moves BASE by `by` and follows the link in the slot `slot` of the block. `stored`: nothing is held in registers.
    pub(super) fn leave_by(&mut self, by: i64, slot: usize, stored: bool) {
        if !stored {
            self.registers.store_all(&mut self.code);
        }
        self.code.alu_memory_immediate(Alu::Add, RDI, place(BASE), by as i32);
        self.code.constant(RSI, &raw const self.block.ops[slot] as u64);
        let target = (self.block.key & 0xfff) as i64 + by;
        let key = offset_of!(crate::block::Link, key) as i32;
        if (0..4096).contains(&target) {
            // A link inside the page holds under any translation once it is filled: key 0.
            self.code.alu_memory_immediate(Alu::Cmp, RSI, key, 0);
            let empty = self.code.jump_if(5);
            self.code.load(8, RSI, RSI, 0);
            self.code.jump_memory(RSI);
            self.code.here(empty);
            self.code.store_immediate(1, RDI, offset_of!(Cpu, link_same_page) as i32, 1);
        } else {
            let tags = offset_of!(Cpu, jump_tags) as i32;
            self.code.load(8, RAX, RDI, place(BASE));
            self.code.load(8, RCX, RDI, tags);
            self.code.test(8, RAX, RAX);
            self.code.load_if_sign(8, RCX, RDI, tags + 8);
            self.code.shift(8, 0, RAX, 16);
            self.code.alu(8, Alu::Xor, RAX, RCX);
            self.code.alu_load(8, Alu::Cmp, RAX, RSI, key);
            let other = self.code.jump_if(5);
            self.code.load(8, RSI, RSI, 0);
            self.code.jump_memory(RSI);
            self.code.here(other);
            self.code.store_immediate(1, RDI, offset_of!(Cpu, link_same_page) as i32, 0);
        }
        self.code.jump_absolute(handler::unlinked as *const () as u64);
    }

    /// The register of an operand of `size` bytes, if a template can use it: no high byte registers.
    pub(super) fn register(opd: Opd) -> Option<u8> {
        match opd {
            Opd::R(n) => Some(n),
            Opd::R8(at) if at % 8 == 0 => Some(at / 8),
            _ => None,
        }
    }
}
