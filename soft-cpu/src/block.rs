//! Decoded blocks: straight pieces of code as threaded ops, found by physical address and mode.
//!
//! A block never continues past the page its first byte is in; an instruction that itself crosses into the next
//! page is a block of its own, checked against the second page's place each time it is looked up. A write to a
//! page that blocks came from makes them doubtful: their entry op leads out, and the next look-up compares the
//! bytes before it trusts one again.

use crate::{
    access::canonical,
    cpu::Cpu,
    decode,
    fault::{Abort, gp, ud},
    handler,
    insn::{Insn, R},
    jit::Compile,
    lower,
    paging::Access,
    tlb::{self, Detail, Entry},
};

/// A handler: does its op and goes on to the next, or returns the next op to be run by the caller, or null when
/// the main loop must decide (`Cpu::rip` is then set).
pub(crate) type Handler = unsafe extern "C" fn(*mut Cpu, *const Op, *const Entry) -> *const Op;

/// One threaded op. Some are followed by data slots of the same size.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Op {
    /// Does it. Garbage in a data slot.
    pub(crate) run: Handler,
    pub(crate) a: u8,
    pub(crate) b: u8,
    pub(crate) c: u8,
    pub(crate) d: u8,
    pub(crate) imm: i32,
}

impl Op {
    /// An op whose operand is one word.
    pub(crate) fn word(run: Handler, word: u64) -> Op {
        let b = word.to_le_bytes();
        Op { run, a: b[0], b: b[1], c: b[2], d: b[3], imm: i32::from_le_bytes([b[4], b[5], b[6], b[7]]) }
    }

    /// A data slot that holds a link.
    pub(crate) fn link(link: Link) -> Op {
        // SAFETY: both are two words; a target is never null, so the first word may stand for a function pointer
        // that is never called.
        unsafe { std::mem::transmute::<Link, Op>(link) }
    }

    /// Its operand word.
    #[inline(always)]
    pub(crate) fn as_word(&self) -> u64 {
        // SAFETY: `a` is the first of eight initialised bytes at offset 8 of a `repr(C)` struct of 16, so aligned.
        unsafe { std::ptr::from_ref(self).cast::<u64>().add(1).read() }
    }
}

/// A link slot: the entry op of a block, and the jump key under which it is valid (cross-page links).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Link {
    pub(crate) target: *const Op,
    pub(crate) key: u64,
}

/// An entry of the jump cache.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Jump {
    /// `jump_key` of the address.
    pub(crate) key: u64,
    pub(crate) target: *const Op,
}

/// Entries of the jump cache (a power of two).
pub(crate) const JUMPS: usize = 1 << 15;
/// Buckets of the block table (a power of two).
const BUCKETS: usize = 1 << 16;
/// Blocks kept before everything is dropped.
const MAX_BLOCKS: usize = 600_000;
/// Instructions of one block at most.
pub(crate) const MAX_INSNS: usize = 64;
/// Bits of a translation generation.
const GENERATION_MASK: u64 = 0x3fff;
/// Bits of the filters of what code came from.
const FILTER_BITS: usize = 1 << 13;

/// Slot of a linear address in the jump cache.
#[inline(always)]
pub(crate) const fn jump_slot(rip: u64) -> usize {
    (rip ^ rip >> 14) as usize & (JUMPS - 1)
}

/// The key of an address under a tag (see [`Cpu::bump_jumps`]). Rotating brings the sixteen non-canonical bits
/// down to where the tag is; tags of the two halves agree in bit 15, so no non-canonical address has the key of
/// another.
#[inline(always)]
pub(crate) const fn jump_key(rip: u64, tag: u64) -> u64 {
    rip.rotate_left(16) ^ tag
}

/// Which instructions an op stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Covers {
    /// First instruction.
    pub(crate) first: u8,
    /// How many (2 for a fused pair).
    pub(crate) count: u8,
    /// Ops including data slots.
    pub(crate) slots: u8,
}

/// Mode bits of a block's key (above any physical address).
pub(crate) mod mode {
    /// CPL 3.
    pub(crate) const USER: u64 = 1 << 60;
    /// One instruction only.
    pub(crate) const ALONE: u64 = 1 << 61;
}

/// A decoded block.
#[derive(Debug)]
pub(crate) struct Block {
    /// `ops[0]` holds the block's own address, `ops[1]` is the entry.
    pub(crate) ops: Box<[Op]>,
    /// For each op.
    pub(crate) covers: Box<[Covers]>,
    pub(crate) insns: Box<[Insn]>,
    /// The bytes it was decoded from.
    pub(crate) bytes: Box<[u8]>,
    /// Physical address of the first byte, and mode bits.
    pub(crate) key: u64,
    /// Guest-physical page of the second part of a crossing instruction, and its RAM index.
    pub(crate) second_page: Option<(u64, u64)>,
    /// RAM index of the page of the first byte.
    pub(crate) page: u64,
    /// Positions of link slots in `ops`.
    pub(crate) links: Box<[u16]>,
    pub(crate) doubtful: bool,
    /// What its entry op runs while it is not doubtful.
    pub(crate) enter: Handler,
    /// Times it was entered before it was compiled.
    pub(crate) runs: u32,
    dead: bool,
    next_in_bucket: u32,
    next_in_page: [u32; 2],
}

const NONE: u32 = u32::MAX;

impl Block {
    /// A block that is in no table yet.
    pub(crate) fn new(
        key: u64,
        page: u64,
        second_page: Option<(u64, u64)>,
        bytes: &[u8],
        insns: &[Insn],
    ) -> Self {
        Block {
            ops: Box::default(),
            covers: Box::default(),
            insns: insns.into(),
            bytes: bytes.into(),
            key,
            second_page,
            page,
            links: Box::default(),
            doubtful: false,
            enter: handler::enter,
            runs: 0,
            dead: false,
            next_in_bucket: NONE,
            next_in_page: [NONE; 2],
        }
    }

    /// Its entry op.
    pub(crate) fn entry(&self) -> *const Op {
        &raw const self.ops[1]
    }
}

/// All blocks and the ways to find them.
#[derive(Debug)]
pub(crate) struct Blocks {
    #[expect(clippy::vec_box, reason = "raw pointers into blocks must survive growth")]
    all: Vec<Box<Block>>,
    buckets: Box<[u32]>,
    /// First block of each RAM page, plus one; 0 is none (so that an untouched table costs no memory).
    by_page: Vec<u32>,
    jumps: Box<[Jump]>,
    /// Generations of the low and high half.
    generations: [u64; 2],
    /// What the code that ran since the last bump of the half came from.
    sources: [Sources; 2],
    /// Code ran from a non-global page of the high half since its last bump.
    pub(crate) local_high_code: bool,
    /// What a block is decoded into, before it is kept in as many bytes as it takes.
    scratch: (Vec<Insn>, lower::Ops),
}

/// Where code came from: sets that may say yes to more than what is in them.
#[derive(Debug)]
struct Sources {
    /// Of linear pages.
    pages: Filter,
    /// Of page-table entries, but for the top level's.
    entries: Filter,
    /// Of the pages these are in.
    tables: Filter,
    /// Counts the bumps.
    epoch: u64,
}

/// A set of hashes.
#[derive(Debug)]
struct Filter(Box<[u64; FILTER_BITS / 64]>);

impl Filter {
    fn new() -> Self {
        Filter(Box::new([0; FILTER_BITS / 64]))
    }

    fn place(value: u64) -> (usize, u64) {
        let bit = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 51) as usize;
        (bit / 64, 1 << (bit % 64))
    }

    fn insert(&mut self, value: u64) {
        let (word, bit) = Filter::place(value);
        self.0[word] |= bit;
    }

    fn may_have(&self, value: u64) -> bool {
        let (word, bit) = Filter::place(value);
        self.0[word] & bit != 0
    }
}

impl Sources {
    fn new() -> Self {
        Sources { pages: Filter::new(), entries: Filter::new(), tables: Filter::new(), epoch: 1 }
    }

    fn forget(&mut self) {
        for filter in [&mut self.pages, &mut self.entries, &mut self.tables] {
            filter.0.fill(0);
        }
        self.epoch += 1;
    }
}

fn bucket(key: u64) -> usize {
    (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize & (BUCKETS - 1)
}

/// Where empty links and jump-cache entries lead: out to the main loop.
pub(crate) static MISS: Op = Op { run: handler::miss, a: 0, b: 0, c: 0, d: 0, imm: 0 };

/// A link that leads out.
pub(crate) const NO_LINK: Link = Link { target: &raw const MISS, key: u64::MAX };

/// A jump-cache entry that leads out.
const NO_JUMP: Jump = Jump { key: u64::MAX, target: &raw const MISS };

impl Blocks {
    pub(crate) fn new(pages: usize) -> Self {
        Blocks {
            all: Vec::new(),
            buckets: vec![NONE; BUCKETS].into(),
            by_page: vec![0; pages],
            jumps: vec![NO_JUMP; JUMPS].into(),
            generations: [1; 2],
            sources: [Sources::new(), Sources::new()],
            local_high_code: false,
            scratch: Default::default(),
        }
    }

    pub(crate) fn jump_cache(&self) -> *const Jump {
        self.jumps.as_ptr()
    }

    /// The jump-cache entry for an address.
    pub(crate) fn jump(&self, rip: u64) -> Jump {
        self.jumps[jump_slot(rip)]
    }

    pub(crate) fn set_jump(&mut self, rip: u64, key: u64, target: *const Op) {
        self.jumps[jump_slot(rip)] = Jump { key, target };
    }

    /// May code have run from the linear page since the last bump of its half?
    pub(crate) fn may_have_run(&self, linear: u64) -> bool {
        self.sources[(linear >> 63) as usize].pages.may_have(linear >> 12)
    }

    /// May code that ran since the last bump of the half come from the page-table entry at `at`?
    pub(crate) fn may_come_from(&self, half: usize, at: u64) -> bool {
        self.sources[half].entries.may_have(at)
    }

    /// May any code come from an entry in the guest-physical page `page`?
    pub(crate) fn may_come_from_page(&self, page: u64) -> bool {
        self.sources.iter().any(|sources| sources.tables.may_have(page))
    }

    /// Code is about to run from a linear page.
    fn note_run(&mut self, linear: u64, detail: &mut Detail) {
        let half = (linear >> 63) as usize;
        let sources = &mut self.sources[half];
        if detail.noted == sources.epoch {
            return;
        }
        detail.noted = sources.epoch;
        sources.pages.insert(linear >> 12);
        for at in detail.path.into_iter().filter(|&at| at != tlb::NOWHERE) {
            sources.entries.insert(at);
            sources.tables.insert(at & !0xfff);
        }
        self.local_high_code |= half == 1 && !detail.global;
    }

    fn find(&self, key: u64) -> Option<u32> {
        let mut at = self.buckets[bucket(key)];
        while at != NONE {
            let block = &self.all[at as usize];
            if block.key == key && !block.dead {
                return Some(at);
            }
            at = block.next_in_bucket;
        }
        None
    }

    fn insert(&mut self, mut block: Box<Block>) -> *const Block {
        let id = self.all.len() as u32;
        let head = &mut self.buckets[bucket(block.key)];
        block.next_in_bucket = std::mem::replace(head, id);
        let pages = [Some(block.page), block.second_page.map(|(_, index)| index)];
        for (n, page) in pages.into_iter().enumerate() {
            if let Some(page) = page {
                let head = &mut self.by_page[page as usize];
                block.next_in_page[n] = std::mem::replace(head, id * 2 + n as u32 + 1).wrapping_sub(1);
            }
        }
        let at: *const Block = &raw const *block;
        self.all.push(block);
        at
    }

    /// Calls `each` for the blocks that took bytes from a RAM page, and forgets the dead ones among them.
    fn each_of_page(&mut self, page: u64, mut each: impl FnMut(&mut Block)) {
        let mut before = NONE;
        let mut at = self.by_page[page as usize].wrapping_sub(1);
        while at != NONE {
            let block = &mut self.all[(at / 2) as usize];
            let next = block.next_in_page[(at % 2) as usize];
            if block.dead {
                if before == NONE {
                    self.by_page[page as usize] = next.wrapping_add(1);
                } else {
                    self.all[(before / 2) as usize].next_in_page[(before % 2) as usize] = next;
                }
            } else {
                each(block);
                before = at;
            }
            at = next;
        }
    }

    /// A block is not found any more; it stays as it is for whatever still leads to it.
    fn bury(&mut self, id: u32) {
        let block = &mut self.all[id as usize];
        block.dead = true;
        let (head, after) = (bucket(block.key), block.next_in_bucket);
        let mut at = self.buckets[head];
        if at == id {
            self.buckets[head] = after;
            return;
        }
        while at != NONE {
            let block = &mut self.all[at as usize];
            if block.next_in_bucket == id {
                block.next_in_bucket = after;
                return;
            }
            at = block.next_in_bucket;
        }
    }
}

impl Cpu {
    /// Makes every jump-cache entry and cross-page link of a half of the address space invalid.
    pub(crate) fn bump_jumps(&mut self, low: bool, high: bool) {
        let blocks = &mut self.blocks;
        for (half, bump) in [low, high].into_iter().enumerate() {
            if bump {
                blocks.generations[half] += 1;
                blocks.sources[half].forget();
            }
        }
        if high {
            blocks.local_high_code = false;
        }
        if blocks.generations.iter().any(|&g| g > GENERATION_MASK) {
            blocks.generations = [1; 2];
            blocks.jumps.fill(NO_JUMP);
            for block in &mut blocks.all {
                for &at in &block.links {
                    block.ops[usize::from(at)] = Op::link(NO_LINK);
                }
            }
        }
        self.link = std::ptr::null_mut();
        self.update_jump_tags();
    }

    /// After a change of generation or privilege.
    pub(crate) fn update_jump_tags(&mut self) {
        for half in 0..2 {
            self.jump_tags[half] = self.blocks.generations[half] << 1 | u64::from(self.user);
        }
    }

    /// Drops every block. Only between blocks.
    pub(crate) fn drop_blocks(&mut self) {
        self.blocks.all.clear();
        self.blocks.buckets.fill(NONE);
        self.blocks.by_page.fill(0);
        self.blocks.jumps.fill(NO_JUMP);
        self.memory.code.fill(0);
        self.link = std::ptr::null_mut();
        self.entered = std::ptr::null();
        self.hot_block = std::ptr::null_mut();
        self.code_full = false;
        if let Some(buffer) = &mut self.code_buffer {
            buffer.clear();
        }
    }

    /// Blocks from a RAM page must be compared with its bytes before they are used again.
    pub(crate) fn doubt_code(&mut self, page: u64) {
        self.memory.set_code(page, false);
        self.blocks.each_of_page(page, |block| {
            block.doubtful = true;
            block.ops[1].run = handler::doubtful;
        });
    }

    /// As [`Cpu::doubt_code`] for all pages.
    pub(crate) fn doubt_all_code(&mut self) {
        self.memory.code.fill(0);
        for block in &mut self.blocks.all {
            block.doubtful = true;
            block.ops[1].run = handler::doubtful;
        }
    }

    /// A store to a page with code is about to happen.
    #[cold]
    pub(crate) fn code_written(&mut self, page: u64) -> R {
        if !self.alone && self.running_block_is_on(page) {
            return Err(Abort::Alone);
        }
        self.doubt_code(page);
        Ok(())
    }

    /// The CPU itself wrote a page (accessed bits).
    pub(crate) fn page_written(&mut self, page: u64) {
        if self.memory.has_code(page) {
            self.doubt_code(page);
        }
    }

    pub(crate) fn running_block_is_on(&self, page: u64) -> bool {
        // SAFETY: see `running`.
        unsafe { self.running() }
            .is_some_and(|b| b.page == page || b.second_page.is_some_and(|(_, index)| index == page))
    }

    /// The running block.
    ///
    /// # Safety
    /// Only while a block runs, and the reference must not outlive it: blocks are only freed by `drop_blocks`.
    pub(crate) unsafe fn running<'a>(&self) -> Option<&'a Block> {
        if self.entered.is_null() {
            return None;
        }
        // SAFETY: `entered` is the entry of a live block, whose `ops[0]` holds the block's address.
        unsafe {
            let block = (*self.entered.sub(1)).as_word() as *const Block;
            block.as_ref()
        }
    }

    /// Finds or decodes the block at linear `rip`. Translates it as a fetch: may fault, sets accessed bits.
    pub(crate) fn block_at(&mut self, rip: u64, alone: bool) -> R<*const Block> {
        if !canonical(rip) {
            return Err(gp(0));
        }
        let (gpa, page) = self.fetch(rip)?;
        let key = gpa | if self.user { mode::USER } else { 0 } | if alone { mode::ALONE } else { 0 };
        if let Some(id) = self.blocks.find(key) {
            if let Some((second, _)) = self.blocks.all[id as usize].second_page {
                let next = (rip & !0xfff).wrapping_add(4096);
                let (gpa, _) = self.fetch_checked(next)?;
                if gpa != second {
                    self.blocks.bury(id);
                    return self.decode_block(rip, gpa_key(key), page, key, alone);
                }
            }
            let block = &self.blocks.all[id as usize];
            if !block.doubtful {
                return Ok(&raw const **block);
            }
            if self.still_true(id) {
                let block = &mut self.blocks.all[id as usize];
                block.doubtful = false;
                block.ops[1].run = block.enter;
                let at: *const Block = &raw const **block;
                let pages = [Some(block.page), block.second_page.map(|(_, index)| index)];
                pages.into_iter().flatten().for_each(|page| self.guard_code(page));
                return Ok(at);
            }
            self.blocks.bury(id);
        }
        self.decode_block(rip, gpa, page, key, alone)
    }

    /// Does memory still hold the bytes a doubtful block came from?
    fn still_true(&self, id: u32) -> bool {
        let block = &self.blocks.all[id as usize];
        let gpa = gpa_key(block.key);
        let first = block.bytes.len().min(4096 - (gpa & 0xfff) as usize);
        let same = |gpa: u64, bytes: &[u8]| {
            self.memory.page(gpa).is_some_and(|p| {
                let mut now = [0; MAX_BYTES];
                let now = &mut now[..bytes.len()];
                // SAFETY: `bytes` came from one page at this offset, so as many bytes are there.
                unsafe {
                    let at = p.host.add((gpa & 0xfff) as usize);
                    std::ptr::copy_nonoverlapping(at, now.as_mut_ptr(), now.len());
                }
                now == bytes
            })
        };
        same(gpa, &block.bytes[..first])
            && block.second_page.is_none_or(|(second, _)| same(second, &block.bytes[first..]))
    }

    /// From now on a store to the page must be noticed.
    fn guard_code(&mut self, page: u64) {
        if !self.memory.has_code(page) {
            self.memory.set_code(page, true);
            if let Some(host) = self.memory.host_of_index(page) {
                self.tlb.flush_writes_to(host);
            }
        }
    }

    /// Translates a fetch: guest-physical address and RAM page index.
    fn fetch(&mut self, rip: u64) -> R<(u64, u64)> {
        let slot = tlb::slot(rip);
        if self.tlb.exec[usize::from(self.user)][slot] != rip & !0xfff {
            let found = self.find(rip, Access { write: false, exec: true, user: self.user })?;
            if found.index.is_none() {
                self.pending = Some(crate::cpu::Exit::Mmio { address: found.gpa, write: false, size: 1 });
                return Err(Abort::Stop);
            }
        }
        // Also when the translation was known: the jump cache may have been emptied since.
        let detail = &mut self.tlb.details[usize::from(self.user)][slot];
        self.blocks.note_run(rip, detail);
        let Some(index) = detail.index else { return Err(ud()) };
        Ok((detail.frame | (rip & 0xfff), u64::from(index)))
    }

    /// As [`Cpu::fetch`], of the second page of an instruction.
    fn fetch_checked(&mut self, rip: u64) -> R<(u64, u64)> {
        if !canonical(rip) {
            return Err(gp(0));
        }
        self.fetch(rip)
    }

    fn decode_block(&mut self, rip: u64, gpa: u64, page: u64, key: u64, alone: bool) -> R<*const Block> {
        if self.blocks.all.len() >= MAX_BLOCKS || self.code_full {
            self.drop_blocks();
        }
        let Some(host) = self.memory.page(gpa) else { return Err(ud()) };
        let offset = (gpa & 0xfff) as usize;
        let mut bytes = [0; MAX_BYTES];
        let here = (4096 - offset).min(MAX_BYTES);
        // SAFETY: `offset + here` is at most the page's size.
        unsafe { std::ptr::copy_nonoverlapping(host.host.add(offset), bytes.as_mut_ptr(), here) };
        let max = if alone { 1 } else { MAX_INSNS };
        let mut len = decode::straight(&bytes[..here], max, &mut self.blocks.scratch.0);
        let mut second_page = None;
        if self.blocks.scratch.0.is_empty() {
            // The instruction goes on in the next page.
            let (gpa2, page2) = self.fetch_checked((rip & !0xfff).wrapping_add(4096))?;
            let Some(second) = self.memory.page(gpa2) else { return Err(ud()) };
            let more = decode::LONGEST - here.min(decode::LONGEST - 1);
            // SAFETY: `more` is at most 15 bytes, at the start of a page; `here < 15`.
            unsafe { std::ptr::copy_nonoverlapping(second.host, bytes.as_mut_ptr().add(here), more) };
            len = decode::straight(&bytes[..here + more], 1, &mut self.blocks.scratch.0);
            second_page = Some((gpa2, page2));
        }
        let (insns, ops) = &mut self.blocks.scratch;
        let mut block = Box::new(Block::new(key, page, second_page, &bytes[..len], insns));
        lower::lower(&mut block, alone, ops);
        block.ops[0] = Op::word(handler::miss, &raw const *block as u64);
        if !alone && self.compile == Compile::Hot {
            block.enter = handler::warm_up;
            block.ops[1].run = handler::warm_up;
        }
        let at = self.blocks.insert(block);
        self.guard_code(page);
        if let Some((_, page2)) = second_page {
            self.guard_code(page2);
        }
        if !alone && self.compile == Compile::Always {
            self.compile_block(at.cast_mut());
        }
        Ok(at)
    }
}

/// Physical address of a key.
const fn gpa_key(key: u64) -> u64 {
    key & !(mode::USER | mode::ALONE)
}

/// Bytes of one block at most.
const MAX_BYTES: usize = MAX_INSNS * decode::LONGEST;
