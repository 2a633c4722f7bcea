//! The CPU model `rewind-v2`: what CPUID says, the same on every host and both engines. One table.
//!
//! x86-64-v2 plus FSGSBASE, without what cannot be made the same everywhere (XSAVE and AVX, ERMS, FSRM, PCID,
//! INVPCID, LA57, SMAP, SMEP, UMIP, PKU, performance counters, APIC, MONITOR, RDRAND, RDSEED). Source of the
//! layouts: Intel SDM vol. 2A, CPUID. RDTSCP is listed: the guest kernel emulates it, as RDTSC.

/// One CPUID leaf (one subleaf, where the leaf has several).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// EAX in.
    pub function: u32,
    /// ECX in; `None`: ECX does not matter.
    pub index: Option<u32>,
    /// EAX out.
    pub eax: u32,
    /// EBX out.
    pub ebx: u32,
    /// ECX out.
    pub ecx: u32,
    /// EDX out.
    pub edx: u32,
}

/// A CPU model. Whatever [`CpuModel::leaves`] has not answers zeros.
#[derive(Clone, Copy, Debug)]
pub struct CpuModel {
    /// Name, as the spec has it.
    pub name: &'static str,
    /// All leaves that are not zero.
    pub leaves: &'static [Leaf],
    /// Physical address bits.
    pub physical_bits: u8,
    /// Linear address bits.
    pub linear_bits: u8,
}

const fn text(at: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([at[offset], at[offset + 1], at[offset + 2], at[offset + 3]])
}

const fn bits(list: &[u32]) -> u32 {
    let mut value = 0;
    let mut i = 0;
    while i < list.len() {
        value |= 1 << list[i];
        i += 1;
    }
    value
}

const fn leaf(function: u32, eax: u32, ebx: u32, ecx: u32, edx: u32) -> Leaf {
    Leaf { function, index: None, eax, ebx, ecx, edx }
}

/// Leaf 4: a cache. `kind` 1 data, 2 instruction, 3 unified; 64-byte lines, one partition, not shared.
const fn cache(index: u32, kind: u32, level: u32, ways: u32, sets: u32) -> Leaf {
    Leaf {
        function: 4,
        index: Some(index),
        eax: kind | level << 5 | 1 << 8,
        ebx: 63 | (ways - 1) << 22,
        ecx: sets - 1,
        edx: 0,
    }
}

const VENDOR: &[u8; 12] = b"GenuineIntel";
const HYPERVISOR: &[u8; 12] = b"RewindRewind";
const BRAND: &[u8; 48] = b"Rewind virtual CPU v2 (x86-64-v2)\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Family 6, model 0x1a, stepping 5: has every feature listed, and the guest kernel has no performance counter
/// driver for it without architectural counters (`arch/x86/events/intel/p6.c`).
const SIGNATURE: u32 = 0x0001_06a5;

/// Highest basic leaf. It is all zeros, so that a leaf above it, which Intel CPUs (and KVM for that vendor)
/// answer with the highest basic leaf, reads as zeros too.
const MAX_BASIC: u32 = 8;

/// `rewind-v2`.
pub const REWIND_V2: CpuModel = CpuModel {
    name: "rewind-v2",
    physical_bits: 39,
    linear_bits: 48,
    leaves: &[
        leaf(0, MAX_BASIC, text(VENDOR, 0), text(VENDOR, 8), text(VENDOR, 4)),
        leaf(
            1,
            SIGNATURE,
            // One logical processor, CLFLUSH line of 8 quadwords.
            1 << 16 | 8 << 8,
            // SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT, hypervisor present.
            bits(&[0, 9, 13, 19, 20, 23, 31]),
            // FPU, DE, PSE, TSC, MSR, PAE, CX8, SEP, PGE, CMOV, PAT, PSE36, CLFSH, MMX, FXSR, SSE, SSE2.
            bits(&[0, 2, 3, 4, 5, 6, 8, 11, 13, 15, 16, 17, 19, 23, 24, 25, 26]),
        ),
        // Descriptor bytes: 0xff = see leaf 4.
        leaf(2, 0x00ff_0001, 0, 0, 0),
        cache(0, 1, 1, 8, 64),
        cache(1, 2, 1, 8, 64),
        cache(2, 3, 2, 8, 1024),
        cache(3, 3, 3, 16, 8192),
        // FSGSBASE; no further subleaf.
        Leaf { function: 7, index: Some(0), eax: 0, ebx: 1, ecx: 0, edx: 0 },
        leaf(MAX_BASIC, 0, 0, 0, 0),
        leaf(0x4000_0000, 0x4000_0000, text(HYPERVISOR, 0), text(HYPERVISOR, 4), text(HYPERVISOR, 8)),
        leaf(0x8000_0000, 0x8000_0008, 0, 0, 0),
        // LAHF in 64-bit mode; SYSCALL, NX, RDTSCP, long mode.
        leaf(0x8000_0001, 0, 0, bits(&[0]), bits(&[11, 20, 27, 29])),
        leaf(0x8000_0002, text(BRAND, 0), text(BRAND, 4), text(BRAND, 8), text(BRAND, 12)),
        leaf(0x8000_0003, text(BRAND, 16), text(BRAND, 20), text(BRAND, 24), text(BRAND, 28)),
        leaf(0x8000_0004, text(BRAND, 32), text(BRAND, 36), text(BRAND, 40), text(BRAND, 44)),
        // L2: 512 KiB, 8-way, 64-byte lines.
        leaf(0x8000_0006, 0, 0, 512 << 16 | 6 << 12 | 64, 0),
        // Invariant TSC: the virtual clock never changes its rate.
        leaf(0x8000_0007, 0, 0, 0, bits(&[8])),
        leaf(0x8000_0008, 48 << 8 | 39, 0, 0, 0),
    ],
};

impl CpuModel {
    /// A model by its name in a spec.
    pub fn by_name(name: &str) -> Option<&'static CpuModel> {
        (name == REWIND_V2.name).then_some(&REWIND_V2)
    }

    /// What CPUID answers: EAX, EBX, ECX, EDX. A leaf that is not there reads as zeros.
    pub fn cpuid(&self, function: u32, index: u32) -> [u32; 4] {
        self.leaves
            .iter()
            .find(|l| l.function == function && l.index.is_none_or(|i| i == index))
            .map_or([0; 4], |l| [l.eax, l.ebx, l.ecx, l.edx])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_agrees_with_itself() {
        let model = REWIND_V2;
        assert_eq!(model.cpuid(0, 7)[0], MAX_BASIC);
        assert_eq!(model.cpuid(0x8000_0008, 0)[0], 48 << 8 | u32::from(model.physical_bits));
        assert_eq!(model.cpuid(7, 1), [0; 4]);
        assert_eq!(model.cpuid(MAX_BASIC, 0), [0; 4]);
        let (basic, extended) = (model.cpuid(0, 0)[0], model.cpuid(0x8000_0000, 0)[0]);
        for leaf in model.leaves {
            let within = match leaf.function {
                0..0x4000_0000 => leaf.function <= basic,
                0x8000_0000.. => leaf.function <= extended,
                _ => leaf.function == 0x4000_0000,
            };
            assert!(within, "leaf {:#x} is above the highest leaf announced", leaf.function);
        }
        // 512 KiB in leaf 4 as in leaf 0x80000006.
        let l2 = model.cpuid(4, 2);
        assert_eq!((l2[1] >> 22) as u64 + 1, 8);
        assert_eq!(8 * 64 * (u64::from(l2[2]) + 1), 512 << 10);
    }
}
