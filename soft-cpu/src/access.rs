//! Linear memory accesses: the slow path of every load and store.

use crate::{
    cpu::Cpu,
    fault::{self, coded, gp},
    flags,
    insn::R,
    memory::HostPage,
    paging::{Access, Leaf},
    tlb,
    watch::Kind,
};

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

/// Notes `len` bytes (1 to 512) at `at` in a page of marks as written.
///
/// # Safety
/// They are all in one page of marks.
#[inline(always)]
pub(crate) unsafe fn mark(at: u64, len: usize) {
    let at = at as *mut u8;
    // SAFETY: the caller's word.
    unsafe {
        match len {
            1 => at.write(0xff),
            2 => at.cast::<u16>().write_unaligned(!0),
            4 => at.cast::<u32>().write_unaligned(!0),
            8 => at.cast::<u64>().write_unaligned(!0),
            _ => at.write_bytes(0xff, len),
        }
    }
}

/// Is the address canonical for 48-bit linear addresses?
#[inline(always)]
pub(crate) fn canonical(linear: u64) -> bool {
    (linear as i64) << 16 >> 16 == linear as i64
}

impl Cpu {
    /// Remembers a page that the fast path may not touch for its watches alone.
    pub(crate) fn note_watched(
        &mut self,
        linear: u64,
        leaf: &Leaf,
        access: Access,
        writable: bool,
        page: HostPage,
    ) {
        let write = access.write;
        let clean = !self.memory.is_table(page.number)
            && page.index.is_none_or(|index| self.memory.is_dirty(index) && !self.memory.has_code(index));
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
            (if write { e.write } else { e.read }, e.addend, e.marks)
        };
        if (linear ^ tag.0) <= 4096 - len as u64 {
            let first = linear.wrapping_add(tag.1) as *mut u8;
            if write {
                // SAFETY: the tag is of a page with marks, as the entry says, and the bytes are all in it.
                unsafe { mark(linear.wrapping_add(tag.2), len) };
            }
            return Ok(Span { first, first_len: len, second: first, len });
        }
        if let Some((span, gpa)) = self.watched_span(linear, len, write, user) {
            if write {
                let index = self.memory.page(gpa).and_then(|page| page.index);
                self.memory.marks.mark(index, gpa, len);
            }
            return Ok(span);
        }
        if write && let Some(span) = self.guarded_span(linear, len, user)? {
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
            if self.memory.is_table(found.number) {
                self.table_written(found.gpa, first_len)?;
            }
            if let Some(second) = second.filter(|s| self.memory.is_table(s.number)) {
                self.table_written(second.gpa, len - first_len)?;
            }
            self.memory.marks.mark(found.index, linear, first_len);
            if let Some(second) = second {
                self.memory.marks.mark(second.index, 0, len - first_len);
            }
        }
        let second = second.map_or(found.host, |s| s.host);
        let span = Span { first: found.host, first_len, second, len };
        if self.hooks.any_data() {
            self.hook_value(&span);
        }
        Ok(span)
    }

    /// A store that would be fast but for the page tables in its page.
    fn guarded_span(&mut self, linear: u64, len: usize, user: bool) -> R<Option<Span>> {
        let (table, slot) = (usize::from(user), tlb::slot(linear));
        let (e, detail) = (&self.tlb.tables[table][slot], &self.tlb.details[table][slot]);
        if !detail.guarded || linear ^ e.read > 4096 - len as u64 {
            return Ok(None);
        }
        let first = linear.wrapping_add(e.addend) as *mut u8;
        let (gpa, index) = (detail.frame | linear & 0xfff, detail.index.map(u64::from));
        if index.is_some_and(|index| !self.memory.is_dirty(index) || self.memory.has_code(index)) {
            return Ok(None);
        }
        self.table_written(gpa, len)?;
        self.memory.marks.mark(index, gpa, len);
        Ok(Some(Span { first, first_len: len, second: first, len }))
    }

    /// An access to a remembered watched page that touches no watch, and its guest-physical address.
    fn watched_span(&self, linear: u64, len: usize, write: bool, user: bool) -> Option<(Span, u64)> {
        if self.alignment_checked || !self.hooks.only_watches() || (linear & 0xfff) + len as u64 > 4096 {
            return None;
        }
        let (host, gpa) = self.tlb.watched(write, user, linear)?;
        let kind = if write { Kind::Write } else { Kind::Read };
        if self.hooks.watched(linear, gpa, len as u64, kind) {
            return None;
        }
        let first = host as *mut u8;
        Some((Span { first, first_len: len, second: first, len }, gpa))
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
