//! Reading the guest kernel's memory from outside, by the facts it publishes in the state page.

use rewind_platform::state::{Fact, ST_FACTS, ST_FACTS_MAX};
use vmm::{
    address::{Gpa, Gva},
    memory::GuestMemory,
};

/// `__START_KERNEL_map` (arch/x86/include/asm/page_64_types.h): the kernel image's mapping.
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// Why something could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Nothing is mapped there.
    #[error("{0} is not mapped")]
    Unmapped(Gva),
    /// The kernel does not publish this (another platform version, or too early in boot).
    #[error("the guest kernel does not publish {0:?}")]
    NoFact(Fact),
    /// A structure that cannot be what it should.
    #[error("{what} at {at} makes no sense (kernel memory overwritten?)")]
    Damaged {
        /// What was read.
        what: &'static str,
        /// Where.
        at: Gva,
    },
}

/// Result of reading the guest.
pub type Read<T> = Result<T, ReadError>;

/// A stopped guest's kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel<'a> {
    memory: &'a GuestMemory,
    state: Gpa,
}

impl<'a> Kernel<'a> {
    /// `state` is the address of the state page.
    pub fn new(memory: &'a GuestMemory, state: Gpa) -> Self {
        Kernel { memory, state }
    }

    /// Guest memory.
    pub fn memory(&self) -> &'a GuestMemory {
        self.memory
    }

    /// A published fact.
    pub fn fact(&self, fact: Fact) -> Read<u64> {
        let index = fact as u64;
        debug_assert!(index < ST_FACTS_MAX);
        match self.memory.read_u64(Gpa(self.state.0 + ST_FACTS + index * 8)) {
            Ok(u64::MAX) | Err(_) => Err(ReadError::NoFact(fact)),
            Ok(value) => Ok(value),
        }
    }

    /// Page-table root of the kernel's own mappings.
    pub fn root(&self) -> Read<Gpa> {
        Ok(Gpa(self
            .fact(Fact::SwapperPgDir)?
            .wrapping_sub(KERNEL_MAP)
            .wrapping_add(self.fact(Fact::PhysBase)?)))
    }

    /// Reads kernel memory.
    pub fn read(&self, at: Gva, out: &mut [u8]) -> Read<()> {
        read_virtual(self.memory, self.root()?, at, out)
    }

    /// Reads a u64 of kernel memory.
    pub fn u64(&self, at: Gva) -> Read<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads a u32 of kernel memory.
    pub fn u32(&self, at: Gva) -> Read<u32> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Reads the u64 field `fact` of the structure at `base`.
    pub fn field(&self, base: Gva, fact: Fact) -> Read<u64> {
        self.u64(Gva(base.0.wrapping_add(self.fact(fact)?)))
    }

    /// Reads the u32 field `fact` of the structure at `base`.
    pub fn field32(&self, base: Gva, fact: Fact) -> Read<u32> {
        self.u32(Gva(base.0.wrapping_add(self.fact(fact)?)))
    }

    /// Address of a field.
    pub fn address_of(&self, base: Gva, fact: Fact) -> Read<Gva> {
        Ok(Gva(base.0.wrapping_add(self.fact(fact)?)))
    }

    /// A string of at most `most` bytes, up to its NUL.
    pub fn string(&self, at: Gva, most: usize) -> Read<Vec<u8>> {
        let mut out = Vec::new();
        while out.len() < most {
            let here = Gva(at.0.wrapping_add(out.len() as u64));
            let piece = (4096 - here.0 % 4096).min((most - out.len()) as u64) as usize;
            let start = out.len();
            out.resize(start + piece, 0);
            self.read(here, &mut out[start..])?;
            if let Some(end) = out[start..].iter().position(|byte| *byte == 0) {
                out.truncate(start + end);
                return Ok(out);
            }
        }
        Ok(out)
    }

    /// Guest-physical address of a page frame by its `struct page`.
    pub fn page_frame(&self, page: Gva) -> Read<Gpa> {
        let (start, size) = (self.fact(Fact::Vmemmap)?, self.fact(Fact::PageSize)?);
        let damaged = ReadError::Damaged { what: "struct page", at: page };
        if page.0 < start {
            return self.sparse_page_frame(page, size);
        }
        let offset = page.0 - start;
        if size == 0 || !offset.is_multiple_of(size) {
            return Err(damaged);
        }
        (offset / size).checked_mul(4096).map(Gpa).ok_or(damaged)
    }

    /// As above, for a kernel with SPARSEMEM and no virtual memory map: the flags name the section of 128 MiB (the
    /// highest bits, include/linux/page-flags-layout.h), and each section's array of `struct page` begins at a
    /// multiple of its own size (mm/sparse.c, sparse_buffer_alloc).
    fn sparse_page_frame(&self, page: Gva, size: u64) -> Read<Gpa> {
        /// SECTION_SIZE_BITS and MAX_PHYSMEM_BITS (arch/x86/include/asm/sparsemem.h).
        const SECTION_BITS: u32 = 27;
        const PHYSICAL_BITS: u32 = 46;
        let pages = 1 << (SECTION_BITS - 12);
        let damaged = ReadError::Damaged { what: "struct page", at: page };
        if !size.is_power_of_two() || size > 4096 || !page.0.is_multiple_of(size) {
            return Err(damaged);
        }
        let section = self.u64(page)? >> (64 - (PHYSICAL_BITS - SECTION_BITS));
        let index = page.0 % (size * pages) / size;
        Ok(Gpa((section << SECTION_BITS) | (index << 12)))
    }
}

/// Translates by 4-level page tables at `root` (Intel SDM vol. 3A, 4.5); 2 MiB and 1 GiB pages included.
pub fn translate(memory: &GuestMemory, root: Gpa, at: Gva) -> Option<Gpa> {
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    let sign = at.0 >> 47;
    if sign != 0 && sign != 0x1_ffff {
        return None;
    }
    let mut table = root.0 & ADDRESS;
    for level in (0..4).rev() {
        let shift = 12 + 9 * level;
        let entry = memory.read_u64(Gpa(table + ((at.0 >> shift) & 0x1ff) * 8)).ok()?;
        if entry & 1 == 0 {
            return None;
        }
        if level == 0 || (entry & 0x80 != 0 && level < 3) {
            let mask = (1 << shift) - 1;
            return Some(Gpa((entry & ADDRESS & !mask) | (at.0 & mask)));
        }
        table = entry & ADDRESS;
    }
    None
}

/// The way from `root` to the `len` bytes at `at`, as far as they are in one page of 4 KiB: page-table entries, and the
/// bytes at the end if something is mapped there; each with its length. While none of them is written, neither the
/// mapping nor what it shows changes.
pub fn way_to(memory: &GuestMemory, root: Gpa, at: Gva, len: u64) -> Vec<(Gpa, u64)> {
    const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
    let mut table = root.0 & ADDRESS;
    let mut way = Vec::new();
    for level in (0..4).rev() {
        let entry_at = Gpa(table + ((at.0 >> (12 + 9 * level)) & 0x1ff) * 8);
        way.push((entry_at, 8));
        match memory.read_u64(entry_at) {
            Ok(entry) if entry & 1 != 0 && entry & 0x80 == 0 => table = entry & ADDRESS,
            _ => break,
        }
    }
    way.extend(translate(memory, root, at).map(|address| (address, len.min(4096 - at.0 % 4096))));
    way
}

/// Reads virtual memory by the page tables at `root`, whole or not at all.
pub fn read_virtual(memory: &GuestMemory, root: Gpa, at: Gva, out: &mut [u8]) -> Read<()> {
    let mut done = 0;
    while done < out.len() {
        let here = Gva(at.0.wrapping_add(done as u64));
        let piece = ((4096 - here.0 % 4096) as usize).min(out.len() - done);
        let physical = translate(memory, root, here).ok_or(ReadError::Unmapped(here))?;
        memory.read(physical, &mut out[done..done + piece]).map_err(|_| ReadError::Unmapped(here))?;
        done += piece;
    }
    Ok(())
}
