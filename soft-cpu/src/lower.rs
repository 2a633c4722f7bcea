//! From decoded instructions to threaded ops.

use crate::{
    block::{Block, Covers, Link, NO_LINK, Op},
    handler,
    insn::Insn,
};

/// Ops being collected for one block; used again for the next.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    pub(crate) ops: Vec<Op>,
    covers: Vec<Covers>,
    links: Vec<u16>,
}

impl Ops {
    /// Adds one op (and `data` slots after it) that stands for `count` instructions from `first` on.
    pub(crate) fn add(&mut self, op: Op, data: &[Op], first: usize, count: u8) {
        let covers = Covers { first: first as u8, count, slots: data.len() as u8 + 1 };
        self.ops.push(op);
        self.ops.extend_from_slice(data);
        self.covers.resize(self.ops.len(), covers);
    }

    /// Adds a branch op with empty link slots.
    pub(crate) fn add_linked(&mut self, op: Op, links: u8, first: usize, count: u8) {
        let at = self.ops.len();
        for n in 0..usize::from(links) {
            self.links.push((at + 1 + n) as u16);
        }
        let empty: Link = NO_LINK;
        self.add(op, &[Op::link(empty), Op::link(empty)][..usize::from(links)], first, count);
    }

    /// Adds a conditional branch: a slot with the distances, then two empty link slots.
    pub(crate) fn add_branch(&mut self, op: Op, distances: Op, first: usize, count: u8) {
        let at = self.ops.len();
        self.links.extend([(at + 2) as u16, (at + 3) as u16]);
        self.add(op, &[distances, Op::link(NO_LINK), Op::link(NO_LINK)], first, count);
    }
}

/// Fills in `ops`, `covers` and `links` of a block.
pub(crate) fn lower(block: &mut Block, alone: bool, out: &mut Ops) {
    let n = block.insns.len();
    out.ops.clear();
    out.covers.clear();
    out.links.clear();
    let branches = block.insns.iter().filter(|i| i.counted_branch).count() as u64;
    out.add(Op::word(handler::miss, 0), &[], 0, 0);
    out.add(Op::word(handler::enter, (branches << 32).wrapping_sub(n as u64)), &[], 0, 0);
    let mut at = 0;
    while at < n {
        let taken = if alone { 0 } else { crate::hot::lower(&block.insns[at..], at, out) };
        if taken > 0 {
            at += taken;
            continue;
        }
        let insn: *const Insn = &raw const block.insns[at];
        let run = if block.insns[at].ends { handler::general_end } else { handler::general };
        out.add(Op::word(run, insn as u64), &[], at, 1);
        at += 1;
    }
    if !block.insns.last().is_some_and(|i| i.ends) {
        let end = block.bytes.len() as u64;
        let same_page = !alone && (block.key & 0xfff) + end < 4096;
        if same_page {
            out.add_linked(Op::word(handler::go_on, end), 1, n, 0);
        } else {
            out.add(Op::word(handler::stop_after, end), &[], n, 0);
        }
    }
    // Of their exact sizes: there are many.
    block.ops = out.ops.as_slice().into();
    block.covers = out.covers.as_slice().into();
    block.links = out.links.as_slice().into();
}
