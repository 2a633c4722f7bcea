//! The software TLB: what page walks found, in the form the fast path can use.
//!
//! Two tables, supervisor and user. An entry has one tag per kind of access; a tag is the page's linear address
//! where that access may go straight to host memory, and something no address of this slot equals otherwise.
//! A write tag is only there when the page is dirty in the page tables and in the dirty bitmap, holds no
//! decoded code and no page table in use and is not watched, so that the fast path owes nothing to anybody.
//!
//! A store through a write tag is also noted at the page's marks (`marks.rs`): the entry says where they are.
//!
//! No entry is ever stale: see `paging.rs`.

/// Entries of one table (a power of two).
pub(crate) const SIZE: usize = 1024;
/// Non-global fills remembered before a flush clears everything instead.
const LOG: usize = SIZE;

/// One page.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Entry {
    /// Read tag.
    pub(crate) read: u64,
    /// Write tag.
    pub(crate) write: u64,
    /// Host address minus linear address.
    pub(crate) addend: u64,
    /// Host address of the page's marks minus linear address, while there is a write tag.
    pub(crate) marks: u64,
}

/// What the slow paths need to know of an entry. Means nothing while the entry has no tag.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Detail {
    /// Guest-physical addresses of the page-table entries it came from, lowest level first, but for the top level's;
    /// [`NOWHERE`] where there is none.
    pub(crate) path: [u64; 3],
    /// Guest-physical address of the 4 KiB piece.
    pub(crate) frame: u64,
    /// RAM page index (below 2^24); `None`: not RAM.
    pub(crate) index: Option<u32>,
    /// Number of the page: there are few that are not RAM.
    pub(crate) number: u32,
    /// The epoch of the half in which `Blocks` was told that code runs from it.
    pub(crate) noted: u64,
    /// Writes would be fast but for the page tables in the page.
    pub(crate) guarded: bool,
    pub(crate) global: bool,
}

/// Not an address of a page-table entry.
pub(crate) const NOWHERE: u64 = u64::MAX;

const NO_DETAIL: Detail =
    Detail { path: [NOWHERE; 3], frame: 0, index: None, number: 0, noted: 0, guarded: false, global: false };

/// A tag that matches no address which maps to `slot`.
const fn never(slot: usize) -> u64 {
    ((slot ^ 1) << 12) as u64
}

/// Slot of a linear address.
#[inline(always)]
pub(crate) const fn slot(linear: u64) -> usize {
    (linear >> 12) as usize & (SIZE - 1)
}

/// Both tables.
#[derive(Debug)]
pub(crate) struct Tlb {
    /// Supervisor, user.
    pub(crate) tables: [Box<[Entry; SIZE]>; 2],
    /// Execute tag of each entry; apart, since compiled code does not look at it.
    pub(crate) exec: [Box<[u64; SIZE]>; 2],
    /// The rest about each entry.
    pub(crate) details: [Box<[Detail; SIZE]>; 2],
    /// Slots filled from non-global pages since the last flush: table in bit 15.
    log: Vec<u16>,
    log_full: bool,
    /// Large pages filled since the last full flush, hashed by size and number.
    large: Box<[u64; LARGE_BITS / 64]>,
    /// Pages that have no tag only because something on them is watched: reads, writes. Any flush forgets them.
    watched: [[Watched; WATCHED]; 2],
    /// Next of each to be replaced.
    next_watched: [u8; 2],
}

/// Watched pages remembered for each kind of access.
const WATCHED: usize = 4;

/// A page whose accesses must be compared with the watches, and nothing else.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// Linear address of the page, with bit 0 for user; `u64::MAX`: none.
    key: u64,
    host: u64,
    gpa: u64,
}

const UNWATCHED: [[Watched; WATCHED]; 2] = [[Watched { key: u64::MAX, host: 0, gpa: 0 }; WATCHED]; 2];

/// Bits of the filter of large pages (a power of two).
const LARGE_BITS: usize = 4096;

/// Bit of the large page of `1 << size` bytes around a linear address in the filter of large pages.
const fn large_bit(linear: u64, size: u32) -> usize {
    (linear >> size).rotate_left(size).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_shr(52) as usize
}

impl Tlb {
    pub(crate) fn new() -> Self {
        let table = || Box::new([Entry { read: 0, write: 0, addend: 0, marks: 0 }; SIZE]);
        let mut tlb = Tlb {
            tables: [table(), table()],
            exec: [Box::new([0; SIZE]), Box::new([0; SIZE])],
            details: [Box::new([NO_DETAIL; SIZE]), Box::new([NO_DETAIL; SIZE])],
            log: Vec::with_capacity(LOG),
            log_full: false,
            large: Box::new([0; LARGE_BITS / 64]),
            watched: UNWATCHED,
            next_watched: [0; 2],
        };
        tlb.flush_all();
        tlb
    }

    /// Forgets an entry.
    fn reset(&mut self, half: usize, slot: usize) {
        let never = never(slot);
        self.tables[half][slot] = Entry { read: never, write: never, addend: 0, marks: 0 };
        self.exec[half][slot] = never;
    }

    /// Remembers a watched page that an access of this kind may touch.
    pub(crate) fn remember_watched(&mut self, write: bool, user: bool, linear: u64, host: u64, gpa: u64) {
        let kind = usize::from(write);
        let key = linear & !0xfff | u64::from(user);
        let entry = Watched { key, host, gpa: gpa & !0xfff };
        let entries = &mut self.watched[kind];
        if let Some(known) = entries.iter_mut().find(|known| known.key == key) {
            *known = entry;
            return;
        }
        let next = usize::from(self.next_watched[kind]);
        entries[next] = entry;
        self.next_watched[kind] = ((next + 1) % WATCHED) as u8;
    }

    /// Host and guest-physical address of a byte of a watched page remembered for this kind of access.
    pub(crate) fn watched(&self, write: bool, user: bool, linear: u64) -> Option<(u64, u64)> {
        let key = linear & !0xfff | u64::from(user);
        let entry = self.watched[usize::from(write)].iter().find(|entry| entry.key == key)?;
        let offset = linear & 0xfff;
        Some((entry.host + offset, entry.gpa + offset))
    }

    /// Forgets everything.
    pub(crate) fn flush_all(&mut self) {
        self.watched = UNWATCHED;
        for half in 0..2 {
            for slot in 0..SIZE {
                self.reset(half, slot);
            }
        }
        self.log.clear();
        self.log_full = false;
        self.large.fill(0);
    }

    /// Forgets what is not global.
    pub(crate) fn flush_non_global(&mut self) {
        self.watched = UNWATCHED;
        if self.log_full {
            return self.flush_all();
        }
        let mut log = std::mem::take(&mut self.log);
        for at in log.drain(..) {
            self.reset(usize::from(at >> 15), usize::from(at & 0x7fff));
        }
        self.log = log;
    }

    /// Forgets one page; everything, if it may be a large one, which it then answers.
    pub(crate) fn flush_page(&mut self, linear: u64) -> bool {
        self.watched = UNWATCHED;
        for size in [21, 30] {
            let bit = large_bit(linear, size);
            if self.large[bit / 64] & 1 << (bit % 64) != 0 {
                self.flush_all();
                return true;
            }
        }
        let slot = slot(linear);
        for half in 0..2 {
            if self.has(half, slot, linear & !0xfff) {
                self.reset(half, slot);
            }
        }
        false
    }

    /// Forgets what came from the page-table entry at guest-physical `at`. `upper`: it may map more than 4 KiB.
    pub(crate) fn flush_entry(&mut self, at: u64, upper: bool) {
        self.watched = UNWATCHED;
        // The lowest level's index is part of the slot.
        let low = (at >> 3) as usize & 0x1ff;
        for half in 0..2 {
            for slot in (low..SIZE).step_by(512) {
                if self.details[half][slot].path[0] == at {
                    self.reset(half, slot);
                }
            }
            if upper {
                for slot in 0..SIZE {
                    let path = &self.details[half][slot].path;
                    if path[1] == at || path[2] == at {
                        self.reset(half, slot);
                    }
                }
            }
        }
    }

    /// Forgets what came from any entry in the guest-physical page `page`.
    pub(crate) fn flush_table(&mut self, page: u64) {
        self.watched = UNWATCHED;
        for half in 0..2 {
            for slot in 0..SIZE {
                if self.details[half][slot].path.iter().any(|at| at & !0xfff == page) {
                    self.reset(half, slot);
                }
            }
        }
    }

    /// Forgets every write tag: the next write to each page goes through the walk again.
    pub(crate) fn flush_writes(&mut self) {
        self.watched = UNWATCHED;
        for table in &mut self.tables {
            for (slot, e) in table.iter_mut().enumerate() {
                e.write = never(slot);
            }
        }
    }

    /// Forgets the write tags that lead to the page at `host`.
    pub(crate) fn flush_writes_to(&mut self, host: u64) {
        self.watched = UNWATCHED;
        for table in &mut self.tables {
            for (slot, e) in table.iter_mut().enumerate() {
                if e.write != never(slot) && e.write.wrapping_add(e.addend) == host {
                    e.write = never(slot);
                }
            }
        }
    }

    /// Has an entry a tag of this page?
    fn has(&self, half: usize, slot: usize, page: u64) -> bool {
        let e = &self.tables[half][slot];
        e.read == page || e.write == page || self.exec[half][slot] == page
    }

    /// Enters a page: each tag that is `true` becomes usable, others stay if they are of the same page. `host` and
    /// `marks`: where the page and its marks are.
    pub(crate) fn fill(
        &mut self,
        user: bool,
        linear: u64,
        [host, marks]: [u64; 2],
        tags: Tags,
        detail: Detail,
        size: u64,
    ) {
        let (slot, linear, half) = (slot(linear), linear & !0xfff, usize::from(user));
        let addend = host.wrapping_sub(linear);
        let same = self.has(half, slot, linear) && self.tables[half][slot].addend == addend;
        if !same {
            self.reset(half, slot);
        }
        let e = &mut self.tables[half][slot];
        e.addend = addend;
        e.marks = marks.wrapping_sub(linear);
        if tags.read {
            e.read = linear;
        }
        e.write = if tags.write { linear } else { never(slot) };
        if tags.exec {
            self.exec[half][slot] = linear;
        }
        self.details[half][slot] = detail;
        if !detail.global {
            if self.log.len() < LOG {
                self.log.push(slot as u16 | u16::from(user) << 15);
            } else {
                self.log_full = true;
            }
        }
        if size > 4096 {
            let bit = large_bit(linear, size.trailing_zeros());
            self.large[bit / 64] |= 1 << (bit % 64);
        }
    }
}

/// Which accesses may use the fast path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tags {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) exec: bool,
}
