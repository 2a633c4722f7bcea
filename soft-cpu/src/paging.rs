//! Page walks, permissions, accessed and dirty bits (SDM vol. 3A chapter 4).
//!
//! **No translation is ever stale.** What this CPU does is what a CPU without any TLB would do, which walks the tables for
//! every access: a change of a page-table entry acts from the next instruction on, INVLPG or not (the architecture
//! allows a translation to be forgotten at any time: SDM vol. 3A 4.10.2.3, 4.10.4.1). So it cannot be seen in what a
//! guest does when the caches of this CPU were emptied: by a stop, a restored state, a watch, or one address pushing
//! out another.
//!
//! How: a cached translation comes from entries that are present and have the accessed bit, as the walk set it. The
//! pages they are in are marked ([`crate::memory::Memory::is_table`]) and have no fast write tag; before a store
//! overwrites such an entry, what came from it is forgotten ([`Cpu::table_written`]). Memory changed from outside makes
//! [`Cpu::invalidate`] forget everything.

use crate::{
    access::canonical,
    control_registers::{CR0_PG, CR0_WP, CR4_PGE, EFER_NXE},
    cpu::{Cpu, Exit},
    fault::{self, Abort, coded},
    insn::R,
    memory::HostPage,
    tlb::{Detail, NOWHERE, Tags},
    watch::Kind,
};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
const GLOBAL: u64 = 1 << 8;
const NO_EXECUTE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Entries of the top-level table for the upper half of the address space.
const UPPER_HALF: std::ops::Range<u64> = 256..512;

/// What an access does, and on whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// Checks write permission.
    pub(crate) write: bool,
    /// An instruction fetch.
    pub(crate) exec: bool,
    /// With user privilege.
    pub(crate) user: bool,
}

/// Where a linear page is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// Host address of the byte asked for.
    pub(crate) host: *mut u8,
    /// Its guest-physical address.
    pub(crate) gpa: u64,
    /// RAM page index.
    pub(crate) index: Option<u64>,
    /// Number of the page.
    pub(crate) number: u64,
}

/// An entry a walk went through, if it came so far: its guest-physical address, and the page it is in.
type Visited = Option<(u64, HostPage)>;

/// What a walk found.
pub(crate) struct Leaf {
    pub(crate) gpa: u64,
    entry: u64,
    writable: bool,
    user: bool,
    no_execute: bool,
    size: u64,
}

impl Cpu {
    /// Walks the page tables without any effect. `Err` is the low bits of the error code (P and RSVD).
    fn walk(&self, linear: u64, path: &mut [Visited; 4]) -> Result<Leaf, u32> {
        let nxe = self.sys.efer & EFER_NXE != 0;
        let reserved = !self.physical_mask & ADDRESS | if nxe { 0 } else { NO_EXECUTE };
        let (mut writable, mut user, mut no_execute) = (true, true, false);
        let mut table = self.sys.cr3 & ADDRESS & self.physical_mask;
        for level in (0..4u32).rev() {
            let entry_at = table + (linear >> (12 + 9 * level) & 0x1ff) * 8;
            // What is not memory reads as not present.
            let Some(page) = self.memory.page(entry_at) else { return Err(0) };
            let entry = page.entry(entry_at);
            if entry & PRESENT == 0 {
                return Err(0);
            }
            let large = entry & LARGE != 0 && level > 0;
            let mut bad = reserved;
            if large {
                bad |= match level {
                    1 => 0x1f_e000,
                    2 if self.gigabyte_pages => 0x3fff_e000,
                    _ => LARGE,
                };
            }
            if entry & bad != 0 {
                return Err(9);
            }
            path[level as usize] = Some((entry_at, page));
            writable &= entry & WRITABLE != 0;
            user &= entry & USER != 0;
            no_execute |= entry & NO_EXECUTE != 0;
            if level == 0 || large {
                let size = 1u64 << (12 + 9 * level);
                let gpa = (entry & ADDRESS & !(size - 1)) | (linear & (size - 1));
                return Ok(Leaf { gpa, entry, writable, user, no_execute, size });
            }
            table = entry & ADDRESS;
        }
        Err(0)
    }

    fn page_fault(&mut self, linear: u64, access: Access, bits: u32) -> Abort {
        self.fault_address = linear;
        let fetch = access.exec && self.sys.efer & EFER_NXE != 0;
        let code = bits | u32::from(access.write) << 1 | u32::from(access.user) << 2 | u32::from(fetch) << 4;
        coded(fault::PF, code)
    }

    /// Where `linear` is, without any effect on guest or TLB: for looking from outside.
    pub fn translate(&self, linear: u64) -> Option<u64> {
        if self.sys.cr0 & CR0_PG == 0 {
            return Some(linear);
        }
        if !canonical(linear) {
            return None;
        }
        self.walk(linear, &mut [None; 4]).ok().map(|leaf| leaf.gpa)
    }

    /// Translates a canonical linear address for `access`, sets accessed and dirty bits, and fills the TLB.
    pub(crate) fn find(&mut self, linear: u64, access: Access) -> R<Found> {
        let mut path = [None; 4];
        let leaf = if self.sys.cr0 & CR0_PG == 0 {
            let entry = DIRTY | GLOBAL;
            Leaf { gpa: linear, entry, writable: true, user: true, no_execute: false, size: 4096 }
        } else {
            match self.walk(linear, &mut path) {
                Ok(leaf) => leaf,
                Err(bits) => return Err(self.page_fault(linear, access, bits)),
            }
        };
        let may_write = leaf.writable || !access.user && self.sys.cr0 & CR0_WP == 0;
        if access.user && !leaf.user || access.write && !may_write || access.exec && leaf.no_execute {
            return Err(self.page_fault(linear, access, 1));
        }
        let Some(page) = self.memory.page(leaf.gpa) else {
            self.pending = Some(Exit::Mmio { address: leaf.gpa, write: access.write, size: 1 });
            return Err(Abort::Stop);
        };
        // A fetch is made between blocks.
        if !access.exec && !self.alone && self.marks_running_code(&path, access.write) {
            return Err(Abort::Alone);
        }
        let dirty = leaf.entry & DIRTY != 0 || access.write;
        self.mark_path(&path, access.write);
        let table = self.memory.is_table(page.number);
        let mut write = may_write && dirty && self.fast_allowed(linear, leaf.gpa, Kind::Write);
        let guarded = write && table;
        if let Some(index) = page.index {
            if access.write {
                self.memory.set_dirty(index);
            }
            write &= self.memory.is_dirty(index) && !self.memory.has_code(index);
        }
        self.note_watched(linear, &leaf, access, dirty && may_write, page);
        let tags = Tags {
            read: self.fast_allowed(linear, leaf.gpa, Kind::Read),
            write: write && !table,
            exec: !leaf.no_execute && page.index.is_some(),
        };
        let at = |visited: Visited| visited.map_or(NOWHERE, |(at, _)| at);
        let detail = Detail {
            path: [at(path[0]), at(path[1]), at(path[2])],
            frame: leaf.gpa & !0xfff,
            index: page.index.map(|index| index as u32),
            number: page.number as u32,
            noted: 0,
            guarded,
            // What is global is kept when CR3 changes, if the upper half is the same: see `set_cr3`.
            global: leaf.entry & GLOBAL != 0 && self.sys.cr4 & CR4_PGE != 0 && linear >> 63 != 0,
        };
        let marks = self.memory.marks.host(page.index);
        self.tlb.fill(access.user, linear, [page.host as u64, marks], tags, detail, leaf.size);
        // SAFETY: inside the page.
        let host = unsafe { page.host.add((linear & 0xfff) as usize) };
        Ok(Found { host, gpa: leaf.gpa, index: page.index, number: page.number })
    }

    /// Would [`Cpu::mark_path`] change a page the running block was decoded from? What follows must then be decoded anew.
    fn marks_running_code(&self, path: &[Visited; 4], write: bool) -> bool {
        let last = path.iter().position(Option::is_some);
        path.iter().enumerate().any(|(level, visited)| {
            let &Some((at, page)) = visited else { return false };
            let bits = ACCESSED | if write && Some(level) == last { DIRTY } else { 0 };
            page.index.is_some_and(|index| self.memory.has_code(index) && self.running_block_is_on(index))
                && page.entry(at) & bits != bits
        })
    }

    /// Sets the accessed bits of a walk, and the dirty bit for a write, and notes the pages its entries are in.
    fn mark_path(&mut self, path: &[Visited; 4], write: bool) {
        let last = path.iter().position(Option::is_some);
        for (level, visited) in path.iter().enumerate().rev() {
            let &Some((at, page)) = visited else { continue };
            let bits = ACCESSED | if write && Some(level) == last { DIRTY } else { 0 };
            if self.memory.set_entry_bits(page, at, bits)
                && let Some(index) = page.index
            {
                self.page_written(index);
            }
            self.mark_table(page, level > 0);
        }
    }

    /// From now on a store to the page is looked at.
    fn mark_table(&mut self, page: HostPage, upper: bool) {
        if !self.memory.is_table(page.number) {
            self.tlb.flush_writes_to(page.host as u64);
        }
        self.memory.set_table(page.number, upper);
    }

    /// Bytes of a page with page tables in use are about to be overwritten: what came from the entries there is
    /// forgotten. If the code that runs may be part of that, the instruction must run alone, so that the next is fetched
    /// anew.
    pub(crate) fn table_written(&mut self, gpa: u64, len: usize) -> R {
        let Some(page) = self.memory.page(gpa) else { return Ok(()) };
        let (first, end) = (gpa & !7, gpa + len as u64);
        // No translation comes from an entry that is not present or not accessed.
        let used = |at: &u64| page.entry(*at) & (PRESENT | ACCESSED) == PRESENT | ACCESSED;
        let words = (first..end).step_by(8);
        let (mut top, mut code) = (false, [false; 2]);
        let mut any = false;
        for at in words.clone().filter(used) {
            any = true;
            top |= at & !0xfff == self.top_table();
            for (half, code) in code.iter_mut().enumerate() {
                *code |= self.blocks.may_come_from(half, at);
            }
        }
        if !self.alone && (top || code.contains(&true)) {
            return Err(Abort::Alone);
        }
        if top {
            self.flush_tlb_all();
        } else if any {
            let upper = self.memory.is_upper(page.number);
            words.filter(used).for_each(|at| self.tlb.flush_entry(at, upper));
            let [low, high] = code;
            if low || high {
                self.bump_jumps(low, high);
            }
        }
        if self.memory.count_table_store(page.number) {
            self.retire_table(gpa & !0xfff, page);
        }
        Ok(())
    }

    /// A page with many stores may have become something else: forgets what little came from it, so that stores to it
    /// are fast again. It is marked again when it is next walked through.
    fn retire_table(&mut self, gpa: u64, page: HostPage) {
        if gpa == self.top_table() || self.blocks.may_come_from_page(gpa) {
            return;
        }
        self.tlb.flush_table(gpa);
        self.memory.clear_table(page.number);
    }

    /// Guest-physical address of the top-level table.
    fn top_table(&self) -> u64 {
        self.sys.cr3 & ADDRESS & self.physical_mask
    }

    /// MOV to CR3. Global translations stay if walks through the new table find the same and change nothing.
    pub(crate) fn set_cr3(&mut self, value: u64) {
        let old = self.top_table();
        self.sys.cr3 = value;
        let new = self.top_table();
        let pages = (self.memory.page(old), self.memory.page(new));
        let (Some(old_page), Some(new_page)) = pages else { return self.flush_tlb_all() };
        let same = |n: u64| {
            let entry = old_page.entry(n * 8);
            entry & (PRESENT | ACCESSED) != PRESENT | ACCESSED || entry == new_page.entry(n * 8)
        };
        if old != new && !UPPER_HALF.clone().all(same) {
            return self.flush_tlb_all();
        }
        self.mark_table(new_page, true);
        self.flush_tlb_non_global();
    }
}
