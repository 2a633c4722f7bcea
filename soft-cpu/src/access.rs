//! Linear memory accesses: page walks, permissions, accessed and dirty bits, and the slow path of every load
//! and store (SDM vol. 3A chapter 4).

use crate::{
    cpu::{Cpu, Exit},
    fault::{self, Abort, coded, gp},
    flags,
    insn::R,
    tlb::{self, PageKind, Tags},
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

const CR0_PG: u64 = 1 << 31;
const CR0_WP: u64 = 1 << 16;
const CR4_PGE: u64 = 1 << 7;
const EFER_NXE: u64 = 1 << 11;

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
}

/// A checked access of some bytes: one piece of host memory, or two where it crosses a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    first: *mut u8,
    first_len: usize,
    second: *mut u8,
    len: usize,
}

impl Span {
    /// Both are in one page each and share no byte of `bytes`.
    pub(crate) fn apart(&self, other: &Span, bytes: usize) -> bool {
        self.first.addr().abs_diff(other.first.addr()) >= bytes
    }

    /// Reads all bytes (at most 8) as a little-endian number.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        let mut bytes = [0; 8];
        self.read_bytes(&mut bytes[..self.len]);
        u64::from_le_bytes(bytes)
    }

    /// Writes the low bytes of `value`.
    #[inline]
    pub(crate) fn write(&self, value: u64) {
        if self.first_len == self.len {
            // SAFETY: the span was checked for `len` bytes in one page; a store of the operand's own size keeps
            // what others see whole.
            unsafe {
                match self.len {
                    1 => return self.first.write_volatile(value as u8),
                    2 => return self.first.cast::<u16>().write_unaligned(value as u16),
                    4 => return self.first.cast::<u32>().write_unaligned(value as u32),
                    8 => return self.first.cast::<u64>().write_unaligned(value),
                    _ => {}
                }
            }
        }
        self.write_bytes(&value.to_le_bytes()[..self.len]);
    }

    /// Reads `out.len()` bytes, which must be the span's length.
    pub(crate) fn read_bytes(&self, out: &mut [u8]) {
        debug_assert_eq!(out.len(), self.len);
        let (a, b) = out.split_at_mut(self.first_len);
        // SAFETY: the span was checked for exactly these two pieces of guest memory; `out` is the monitor's.
        unsafe {
            std::ptr::copy_nonoverlapping(self.first, a.as_mut_ptr(), a.len());
            std::ptr::copy_nonoverlapping(self.second, b.as_mut_ptr(), b.len());
        }
    }

    /// Writes `data.len()` bytes, which must be the span's length.
    pub(crate) fn write_bytes(&self, data: &[u8]) {
        debug_assert_eq!(data.len(), self.len);
        let (a, b) = data.split_at(self.first_len);
        // SAFETY: as in `read_bytes`.
        unsafe {
            std::ptr::copy_nonoverlapping(a.as_ptr(), self.first, a.len());
            std::ptr::copy_nonoverlapping(b.as_ptr(), self.second, b.len());
        }
    }
}

/// Is the address canonical for 48-bit linear addresses?
#[inline(always)]
pub(crate) fn canonical(linear: u64) -> bool {
    (linear as i64) << 16 >> 16 == linear as i64
}

struct Leaf {
    gpa: u64,
    entry: u64,
    entry_at: u64,
    writable: bool,
    user: bool,
    no_execute: bool,
    size: u64,
}

impl Cpu {
    /// Walks the page tables without any effect. `Err` is the low bits of the error code (P and RSVD).
    fn walk(&self, linear: u64, path: &mut [u64; 4]) -> Result<Leaf, u32> {
        let nxe = self.sys.efer & EFER_NXE != 0;
        let reserved = !self.physical_mask & ADDRESS | if nxe { 0 } else { NO_EXECUTE };
        let (mut writable, mut user, mut no_execute) = (true, true, false);
        let mut table = self.sys.cr3 & ADDRESS & self.physical_mask;
        for level in (0..4u32).rev() {
            let entry_at = table + (linear >> (12 + 9 * level) & 0x1ff) * 8;
            let entry = self.memory.entry(entry_at);
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
            path[level as usize] = entry_at;
            writable &= entry & WRITABLE != 0;
            user &= entry & USER != 0;
            no_execute |= entry & NO_EXECUTE != 0;
            if level == 0 || large {
                let size = 1u64 << (12 + 9 * level);
                let gpa = (entry & ADDRESS & !(size - 1)) | (linear & (size - 1));
                return Ok(Leaf { gpa, entry, entry_at, writable, user, no_execute, size });
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
        self.walk(linear, &mut [0; 4]).ok().map(|leaf| leaf.gpa)
    }

    /// Translates a canonical linear address for `access`, sets accessed and dirty bits, and fills the TLB.
    pub(crate) fn find(&mut self, linear: u64, access: Access) -> R<Found> {
        let mut path = [0; 4];
        let leaf = if self.sys.cr0 & CR0_PG == 0 {
            let entry = DIRTY | GLOBAL;
            Leaf {
                gpa: linear,
                entry,
                entry_at: 0,
                writable: true,
                user: true,
                no_execute: false,
                size: 4096,
            }
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
        let mut dirty = leaf.entry & DIRTY != 0;
        if path[3] != 0 {
            for at in path.into_iter().rev().filter(|&at| at != 0) {
                let last = at == leaf.entry_at;
                let bits = ACCESSED | if last && access.write { DIRTY } else { 0 };
                if let Some(index) = self.memory.set_entry_bits(at, bits) {
                    self.page_written(index);
                }
            }
            dirty |= access.write;
        }
        let mut write = may_write && dirty && self.fast_allowed(linear, leaf.gpa, Kind::Write);
        if let Some(index) = page.index {
            if access.write {
                self.memory.set_dirty(index);
            }
            write &= self.memory.is_dirty(index) && !self.memory.has_code(index);
        }
        self.note_watched(linear, &leaf, access, dirty && may_write, page);
        let tags = Tags {
            read: self.fast_allowed(linear, leaf.gpa, Kind::Read),
            write,
            exec: !leaf.no_execute && page.index.is_some(),
        };
        let global = leaf.entry & GLOBAL != 0 && self.sys.cr4 & CR4_PGE != 0;
        let frame = (leaf.gpa & !0xfff | if global { 0 } else { tlb::LOCAL_FRAME }, page.index.unwrap_or(0));
        let kind = PageKind { global, frame, size: leaf.size };
        self.tlb.fill(access.user, linear, page.host as u64, tags, kind);
        // SAFETY: inside the page.
        let host = unsafe { page.host.add((linear & 0xfff) as usize) };
        Ok(Found { host, gpa: leaf.gpa, index: page.index })
    }

    /// Remembers a page that the fast path may not touch for its watches alone.
    fn note_watched(
        &mut self,
        linear: u64,
        leaf: &Leaf,
        access: Access,
        writable: bool,
        page: crate::memory::HostPage,
    ) {
        let write = access.write;
        let clean =
            page.index.is_none_or(|index| self.memory.is_dirty(index) && !self.memory.has_code(index));
        if access.exec || !self.hooks.only_watches() || write && !(writable && clean) {
            return;
        }
        let kind = if write { Kind::Write } else { Kind::Read };
        if !self.fast_allowed(linear, leaf.gpa, kind) {
            self.tlb.remember_watched(write, access.user, linear, page.host as u64, leaf.gpa);
        }
    }

    /// Checks a data access of `len` bytes (1 to 512) and returns where it is. Every page is checked before
    /// anything is written, the first first. A read-modify-write asks for `write` alone, as hardware does: one #PF
    /// with W = 1.
    pub(crate) fn span(&mut self, linear: u64, len: usize, write: bool, user: bool, stack: bool) -> R<Span> {
        let last = linear.wrapping_add(len as u64 - 1);
        let tag = {
            let e = &self.tlb.tables[usize::from(user)][tlb::slot(linear)];
            (if write { e.write } else { e.read }, e.addend)
        };
        if (linear ^ tag.0) <= 4096 - len as u64 {
            let first = linear.wrapping_add(tag.1) as *mut u8;
            return Ok(Span { first, first_len: len, second: first, len });
        }
        if let Some(span) = self.watched_span(linear, len, write, user) {
            return Ok(span);
        }
        if !canonical(linear) || !canonical(last) {
            return Err(if stack { coded(fault::SS, 0) } else { gp(0) });
        }
        if self.alignment_checked
            && user
            && (len == 10 || len <= 16 && len.is_power_of_two())
            // Ten bytes are checked as eight (SDM vol. 3A, #AC).
            && linear & (if len == 10 { 7 } else { len as u64 - 1 }) != 0
        {
            return Err(coded(fault::AC, 0));
        }
        let access = Access { write, exec: false, user };
        let found = self.find(linear, access)?;
        let first_len = len.min(4096 - (linear & 0xfff) as usize);
        let second = if first_len < len { Some(self.find(last & !0xfff, access)?) } else { None };
        if self.hooks.any_data() {
            let gpas = (found.gpa, second.map(|s| s.gpa));
            self.hook_access(linear, len, first_len, gpas, write, user)?;
        }
        if write {
            if let Some(index) = found.index.filter(|&i| self.memory.has_code(i)) {
                self.code_written(index)?;
            }
            if let Some(index) = second.and_then(|s| s.index).filter(|&i| self.memory.has_code(i)) {
                self.code_written(index)?;
            }
        }
        let second = second.map_or(found.host, |s| s.host);
        let span = Span { first: found.host, first_len, second, len };
        if self.hooks.any_data() {
            self.hook_value(&span);
        }
        Ok(span)
    }

    /// An access to a remembered watched page that touches no watch.
    fn watched_span(&self, linear: u64, len: usize, write: bool, user: bool) -> Option<Span> {
        if self.alignment_checked || !self.hooks.only_watches() || (linear & 0xfff) + len as u64 > 4096 {
            return None;
        }
        let (host, gpa) = self.tlb.watched(write, user, linear)?;
        let kind = if write { Kind::Write } else { Kind::Read };
        if self.hooks.watched(linear, gpa, len as u64, kind) {
            return None;
        }
        let first = host as *mut u8;
        Some(Span { first, first_len: len, second: first, len })
    }

    /// Loads 1 to 8 bytes with the current privilege.
    #[inline]
    pub(crate) fn load(&mut self, linear: u64, size: u8, stack: bool) -> R<u64> {
        Ok(self.span(linear, usize::from(size), false, self.user, stack)?.read())
    }

    /// Stores 1 to 8 bytes with the current privilege.
    #[inline]
    pub(crate) fn store(&mut self, linear: u64, size: u8, value: u64, stack: bool) -> R {
        self.span(linear, usize::from(size), true, self.user, stack)?.write(value);
        Ok(())
    }

    /// Loads with supervisor privilege: descriptor tables, TSS.
    pub(crate) fn load_system(&mut self, linear: u64, size: u8) -> R<u64> {
        Ok(self.span(linear, usize::from(size), false, false, false)?.read())
    }

    /// Recomputes whether alignment is checked (CR0.AM, RFLAGS.AC, CPL 3); fast tags go while it is.
    pub(crate) fn update_alignment(&mut self) {
        let checked = self.user && self.sys.cr0 & (1 << 18) != 0 && self.rflags & flags::AC != 0;
        if checked != self.alignment_checked {
            self.alignment_checked = checked;
            self.flush_tlb_all();
        }
    }
}
