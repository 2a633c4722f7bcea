//! Loading an ELF `vmlinux`.

use object::{
    Endianness,
    elf::{EM_X86_64, ET_EXEC, FileHeader64, PT_LOAD},
    read::elf::{FileHeader, ProgramHeader},
};

use super::BootError;
use crate::{address::Gpa, memory::GuestMemory};

/// What was loaded.
pub(super) struct Loaded {
    /// Physical address of the 64-bit entry.
    pub(super) entry: u64,
    /// First physical address after the kernel, its zeroed data included.
    pub(super) end: u64,
}

/// A kernel is at or above 1 MiB; below are the boot structures.
const LOWEST: u64 = 0x10_0000;

pub(super) fn load(memory: &GuestMemory, file: &[u8]) -> Result<Loaded, BootError> {
    let bad = |what: &str| BootError::Kernel(format!("{what} ({} bytes)", file.len()));
    let header = FileHeader64::<Endianness>::parse(file).map_err(|e| bad(&e.to_string()))?;
    let endian = header.endian().map_err(|e| bad(&e.to_string()))?;
    if header.e_machine(endian) != EM_X86_64 || header.e_type(endian) != ET_EXEC {
        return Err(bad("it is not a statically placed x86-64 executable"));
    }
    let segments = header
        .program_headers(endian, file)
        .map_err(|_| bad("it is cut short: its program headers lie behind its end"))?;
    let entry: u64 = header.e_entry(endian);
    let (mut end, mut entered) = (0u64, false);
    for segment in segments.iter().filter(|s| s.p_type(endian) == PT_LOAD && s.p_memsz(endian) > 0) {
        let data =
            segment.data(endian, file).map_err(|()| bad("it is cut short: a segment lies behind its end"))?;
        let at = segment.p_paddr(endian);
        let size = segment.p_memsz(endian);
        let last = at
            .checked_add(size)
            .filter(|_| at >= LOWEST && size >= data.len() as u64)
            .ok_or_else(|| bad("a segment has an impossible place or size"))?;
        let low = memory.regions()[0].len;
        if last > low {
            if last > rewind_platform::layout::LOW_RAM_LIMIT {
                return Err(bad("a segment has an impossible place or size"));
            }
            return Err(BootError::TooSmall { have: memory.ram_len() >> 20, need: last.div_ceil(1 << 20) });
        }
        memory.write(Gpa(at), data)?;
        end = end.max(last);
        entered |= (at..at + data.len() as u64).contains(&entry);
    }
    if !entered {
        return Err(bad("its entry is in none of its segments"));
    }
    Ok(Loaded { entry, end })
}
