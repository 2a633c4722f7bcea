//! Guest-physical memory: the host mappings, the dirty bitmap and the bits that say where code was decoded and which
//! pages hold page tables in use.

use std::ptr::NonNull;

use crate::marks::Marks;

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
    /// Number of the first page of each region: RAM pages have their index, the others follow.
    numbers: Vec<u64>,
    /// One bit for each RAM page written since last taken.
    pub(crate) dirty: Vec<u64>,
    /// One bit for each RAM page that live blocks were decoded from.
    pub(crate) code: Vec<u64>,
    /// One bit for each page number: a cached translation may come from entries in it.
    tables: Vec<u64>,
    /// Of these, those that translations of large pages or upper levels may come from.
    upper: Vec<u64>,
    /// Stores to each such page since it became one, wrapping.
    table_stores: Vec<u8>,
    /// Bytes written of the pages followed.
    pub(crate) marks: Marks,
}

/// A guest-physical page found in host memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostPage {
    /// Host address of its first byte.
    pub(crate) host: *mut u8,
    /// Index among RAM pages.
    pub(crate) index: Option<u64>,
    /// Number among all pages.
    pub(crate) number: u64,
}

impl HostPage {
    /// Host address of the aligned page-table entry at guest-physical `gpa`, which is in this page.
    fn entry_at(&self, gpa: u64) -> *mut u64 {
        // SAFETY: 8-aligned, so inside the page.
        unsafe { self.host.add((gpa & 0xff8) as usize).cast::<u64>() }
    }

    /// The aligned page-table entry at guest-physical `gpa`, which is in this page.
    #[inline]
    pub(crate) fn entry(&self, gpa: u64) -> u64 {
        // SAFETY: inside the page; guest memory may be read by others, so volatile.
        unsafe { self.entry_at(gpa).read_volatile() }
    }
}

impl Memory {
    pub(crate) fn new(regions: &[Region]) -> Self {
        let pages =
            regions.iter().filter_map(|r| r.first_page.map(|first| first + r.len / 4096)).max().unwrap_or(0);
        let words = pages.div_ceil(64) as usize;
        let mut next = words as u64 * 64;
        let mut numbers = Vec::new();
        for r in regions {
            numbers.push(r.first_page.unwrap_or(next));
            next += if r.first_page.is_some() { 0 } else { r.len / 4096 };
        }
        let all = next.div_ceil(64) as usize;
        Memory {
            regions: regions.to_vec(),
            numbers,
            dirty: vec![0; words],
            code: vec![0; words],
            tables: vec![0; all],
            upper: vec![0; all],
            table_stores: vec![0; all * 64],
            marks: Marks::new(),
        }
    }

    /// RAM pages.
    pub(crate) fn pages(&self) -> usize {
        self.dirty.len() * 64
    }

    /// The page that holds guest-physical `gpa`.
    #[inline]
    pub(crate) fn page(&self, gpa: u64) -> Option<HostPage> {
        for (r, first) in self.regions.iter().zip(&self.numbers) {
            let offset = gpa.wrapping_sub(r.gpa) & !0xfff;
            if offset < r.len {
                // SAFETY: `offset` is inside the region, which the creator promised stays mapped.
                let host = unsafe { r.host.as_ptr().add(offset as usize) };
                let index = r.first_page.map(|first| first + offset / 4096);
                return Some(HostPage { host, index, number: first + offset / 4096 });
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

    /// Sets bits in the aligned page-table entry at `gpa` in `page`; says if that was a change.
    pub(crate) fn set_entry_bits(&mut self, page: HostPage, gpa: u64, bits: u64) -> bool {
        let old = page.entry(gpa);
        if old & bits == bits {
            return false;
        }
        // SAFETY: inside the page; guest memory may be read by others, so volatile.
        unsafe { page.entry_at(gpa).write_volatile(old | bits) };
        if let Some(index) = page.index {
            self.set_dirty(index);
            self.marks.mark(page.index, gpa & !7, 8);
        }
        true
    }

    /// May a cached translation come from entries in this page?
    #[inline]
    pub(crate) fn is_table(&self, number: u64) -> bool {
        self.tables[(number / 64) as usize] & (1 << (number % 64)) != 0
    }

    /// May a cached translation come from an entry in this page that maps more than 4 KiB?
    pub(crate) fn is_upper(&self, number: u64) -> bool {
        self.upper[(number / 64) as usize] & (1 << (number % 64)) != 0
    }

    /// Notes that a translation comes from an entry in this page.
    pub(crate) fn set_table(&mut self, number: u64, upper: bool) {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        self.tables[word] |= bit;
        if upper {
            self.upper[word] |= bit;
        }
    }

    /// No cached translation comes from this page any more.
    pub(crate) fn clear_table(&mut self, number: u64) {
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        self.tables[word] &= !bit;
        self.upper[word] &= !bit;
    }

    /// Counts a store to a page with tables; true every 256 times.
    pub(crate) fn count_table_store(&mut self, number: u64) -> bool {
        let count = &mut self.table_stores[number as usize];
        *count = count.wrapping_add(1);
        *count == 0
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
