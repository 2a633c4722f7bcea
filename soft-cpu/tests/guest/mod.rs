//! A bare 64-bit machine for tests: identity-mapped memory, a GDT, and code at 1 MiB.

#![allow(unreachable_pub, dead_code, reason = "shared by several test binaries")]

use std::ptr::NonNull;

use soft_cpu::{
    Cpu, CpuidLeaf, Region,
    state::{CpuState, DescriptorTable, Segment},
};

/// Bytes of memory.
pub const MEMORY: usize = 16 << 20;
/// Where code is loaded.
pub const CODE: u64 = 0x10_0000;
/// Page tables: PML4; the PDPT, the page directory and the page tables follow.
pub const PML4: u64 = 0x1000;
/// GDT: null, kernel code 0x08, kernel data 0x10, user data 0x1b, user code 0x23, TSS 0x28.
pub const GDT: u64 = 0x8000;
/// IDT of 256 gates.
pub const IDT: u64 = 0x9000;
/// TSS.
pub const TSS: u64 = 0xa000;
/// Top of the kernel stack.
pub const STACK: u64 = 0x20_0000;

/// CPU and memory.
pub struct Guest {
    pub cpu: Cpu,
    memory: NonNull<u8>,
}

impl Guest {
    /// With `code` at [`CODE`], kernel mode, 4 KiB pages of the first 16 MiB mapped to themselves, writable and
    /// user-accessible.
    pub fn new(code: &[u8]) -> Guest {
        let layout = std::alloc::Layout::from_size_align(MEMORY, 4096).unwrap();
        // SAFETY: the layout has a size.
        let memory = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap();
        let region = Region { gpa: 0, len: MEMORY as u64, host: memory, first_page: Some(0) };
        let leaves = [CpuidLeaf { leaf: 0x8000_0008, subleaf: None, registers: [0x302e, 0, 0, 0] }];
        // SAFETY: the memory is freed with the guest only.
        let cpu = unsafe { Cpu::new(&[region], &leaves) };
        let mut guest = Guest { cpu, memory };
        guest.put64(PML4, 0x2007);
        guest.put64(0x2000, 0x3007);
        for n in 0..8 {
            guest.put64(0x3000 + 8 * n, 0x1_0007 + 0x1000 * n);
        }
        let entries: Vec<u8> = (0..8 * 512u64).flat_map(|page| ((page << 12) + 7).to_le_bytes()).collect();
        guest.write(0x1_0000, &entries);
        for (n, d) in
            [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff]
                .into_iter()
                .enumerate()
        {
            guest.put64(GDT + 8 * n as u64, d);
        }
        guest.put64(TSS + 4, STACK - 0x1_0000);
        guest.write(CODE, code);
        guest.cpu.set_state(&state());
        guest
    }

    /// Writes guest memory from outside.
    pub fn write(&mut self, at: u64, data: &[u8]) {
        assert!(at as usize + data.len() <= MEMORY);
        // SAFETY: in range.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory.as_ptr().add(at as usize), data.len())
        };
        let first = at / 4096;
        let last = (at + data.len() as u64) / 4096;
        self.cpu.invalidate(Some(&mut (first..=last)));
    }

    /// Writes guest memory as a device does.
    pub fn write_as_device(&mut self, at: u64, data: &[u8]) {
        assert!(at as usize + data.len() <= MEMORY);
        // SAFETY: in range.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.memory.as_ptr().add(at as usize), data.len())
        };
        let last = (at + data.len() as u64 - 1) / 4096;
        self.cpu.written_from_outside(at / 4096..last + 1);
    }

    /// Writes a u64.
    pub fn put64(&mut self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }

    /// Reads a u64.
    pub fn get64(&self, at: u64) -> u64 {
        assert!(at as usize + 8 <= MEMORY);
        // SAFETY: in range.
        unsafe { self.memory.as_ptr().add(at as usize).cast::<u64>().read_unaligned() }
    }

    /// All of memory.
    pub fn memory(&self) -> &[u8] {
        // SAFETY: `MEMORY` bytes were allocated, and the CPU does not run meanwhile.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), MEMORY) }
    }

    /// Makes `vector` lead to `to` with an interrupt gate of privilege `dpl`.
    pub fn gate(&mut self, vector: u8, to: u64, dpl: u64) {
        let at = IDT + 16 * u64::from(vector);
        self.put64(at, to & 0xffff | 8 << 16 | (0x8e | dpl << 5) << 40 | (to >> 16 & 0xffff) << 48);
        self.put64(at + 8, to >> 32);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let layout = std::alloc::Layout::from_size_align(MEMORY, 4096).unwrap();
        // SAFETY: allocated in `new` with this layout.
        unsafe { std::alloc::dealloc(self.memory.as_ptr(), layout) };
    }
}

fn segment(selector: u16, attributes: u16) -> Segment {
    Segment { selector, base: 0, limit: u32::MAX, attributes, unusable: false }
}

/// 64-bit kernel mode at [`CODE`].
pub fn state() -> CpuState {
    let mut s = CpuState { rip: CODE, ..CpuState::default() };
    s.gpr[4] = STACK;
    s.cs = segment(8, 0xa9b);
    s.ss = segment(0x10, 0xc93);
    s.ds = segment(0x10, 0xc93);
    s.es = segment(0x10, 0xc93);
    s.tr = Segment { selector: 0x28, base: TSS, limit: 103, attributes: 0x8b, unusable: false };
    s.ldtr.unusable = true;
    s.gdtr = DescriptorTable { base: GDT, limit: 0x37 };
    s.idtr = DescriptorTable { base: IDT, limit: 0xfff };
    s.cr0 = 0x8005_0033;
    s.cr3 = PML4;
    s.cr4 = 0x6f0;
    s.efer = 0xd01;
    s
}

/// User mode in the same memory.
pub fn user_state() -> CpuState {
    let mut s = state();
    s.cs = segment(0x23, 0xafb);
    s.ss = segment(0x1b, 0xcf3);
    s.rflags = 0x202;
    s
}
