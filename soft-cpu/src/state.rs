//! The complete architectural state of one CPU, as plain data. The engines capture to it and restore from it.

use serde::{Deserialize, Serialize};

/// Index of a general register in [`CpuState::gpr`], in encoding order (RAX, RCX, RDX, RBX, RSP, RBP, RSI,
/// RDI, R8..R15).
pub mod gpr {
    #![allow(missing_docs, reason = "register names")]
    pub const RAX: usize = 0;
    pub const RCX: usize = 1;
    pub const RDX: usize = 2;
    pub const RBX: usize = 3;
    pub const RSP: usize = 4;
    pub const RBP: usize = 5;
    pub const RSI: usize = 6;
    pub const RDI: usize = 7;
    pub const R8: usize = 8;
    pub const R9: usize = 9;
    pub const R10: usize = 10;
    pub const R11: usize = 11;
    pub const R12: usize = 12;
    pub const R13: usize = 13;
    pub const R14: usize = 14;
    pub const R15: usize = 15;
}

/// A segment register or system segment with its hidden part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Visible selector.
    pub selector: u16,
    /// Base address.
    pub base: u64,
    /// Limit in bytes, already expanded by the granularity bit.
    pub limit: u32,
    /// Descriptor bits 40..56 as the VMCB/VMX "access rights" have them: type 0..4, S 4, DPL 5..7, P 7, AVL 8
    /// (of the packed form 0..12: AVL 8, L 9, D/B 10, G 11).
    pub attributes: u16,
    /// The segment is unusable (null selector loaded).
    pub unusable: bool,
}

/// GDTR or IDTR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DescriptorTable {
    /// Linear address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u16,
}

/// Everything a CPU is, between two instructions.
///
/// Not here because the model has none: XSAVE state, APIC, performance counters, SMM, VMX/SVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "architectural names, Intel SDM vol. 3A chapters 2, 3 and 5")]
pub struct CpuState {
    pub gpr: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
    pub es: Segment,
    pub cs: Segment,
    pub ss: Segment,
    pub ds: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub ldtr: Segment,
    pub tr: Segment,
    pub gdtr: DescriptorTable,
    pub idtr: DescriptorTable,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    /// CR8 / TPR; the model has no APIC, so it is only stored.
    pub cr8: u64,
    pub efer: u64,
    pub star: u64,
    pub lstar: u64,
    pub cstar: u64,
    pub sfmask: u64,
    pub kernel_gs_base: u64,
    pub sysenter_cs: u64,
    pub sysenter_esp: u64,
    pub sysenter_eip: u64,
    pub pat: u64,
    pub tsc_aux: u64,
    /// IA32_MISC_ENABLE.
    pub misc_enable: u64,
    pub mtrr_def_type: u64,
    pub dr: [u64; 4],
    pub dr6: u64,
    pub dr7: u64,
    /// x87 register file by physical register R0..R7 (not ST order): 80-bit values in the low ten bytes.
    pub x87: [[u8; 16]; 8],
    pub fcw: u16,
    /// FSW with TOP in bits 11..14.
    pub fsw: u16,
    /// Full tag word (two bits per register, as FNSTENV stores it).
    pub ftw: u16,
    pub xmm: [[u64; 2]; 16],
    pub mxcsr: u32,
    /// Interrupt shadow after MOV SS, POP SS or STI: the next instruction takes no interrupt.
    pub interrupt_shadow: bool,
}

impl Default for CpuState {
    /// The state after reset as far as 64-bit boot needs it: everything zero but the bits that read as one.
    fn default() -> Self {
        CpuState {
            gpr: [0; 16],
            rip: 0,
            rflags: 2,
            es: Segment::default(),
            cs: Segment::default(),
            ss: Segment::default(),
            ds: Segment::default(),
            fs: Segment::default(),
            gs: Segment::default(),
            ldtr: Segment::default(),
            tr: Segment::default(),
            gdtr: DescriptorTable::default(),
            idtr: DescriptorTable::default(),
            cr0: 0x10,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            cr8: 0,
            efer: 0,
            star: 0,
            lstar: 0,
            cstar: 0,
            sfmask: 0,
            kernel_gs_base: 0,
            sysenter_cs: 0,
            sysenter_esp: 0,
            sysenter_eip: 0,
            pat: 0x0007_0406_0007_0406,
            tsc_aux: 0,
            misc_enable: 1,
            mtrr_def_type: 0,
            dr: [0; 4],
            dr6: 0xffff_0ff0,
            dr7: 0x400,
            x87: [[0; 16]; 8],
            fcw: 0x37f,
            fsw: 0,
            ftw: 0xffff,
            xmm: [[0; 2]; 16],
            mxcsr: 0x1f80,
            interrupt_shadow: false,
        }
    }
}
