//! Putting a Linux kernel into guest memory and the CPU at its 64-bit entry.
//!
//! Follows the 64-bit boot protocol (`Documentation/arch/x86/boot.rst`): identity-mapped low memory, a flat
//! GDT, RSI at the zero page, interrupts off.

mod elf;
mod params;

use std::{fmt, path::Path, sync::Arc};

use soft_cpu::state::{CpuState, DescriptorTable, Segment, gpr};

use crate::memory::{GuestMemory, MemoryError};

pub use rewind_platform::layout::COMMAND_LINE;

/// Seed of the kernel's generator at boot. A constant, so that booting is the same for every run; the run's own
/// seed is added by init with the job.
const BOOT_SEED: [u8; 32] = *b"rewind boot seed: same every run";

/// What a machine boots.
#[derive(Clone)]
pub struct KernelFiles {
    /// The kernel: an ELF `vmlinux`.
    pub vmlinux: Arc<[u8]>,
    /// The initramfs: a cpio archive, possibly compressed.
    pub initramfs: Arc<[u8]>,
    /// Kernel command line; [`COMMAND_LINE`] but in tests of the kernel itself.
    pub command_line: String,
}

impl fmt::Debug for KernelFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelFiles")
            .field("vmlinux", &self.vmlinux.len())
            .field("initramfs", &self.initramfs.len())
            .field("command_line", &self.command_line)
            .finish()
    }
}

/// Why a machine cannot be booted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootError {
    /// A file could not be read.
    #[error("cannot read {what} {path}: {source}")]
    Read {
        /// "kernel" or "initramfs".
        what: &'static str,
        /// Which file.
        path: String,
        /// The host's error.
        source: std::io::Error,
    },
    /// Not an ELF file, or cut short.
    #[error("the kernel is not a usable ELF vmlinux: {0}; rebuild it with `make build`")]
    Kernel(String),
    /// The command line is too long.
    #[error("the kernel command line has {len} bytes, {max} fit")]
    CommandLine {
        /// Its length.
        len: usize,
        /// Largest.
        max: usize,
    },
    /// The guest memory is too small for what must be in it.
    #[error(
        "{have} MiB of guest memory is too little: kernel and initramfs need {need} MiB at least; give --memory {need}M or more"
    )]
    TooSmall {
        /// MiB the machine has.
        have: u64,
        /// MiB needed.
        need: u64,
    },
    /// Guest memory refused an access.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl KernelFiles {
    /// Reads both files, with the standard command line.
    pub fn read(vmlinux: &Path, initramfs: &Path) -> Result<KernelFiles, BootError> {
        let read = |what, path: &Path| {
            std::fs::read(path).map(Arc::from).map_err(|source| BootError::Read {
                what,
                path: path.display().to_string(),
                source,
            })
        };
        Ok(KernelFiles {
            vmlinux: read("kernel", vmlinux)?,
            initramfs: read("initramfs", initramfs)?,
            command_line: COMMAND_LINE.to_owned(),
        })
    }
}

/// Loads everything and answers the CPU state at the kernel's entry.
pub fn load(memory: &GuestMemory, files: &KernelFiles) -> Result<CpuState, BootError> {
    let kernel = elf::load(memory, &files.vmlinux)?;
    params::write(memory, files, kernel.end, &BOOT_SEED)?;
    Ok(entry_state(kernel.entry))
}

/// 64-bit mode at `entry`: flat segments, low 4 GiB mapped to themselves, interrupts off.
fn entry_state(entry: u64) -> CpuState {
    // Present, S, accessed, granular: 64-bit code execute/read; data read/write. Selectors as the protocol says.
    let code = Segment { selector: 0x10, base: 0, limit: u32::MAX, attributes: 0xa9b, unusable: false };
    let data = Segment { selector: 0x18, attributes: 0xc93, ..code };
    let mut state = CpuState {
        rip: entry,
        cs: code,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ss: data,
        // A TSS must be loaded for the state to be a valid 64-bit one; nothing uses it before the kernel's own.
        tr: Segment { selector: 0, base: 0, limit: 0xffff, attributes: 0x8b, unusable: false },
        ldtr: Segment { unusable: true, ..Segment::default() },
        gdtr: DescriptorTable { base: params::GDT, limit: params::GDT_ENTRIES as u16 * 8 - 1 },
        idtr: DescriptorTable { base: 0, limit: 0 },
        // PG, ET, PE; then PAE; then LMA, LME.
        cr0: 0x8000_0011,
        cr3: params::PML4,
        cr4: 0x20,
        efer: 0x500,
        ..CpuState::default()
    };
    state.gpr[gpr::RSI] = params::ZERO_PAGE;
    state
}
