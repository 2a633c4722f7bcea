//! Guest-physical memory: the host mappings, the dirty bitmap and the bits that say where code was decoded.

use std::ptr::NonNull;

/// One contiguous piece of guest-physical memory and where the host has it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First guest-physical address; a multiple of 4096.
    pub gpa: u64,
    /// Bytes; a multiple of 4096.
    pub len: u64,
    /// Host address of its first byte.
    pub host: NonNull<u8>,
    /// Index in the dirty bitmap of its first page; `None`: not RAM (never dirty, never executed).
    pub first_page: Option<u64>,
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Memory {
    regions: Vec<Region>,
    /// One bit for each RAM page written since last taken.
    pub(crate) dirty: Vec<u64>,
    /// One bit for each RAM page that live blocks were decoded from.
    pub(crate) code: Vec<u64>,
}

/// A guest-physical page found in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPage {
    /// Host address of its first byte.
    pub(crate) host: *mut u8,
    /// Index among RAM pages.
    pub(crate) index: Option<u64>,
}

impl Memory {
    pub(crate) fn new(regions: &[Region]) -> Self {
        let pages =
            regions.iter().filter_map(|r| r.first_page.map(|first| first + r.len / 4096)).max().unwrap_or(0);
        let words = pages.div_ceil(64) as usize;
        Memory { regions: regions.to_vec(), dirty: vec![0; words], code: vec![0; words] }
    }

    /// RAM pages.
    pub(crate) fn pages(&self) -> usize {
        self.dirty.len() * 64
    }

    /// The page that holds guest-physical `gpa`.
    #[inline]
    pub(crate) fn page(&self, gpa: u64) -> Option<HostPage> {
        for r in &self.regions {
            let offset = gpa.wrapping_sub(r.gpa) & !0xfff;
            if offset < r.len {
                // SAFETY: `offset` is inside the region, which the creator promised stays mapped.
                let host = unsafe { r.host.as_ptr().add(offset as usize) };
                return Some(HostPage { host, index: r.first_page.map(|first| first + offset / 4096) });
            }
        }
        None
    }

    /// Host address of a RAM page.
    pub(crate) fn host_of_index(&self, index: u64) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = index.checked_sub(r.first_page?)?.checked_mul(4096)?;
            (offset < r.len).then(|| r.host.as_ptr() as u64 + offset)
        })
    }

    /// Reads an aligned page-table entry; what is not memory reads as zero (not present).
    #[inline]
    pub(crate) fn entry(&self, gpa: u64) -> u64 {
        match self.page(gpa) {
            // SAFETY: 8-aligned, so inside the page.
            Some(p) => unsafe { p.host.add((gpa & 0xff8) as usize).cast::<u64>().read_volatile() },
            None => 0,
        }
    }

    /// Sets bits in an aligned page-table entry and returns the RAM page written, if it was a change.
    pub(crate) fn set_entry_bits(&mut self, gpa: u64, bits: u64) -> Option<u64> {
        let page = self.page(gpa)?;
        // SAFETY: 8-aligned, so inside the page.
        let at = unsafe { page.host.add((gpa & 0xff8) as usize).cast::<u64>() };
        // SAFETY: as above; guest memory may be read by others, so volatile.
        let old = unsafe { at.read_volatile() };
        if old & bits == bits {
            return None;
        }
        // SAFETY: as above.
        unsafe { at.write_volatile(old | bits) };
        if let Some(index) = page.index {
            self.set_dirty(index);
        }
        page.index
    }

    pub(crate) fn set_dirty(&mut self, index: u64) {
        self.dirty[(index / 64) as usize] |= 1 << (index % 64);
    }

    pub(crate) fn is_dirty(&self, index: u64) -> bool {
        self.dirty[(index / 64) as usize] & (1 << (index % 64)) != 0
    }

    pub(crate) fn has_code(&self, index: u64) -> bool {
        self.code[(index / 64) as usize] & (1 << (index % 64)) != 0
    }

    pub(crate) fn set_code(&mut self, index: u64, code: bool) {
        let word = &mut self.code[(index / 64) as usize];
        let bit = 1 << (index % 64);
        *word = if code { *word | bit } else { *word & !bit };
    }
}
