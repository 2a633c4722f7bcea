//! The zero page, memory map, command line, seed, descriptor and page tables a kernel is entered with.
//!
//! Offsets in the zero page: `Documentation/arch/x86/zero-page.rst` and the header table of `boot.rst`.

use rewind_platform::layout;

use super::{BootError, KernelFiles};
use crate::{
    address::Gpa,
    memory::{GuestMemory, PAGE},
};

/// Global descriptor table at entry.
pub(super) const GDT: u64 = 0x500;
/// Its entries: null, unused, code, data.
pub(super) const GDT_ENTRIES: usize = 4;
/// `struct boot_params`.
pub(super) const ZERO_PAGE: u64 = 0x7000;
/// Command line, NUL-terminated.
const COMMAND_LINE: u64 = 0x8000;
/// COMMAND_LINE_SIZE of x86.
const COMMAND_LINE_MAX: usize = 2047;
/// Top page table; one PDPT page and four page directories follow it.
pub(super) const PML4: u64 = 0x9000;
/// `struct setup_data` with the seed.
const SETUP_DATA: u64 = 0x1_0000;
/// Where conventional memory ends: what lies above is where a PC has its ROMs.
const LOW_END: u64 = 0x9_fc00;
/// Memory the kernel and init need beside what is loaded.
const ROOM: u64 = 24 << 20;

const E820_RAM: u32 = 1;
const E820_RESERVED: u32 = 2;
/// `SETUP_RNG_SEED`.
const SETUP_RNG_SEED: u32 = 9;

pub(super) fn write(
    memory: &GuestMemory,
    files: &KernelFiles,
    kernel_end: u64,
    seed: &[u8; 32],
) -> Result<(), BootError> {
    let low = memory.regions()[0].len;
    let initramfs = place_initramfs(memory, files.initramfs.len() as u64, low, kernel_end)?;
    memory.write(Gpa(initramfs), &files.initramfs)?;

    let line = files.command_line.as_bytes();
    if line.len() > COMMAND_LINE_MAX {
        return Err(BootError::CommandLine { len: line.len(), max: COMMAND_LINE_MAX });
    }
    memory.write(Gpa(COMMAND_LINE), line)?;
    memory.write(Gpa(COMMAND_LINE + line.len() as u64), &[0])?;

    let mut page = [0u8; PAGE as usize];
    let mut put = |offset: usize, bytes: &[u8]| page[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0x1fe, &0xaa55u16.to_le_bytes()); // boot_flag
    put(0x202, b"HdrS");
    put(0x206, &0x020fu16.to_le_bytes()); // protocol version
    put(0x210, &[0xff]); // type_of_loader: none with a number
    put(0x211, &[1]); // loadflags: LOADED_HIGH
    put(0x218, &(initramfs as u32).to_le_bytes());
    put(0x21c, &(files.initramfs.len() as u32).to_le_bytes());
    put(0x228, &(COMMAND_LINE as u32).to_le_bytes());
    put(0x22c, &0x7fff_ffffu32.to_le_bytes()); // initrd_addr_max
    put(0x230, &0x20_0000u32.to_le_bytes()); // kernel_alignment
    put(0x238, &(COMMAND_LINE_MAX as u32).to_le_bytes());
    put(0x250, &SETUP_DATA.to_le_bytes());
    let mut map = vec![
        (0, LOW_END, E820_RAM),
        (0x10_0000, low - 0x10_0000, E820_RAM),
        (layout::CONTROL_BASE, layout::CONTROL_SIZE, E820_RESERVED),
    ];
    if memory.ram_len() > low {
        map.push((layout::HIGH_RAM_BASE, memory.ram_len() - low, E820_RAM));
    }
    put(0x1e8, &[map.len() as u8]);
    for (i, (base, len, kind)) in map.iter().enumerate() {
        let at = 0x2d0 + 20 * i;
        put(at, &base.to_le_bytes());
        put(at + 8, &len.to_le_bytes());
        put(at + 16, &kind.to_le_bytes());
    }
    memory.write(Gpa(ZERO_PAGE), &page)?;

    // struct setup_data: next u64, type u32, len u32, data.
    memory.write_u64(Gpa(SETUP_DATA), 0)?;
    memory.write_u32(Gpa(SETUP_DATA + 8), SETUP_RNG_SEED)?;
    memory.write_u32(Gpa(SETUP_DATA + 12), seed.len() as u32)?;
    memory.write(Gpa(SETUP_DATA + 16), seed)?;

    // 64-bit code and flat data, as the selectors in the entry state say.
    for (i, descriptor) in [0, 0, 0x00af_9b00_0000_ffffu64, 0x00cf_9300_0000_ffff].into_iter().enumerate() {
        memory.write_u64(Gpa(GDT + 8 * i as u64), descriptor)?;
    }
    write_page_tables(memory)?;
    Ok(())
}

/// The initramfs lies at the end of low memory, page-aligned, below the protocol's limit.
fn place_initramfs(memory: &GuestMemory, len: u64, low: u64, kernel_end: u64) -> Result<u64, BootError> {
    let need = (kernel_end + len.next_multiple_of(PAGE) + ROOM).div_ceil(1 << 20);
    let top = low.min(0x8000_0000);
    match top.checked_sub(len.next_multiple_of(PAGE)) {
        Some(at) if at >= kernel_end + ROOM => Ok(at),
        _ => Err(BootError::TooSmall { have: memory.ram_len() >> 20, need }),
    }
}

/// Low 4 GiB mapped to themselves with 2 MiB pages (present, writable).
fn write_page_tables(memory: &GuestMemory) -> Result<(), BootError> {
    let directory_pointers = PML4 + PAGE;
    let directories = directory_pointers + PAGE;
    memory.write_u64(Gpa(PML4), directory_pointers | 3)?;
    for i in 0..4 {
        memory.write_u64(Gpa(directory_pointers + 8 * i), (directories + PAGE * i) | 3)?;
    }
    for i in 0..4 * 512 {
        memory.write_u64(Gpa(directories + 8 * i), (i << 21) | 0x83)?;
    }
    Ok(())
}
