//! Guest memory behind one type of our own.
//!
//! RAM is private anonymous memory (or a keyframe's raw file mapped private over it); the control slot is a
//! separate mapping. Other threads may read while the guest runs, so all access is by volatile copies.

use std::{
    ops::Range,
    ptr::NonNull,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use rewind_platform::layout;

use crate::address::Gpa;

/// Bytes of a guest page.
pub const PAGE: u64 = 4096;

/// Why a guest memory operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The range is not all RAM (or all control slot).
    #[error("guest-physical {address}+{len:#x} is not memory")]
    OutOfRange {
        /// First byte asked for.
        address: Gpa,
        /// Bytes asked for.
        len: u64,
    },
    /// The machine cannot be that small or large.
    #[error("{bytes} bytes of guest memory: must be a multiple of 1 MiB, from 64 MiB to 64 GiB")]
    Size {
        /// Asked for.
        bytes: u64,
    },
    /// The host refused.
    #[error(
        "cannot map {bytes} bytes of guest memory: {source} (--memory makes the machine smaller; `ulimit -v` limits this \
         program)"
    )]
    Map {
        /// Asked for.
        bytes: u64,
        /// The host's error.
        source: std::io::Error,
    },
}

/// A set of RAM pages, by page index in RAM order (not by guest-physical number: the hole is skipped).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSet {
    words: Vec<u64>,
}

impl PageSet {
    /// An empty set for `pages` pages.
    pub fn new(pages: u64) -> Self {
        PageSet { words: vec![0; pages.div_ceil(64) as usize] }
    }
    /// Adds a page; panics if out of range (an engine bug).
    pub fn insert(&mut self, page: u64) {
        self.words[(page / 64) as usize] |= 1 << (page % 64);
    }
    /// Adds the 64 pages from `word * 64` whose bits are set.
    pub fn insert_word(&mut self, word: usize, bits: u64) {
        self.words[word] |= bits;
    }
    /// Is it in?
    pub fn contains(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] & (1 << (page % 64)) != 0
    }
    /// Adds all of `other`.
    pub fn union(&mut self, other: &PageSet) {
        for (a, b) in self.words.iter_mut().zip(&other.words) {
            *a |= b;
        }
    }
    /// Empties it.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }
    /// How many.
    pub fn len(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }
    /// None at all?
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }
    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &w)| {
            let mut bits = w;
            std::iter::from_fn(move || {
                if bits == 0 {
                    return None;
                }
                let bit = bits.trailing_zeros() as u64;
                bits &= bits - 1;
                Some(i as u64 * 64 + bit)
            })
        })
    }
}

/// What was written of a RAM page.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Written {
    /// Its index in RAM order.
    pub page: u64,
    /// Offsets of the bytes, ascending.
    pub ranges: Vec<Range<u16>>,
}

impl Written {
    /// Leaves at most `most` ranges, which cover as little more as can be.
    pub fn simplify(&mut self, most: usize) {
        let Some(excess) = self.ranges.len().checked_sub(most.max(1)).filter(|excess| *excess > 0) else {
            return;
        };
        let mut gaps: Vec<(u16, usize)> =
            self.ranges.windows(2).enumerate().map(|(n, two)| (two[1].start - two[0].end, n + 1)).collect();
        gaps.sort_unstable();
        let closed: std::collections::BTreeSet<usize> = gaps[..excess].iter().map(|gap| gap.1).collect();
        let mut ranges: Vec<Range<u16>> = Vec::new();
        for (number, range) in self.ranges.drain(..).enumerate() {
            match ranges.last_mut() {
                Some(last) if closed.contains(&number) => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        self.ranges = ranges;
    }
}

/// Some bytes of one RAM page.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageBytes {
    /// The page's index in RAM order.
    pub page: u64,
    /// Offset of the first.
    pub first: u16,
    /// Offset behind the last, at most 4096.
    pub end: u16,
}

impl PageBytes {
    /// The bytes from `address` on, `len` of them or as many as are in its page, in a machine with `ram_len` bytes of RAM;
    /// `None` outside RAM.
    pub fn at(ram_len: u64, address: Gpa, len: u64) -> Option<PageBytes> {
        let first = address.0 % PAGE;
        let end = first + len.min(PAGE - first);
        Some(PageBytes { page: page_index(ram_len, address)?, first: first as u16, end: end as u16 })
    }

    /// Is any of them among `written`, which is of the same page?
    pub fn meet(&self, written: &Written) -> bool {
        let behind = written.ranges.partition_point(|range| range.end <= self.first);
        written.ranges.get(behind).is_some_and(|range| range.start < self.end)
    }
}

/// One contiguous piece of guest-physical memory and where the host has it.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First guest-physical address.
    pub base: Gpa,
    /// Bytes.
    pub len: u64,
    /// Host address of its first byte; valid as long as the [`GuestMemory`].
    pub host: NonNull<u8>,
    /// Index in RAM order of its first page; `None` for the control slot.
    pub first_page: Option<u64>,
}

/// All memory of one machine: RAM and the control slot.
#[derive(Debug)]
pub struct GuestMemory {
    ram: NonNull<u8>,
    ram_len: u64,
    control: NonNull<u8>,
    /// Pages the monitor wrote since last taken, one bit each, in RAM order.
    own_dirty: Vec<AtomicU64>,
    /// Pages the monitor wrote that the engine was not told of yet, in RAM order.
    untold: Mutex<Vec<Range<u64>>>,
}

// SAFETY: the mappings live as long as the value, and every access goes through volatile copies or atomics,
// so sharing between threads is no more than sharing bytes that may change at any time.
unsafe impl Send for GuestMemory {}
// SAFETY: as above.
unsafe impl Sync for GuestMemory {}

/// Index in RAM order of the page that holds `address` in a machine with `ram_len` bytes of RAM; `None` outside.
pub fn page_index(ram_len: u64, address: Gpa) -> Option<u64> {
    let low = ram_len.min(layout::LOW_RAM_LIMIT);
    if address.0 < low {
        Some(address.0 / PAGE)
    } else if address.0 >= layout::HIGH_RAM_BASE && address.0 - layout::HIGH_RAM_BASE < ram_len - low {
        Some((address.0 - layout::HIGH_RAM_BASE + low) / PAGE)
    } else {
        None
    }
}

impl GuestMemory {
    /// `bytes` of zeroed RAM and a zeroed control slot. Host memory is only used for pages touched.
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        check_size(bytes)?;
        GuestMemory::with_ram(map_anonymous(bytes)?, bytes)
    }

    /// `bytes` of RAM that begin as the content of `file` (a keyframe's raw copy), mapped private: the file is
    /// never written, and its pages are shared with every other machine over it until the guest writes them.
    pub fn over_file(file: &std::fs::File, bytes: u64) -> Result<Self, MemoryError> {
        check_size(bytes)?;
        let map = |source: std::io::Error| MemoryError::Map { bytes, source };
        if file.metadata().map_err(map)?.len() != bytes {
            // A shorter file would be a SIGBUS at the first touch behind its end.
            return Err(map(std::io::Error::other("the keyframe's raw copy has another size")));
        }
        GuestMemory::with_ram(map_private(file, bytes)?, bytes)
    }

    fn with_ram(ram: NonNull<u8>, bytes: u64) -> Result<Self, MemoryError> {
        let control = match map_anonymous(layout::CONTROL_SIZE) {
            Ok(control) => control,
            Err(error) => {
                unmap(ram, bytes);
                return Err(error);
            }
        };
        let own_dirty = (0..(bytes / PAGE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(GuestMemory { ram, ram_len: bytes, control, own_dirty, untold: Mutex::default() })
    }

    /// Bytes of RAM.
    pub fn ram_len(&self) -> u64 {
        self.ram_len
    }

    /// Pages of RAM.
    pub fn pages(&self) -> u64 {
        self.ram_len / PAGE
    }

    /// RAM below the hole, RAM above 4 GiB (if any), the control slot.
    pub fn regions(&self) -> Vec<Region> {
        let low = self.ram_len.min(layout::LOW_RAM_LIMIT);
        let mut regions =
            vec![Region { base: Gpa(layout::RAM_BASE), len: low, host: self.ram, first_page: Some(0) }];
        if self.ram_len > low {
            regions.push(Region {
                base: Gpa(layout::HIGH_RAM_BASE),
                len: self.ram_len - low,
                // SAFETY: `low` is inside the mapping of `ram_len` bytes.
                host: unsafe { self.ram.add(low as usize) },
                first_page: Some(low / PAGE),
            });
        }
        regions.push(Region {
            base: Gpa(layout::CONTROL_BASE),
            len: layout::CONTROL_SIZE,
            host: self.control,
            first_page: None,
        });
        regions
    }

    /// Index in RAM order of the page that holds `address`; `None` outside RAM.
    pub fn page_of(&self, address: Gpa) -> Option<u64> {
        page_index(self.ram_len, address)
    }

    /// Guest-physical address of a page by its index in RAM order.
    pub fn address_of(&self, page: u64) -> Gpa {
        let offset = page * PAGE;
        let low = self.ram_len.min(layout::LOW_RAM_LIMIT);
        Gpa(if offset < low { offset } else { offset - low + layout::HIGH_RAM_BASE })
    }

    fn locate(&self, address: Gpa, len: u64) -> Result<(NonNull<u8>, Option<u64>), MemoryError> {
        let end = address.0.checked_add(len);
        for region in self.regions() {
            if address.0 >= region.base.0 && end.is_some_and(|end| end <= region.base.0 + region.len) {
                let offset = address.0 - region.base.0;
                // SAFETY: `offset + len` is inside the region's mapping.
                let host = unsafe { region.host.add(offset as usize) };
                return Ok((host, region.first_page.map(|first| first + offset / PAGE)));
            }
        }
        Err(MemoryError::OutOfRange { address, len })
    }

    /// Copies out of guest memory.
    pub fn read(&self, address: Gpa, out: &mut [u8]) -> Result<(), MemoryError> {
        let (host, _) = self.locate(address, out.len() as u64)?;
        // SAFETY: `locate` checked the range. The guest may write at the same time; bytes are then old or new.
        unsafe { std::ptr::copy_nonoverlapping(host.as_ptr(), out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies into guest memory and marks the pages as written by the monitor.
    pub fn write(&self, address: Gpa, data: &[u8]) -> Result<(), MemoryError> {
        if data.is_empty() {
            return Ok(());
        }
        let (host, page) = self.locate(address, data.len() as u64)?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), host.as_ptr(), data.len()) };
        if let Some(first) = page {
            let last = first + (address.0 % PAGE + data.len() as u64 - 1) / PAGE;
            for page in first..=last {
                self.own_dirty[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Relaxed);
            }
            let mut untold = self.untold.lock().unwrap_or_else(PoisonError::into_inner);
            if untold.last() != Some(&(first..last + 1)) {
                untold.push(first..last + 1);
            }
        }
        Ok(())
    }

    /// The RAM pages the monitor wrote since last asked, in the order of the writes: what an engine must be told before it
    /// runs on.
    pub(crate) fn take_untold(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.untold.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads a little-endian u32.
    pub fn read_u32(&self, address: Gpa) -> Result<u32, MemoryError> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads a little-endian u64.
    pub fn read_u64(&self, address: Gpa) -> Result<u64, MemoryError> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes a little-endian u32.
    pub fn write_u32(&self, address: Gpa, value: u32) -> Result<(), MemoryError> {
        self.write(address, &value.to_le_bytes())
    }

    /// Writes a little-endian u64.
    pub fn write_u64(&self, address: Gpa, value: u64) -> Result<(), MemoryError> {
        self.write(address, &value.to_le_bytes())
    }

    /// A control-slot u64 shared with the running guest, as an atomic. `offset` must be 8-aligned.
    pub fn control_u64(&self, offset: u64) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= layout::CONTROL_SIZE);
        // SAFETY: in range, aligned, and the mapping outlives `self`.
        unsafe { AtomicU64::from_ptr(self.control.add(offset as usize).cast().as_ptr()) }
    }

    /// A control-slot u32 shared with the running guest, as an atomic. `offset` must be 4-aligned.
    pub fn control_u32(&self, offset: u64) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= layout::CONTROL_SIZE);
        // SAFETY: in range, aligned, and the mapping outlives `self`.
        unsafe { AtomicU32::from_ptr(self.control.add(offset as usize).cast().as_ptr()) }
    }

    /// Adds the pages the monitor wrote since last asked to `pages`, and forgets them.
    pub fn take_own_dirty(&self, pages: &mut PageSet) {
        for (i, word) in self.own_dirty.iter().enumerate() {
            let bits = word.swap(0, Ordering::Relaxed);
            if bits != 0 {
                pages.insert_word(i, bits);
            }
        }
    }
}

impl Drop for GuestMemory {
    fn drop(&mut self) {
        unmap(self.ram, self.ram_len);
        unmap(self.control, layout::CONTROL_SIZE);
    }
}

fn check_size(bytes: u64) -> Result<(), MemoryError> {
    if bytes.is_multiple_of(1 << 20) && (64 << 20..=64 << 30).contains(&bytes) {
        Ok(())
    } else {
        Err(MemoryError::Size { bytes })
    }
}

fn map_private(file: &std::fs::File, bytes: u64) -> Result<NonNull<u8>, MemoryError> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    // SAFETY: a new private mapping at an address the host chooses disturbs nothing.
    let mapped = unsafe {
        mmap(
            std::ptr::null_mut(),
            bytes as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
            file,
            0,
        )
    };
    mapped_at(mapped, bytes)
}

fn mapped_at(
    mapped: Result<*mut std::ffi::c_void, rustix::io::Errno>,
    bytes: u64,
) -> Result<NonNull<u8>, MemoryError> {
    let mapped = mapped.map_err(|source| MemoryError::Map { bytes, source: source.into() })?;
    NonNull::new(mapped.cast())
        .ok_or_else(|| MemoryError::Map { bytes, source: std::io::Error::other("mapped at address 0") })
}

fn map_anonymous(bytes: u64) -> Result<NonNull<u8>, MemoryError> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a new mapping at an address the host chooses disturbs nothing.
    let mapped = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes as usize,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    mapped_at(mapped, bytes)
}

fn unmap(at: NonNull<u8>, bytes: u64) {
    // SAFETY: only called once, on a mapping of exactly this size made by `map_anonymous`, when nothing refers
    // to it any more.
    let _ = unsafe { rustix::mm::munmap(at.as_ptr().cast(), bytes as usize) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_over_a_file_starts_as_the_file_and_never_writes_it() {
        let path = std::env::temp_dir().join(format!("rewind-memory-{}", std::process::id()));
        let mut bytes = vec![0; 64 << 20];
        bytes[4096] = 7;
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let memory = GuestMemory::over_file(&file, 64 << 20).unwrap();
        assert_eq!(memory.read_u32(Gpa(4096)).unwrap(), 7);
        memory.write_u32(Gpa(4096), 9).unwrap();
        assert_eq!(memory.read_u32(Gpa(4096)).unwrap(), 9);
        assert!(std::fs::read(&path).unwrap() == bytes);
        assert!(matches!(GuestMemory::over_file(&file, 128 << 20), Err(MemoryError::Map { .. })));
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn written_ranges_are_joined_where_least_is_added_and_met_at_their_edges() {
        let mut written = Written { page: 3, ranges: vec![0..8, 10..12, 100..101, 102..110, 4000..4096] };
        let bytes = |first, end| PageBytes { page: 3, first, end };
        assert!(
            bytes(7, 8).meet(&written) && bytes(4095, 4096).meet(&written) && bytes(0, 4096).meet(&written)
        );
        assert!(
            !bytes(8, 10).meet(&written)
                && !bytes(101, 102).meet(&written)
                && !bytes(110, 4000).meet(&written)
        );
        written.simplify(3);
        assert_eq!(written.ranges, [0..12, 100..110, 4000..4096]);
        written.simplify(3);
        assert_eq!(written.ranges.len(), 3);
        assert_eq!(
            PageBytes::at(1 << 30, Gpa(0x5ffc), 8),
            Some(PageBytes { page: 5, first: 0xffc, end: 0x1000 })
        );
        assert_eq!(PageBytes::at(1 << 30, Gpa(1 << 31), 8), None);
    }

    #[test]
    fn own_writes_are_dirty_and_control_is_not_ram() {
        let memory = GuestMemory::new(64 << 20).unwrap();
        memory.write(Gpa(0x1ff8), &[1; 16]).unwrap();
        memory.write(Gpa(layout::CONTROL_BASE), &[1; 16]).unwrap();
        let mut pages = PageSet::new(memory.pages());
        memory.take_own_dirty(&mut pages);
        assert_eq!(pages.iter().collect::<Vec<_>>(), [1, 2]);
        assert!(memory.write(Gpa((64 << 20) - 4), &[0; 8]).is_err());
        assert!(memory.read(Gpa(u64::MAX), &mut [0; 8]).is_err());
    }
}
