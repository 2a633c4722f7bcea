//! Micro-guests: a few instructions in a minimal 64-bit environment, to test what an engine does. Used by the
//! self-test of the `kvm` engine and by the tests of both engines.
//!
//! The first 2 MiB are mapped to themselves with 4 KiB pages, user-accessible and writable; the rest of the low
//! 4 GiB with 2 MiB pages for the kernel only. Every exception vector has a stub that writes the port of its own
//! number and returns: the host sees the frame on the stack and may change it. SYSCALL's target does the same
//! with [`SYSCALL_PORT`].

#[macro_use]
mod code;

use std::sync::Arc;

pub use code::GuestCode;
use soft_cpu::state::{CpuState, DescriptorTable, Segment, gpr};

use crate::{
    address::Gpa,
    cpu_model::CpuModel,
    engine::{self, Budget, Engine, EngineError, EngineKind, Exit},
    memory::{GuestMemory, MemoryError, PAGE},
};

/// Where kernel-mode code is put.
pub const KERNEL_CODE: u64 = 0x1_0000;
/// Top of the kernel stack.
pub const KERNEL_STACK: u64 = 0x1_f000;
/// Where user-mode code is put.
pub const USER_CODE: u64 = 0x2_0000;
/// Top of the user stack.
pub const USER_STACK: u64 = 0x2_f000;
/// Data pages for the guest's use, up to 2 MiB.
pub const DATA: u64 = 0x3_0000;
/// Port written by the stub SYSCALL enters.
pub const SYSCALL_PORT: u16 = 0xf0;

const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const TSS: u64 = 0x3000;
const STUBS: u64 = 0x4000;
const STUB: u64 = 16;
const SYSCALL_STUB: u64 = STUBS + 256 * STUB;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
const PD: u64 = 0xb000;
/// Page table of the first 2 MiB: its entry for `address` is at `PT + (address >> 12) * 8`.
pub const PT: u64 = 0xf000;
/// RAM of a micro-guest: the least a machine can have.
pub const MEMORY: u64 = 64 << 20;

/// Kernel code selector.
pub const KERNEL_CS: u16 = 0x10;
/// Kernel data selector.
pub const KERNEL_SS: u16 = 0x18;
/// User data selector.
pub const USER_SS: u16 = 0x2b;
/// User code selector.
pub const USER_CS: u16 = 0x33;
const TSS_SELECTOR: u16 = 0x38;

/// Vectors whose exceptions push an error code (Intel SDM vol. 3A, table 6-1).
const WITH_ERROR_CODE: [u64; 8] = [8, 10, 11, 12, 13, 14, 17, 21];

/// An engine over a micro-guest's memory.
pub struct Micro {
    /// The memory.
    pub memory: Arc<GuestMemory>,
    /// The engine.
    pub engine: Box<dyn Engine>,
}

/// Why a micro-guest could not be made or run.
#[derive(Debug, thiserror::Error)]
pub enum MicroError {
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The memory failed.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl Micro {
    /// The environment, with no code in it.
    pub fn new(kind: EngineKind, model: &'static CpuModel) -> Result<Micro, MicroError> {
        let memory = Arc::new(GuestMemory::new(MEMORY)?);
        environment(&memory)?;
        let engine = engine::create(kind, &memory, model)?;
        Ok(Micro { memory, engine })
    }

    /// Puts `code` at [`USER_CODE`] and the CPU there at CPL 3.
    pub fn user(&mut self, code: &[u8]) -> Result<(), MicroError> {
        self.memory.write(Gpa(USER_CODE), code)?;
        self.engine.memory_changed(None);
        Ok(self.engine.set_cpu(&user_state())?)
    }

    /// Puts `code` at [`KERNEL_CODE`] and the CPU there at CPL 0.
    pub fn kernel(&mut self, code: &[u8]) -> Result<(), MicroError> {
        self.memory.write(Gpa(KERNEL_CODE), code)?;
        self.engine.memory_changed(None);
        Ok(self.engine.set_cpu(&kernel_state())?)
    }

    /// Runs without a budget.
    pub fn run(&mut self) -> Result<Exit, MicroError> {
        Ok(self.engine.run(&Budget::default())?)
    }

    /// Changes the page-table entry of a page below 2 MiB; the CPU's translations are dropped.
    pub fn set_page_flags(&mut self, address: u64, flags: u64) -> Result<(), MicroError> {
        self.map(address, address, flags)
    }

    /// Maps a page below 2 MiB to a physical one, with these page-table flags.
    pub fn map(&mut self, address: u64, physical: u64, flags: u64) -> Result<(), MicroError> {
        self.memory.write_u64(Gpa(PT + (address >> 12) * 8), (physical & !(PAGE - 1)) | flags)?;
        let state = self.engine.cpu()?;
        self.engine.memory_changed(None);
        Ok(self.engine.set_cpu(&state)?)
    }
}

/// CPU state at [`KERNEL_CODE`].
pub fn kernel_state() -> CpuState {
    let code = Segment { selector: KERNEL_CS, base: 0, limit: u32::MAX, attributes: 0xa9b, unusable: false };
    let data = Segment { selector: KERNEL_SS, attributes: 0xc93, ..code };
    let mut state = CpuState {
        rip: KERNEL_CODE,
        cs: code,
        ss: data,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        tr: Segment { selector: TSS_SELECTOR, base: TSS, limit: 0x67, attributes: 0x8b, unusable: false },
        ldtr: Segment { unusable: true, ..Segment::default() },
        gdtr: DescriptorTable { base: GDT, limit: 0x4f },
        idtr: DescriptorTable { base: IDT, limit: 0xfff },
        // PG, WP, NE, ET, MP, PE.
        cr0: 0x8001_0033,
        cr3: PML4,
        // PGE, PAE, TSD, OSFXSR, OSXMMEXCPT, FSGSBASE: as the guest kernel has it.
        cr4: 0x1_06a4,
        // LMA, LME, SCE, NXE.
        efer: 0xd01,
        // SYSCALL loads CS 0x10, SS 0x18; SYSRET CS 0x33, SS 0x2b.
        star: 0x23 << 48 | 0x10 << 32,
        lstar: SYSCALL_STUB,
        // TF, IF, DF, NT, AC and the rest the kernel masks.
        sfmask: 0x25_7fd5,
        ..CpuState::default()
    };
    state.gpr[gpr::RSP] = KERNEL_STACK;
    state
}

/// CPU state at [`USER_CODE`], interrupts on.
pub fn user_state() -> CpuState {
    let kernel = kernel_state();
    let code = Segment { selector: USER_CS, attributes: 0xafb, ..kernel.cs };
    let data = Segment { selector: USER_SS, attributes: 0xcf3, ..kernel.ss };
    let mut state = CpuState {
        rip: USER_CODE,
        rflags: 0x202,
        cs: code,
        ss: data,
        ds: data,
        es: data,
        fs: data,
        gs: data,
        ..kernel
    };
    state.gpr[gpr::RSP] = USER_STACK;
    state
}

/// Writes the tables and stubs of the environment.
pub fn environment(memory: &GuestMemory) -> Result<(), MemoryError> {
    // Page tables.
    memory.write_u64(Gpa(PML4), PDPT | 7)?;
    for i in 0..4 {
        memory.write_u64(Gpa(PDPT + 8 * i), (PD + PAGE * i) | 7)?;
    }
    memory.write_u64(Gpa(PD), PT | 7)?;
    for i in 1..4 * 512 {
        memory.write_u64(Gpa(PD + 8 * i), (i << 21) | 0x83)?;
    }
    for i in 0..512 {
        memory.write_u64(Gpa(PT + 8 * i), (i << 12) | 7)?;
    }
    // Null, unused, kernel code and data, 32-bit user code (only a base for SYSRET), user data and code, TSS.
    let descriptors: [u64; 9] = [
        0,
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00af_fb00_0000_ffff,
        0x0000_8b00_0000_0067 | (TSS & 0xff_ffff) << 16,
        0,
    ];
    for (i, descriptor) in descriptors.into_iter().enumerate() {
        memory.write_u64(Gpa(GDT + 8 * i as u64), descriptor)?;
    }
    // TSS: RSP0; no I/O bitmap.
    memory.write_u64(Gpa(TSS + 4), KERNEL_STACK)?;
    memory.write(Gpa(TSS + 0x66), &0x68u16.to_le_bytes())?;
    for vector in 0..256u64 {
        let stub = STUBS + vector * STUB;
        // out vector, al; [add rsp, 8;] iretq
        let mut code = vec![0xe6, vector as u8];
        if WITH_ERROR_CODE.contains(&vector) {
            code.extend([0x48, 0x83, 0xc4, 0x08]);
        }
        code.extend([0x48, 0xcf]);
        memory.write(Gpa(stub), &code)?;
        // Interrupt gate; DPL 3 for the two that user mode may raise by instruction.
        let dpl: u64 = if vector == 3 || vector == 4 { 3 } else { 0 };
        let low = stub & 0xffff
            | u64::from(KERNEL_CS) << 16
            | (0x8e | dpl << 5) << 40
            | (stub >> 16 & 0xffff) << 48;
        memory.write_u64(Gpa(IDT + vector * 16), low)?;
        memory.write_u64(Gpa(IDT + vector * 16 + 8), 0)?;
    }
    // out SYSCALL_PORT, al; sysretq
    memory.write(Gpa(SYSCALL_STUB), &[0xe6, SYSCALL_PORT as u8, 0x48, 0x0f, 0x07])
}
