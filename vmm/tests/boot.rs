//! Kernels that cannot be booted are refused with the reason.

use vmm::{EngineKind, KernelFiles, Machine, MachineConfig};

fn refusal(memory: u64, vmlinux: &[u8], initramfs: &[u8]) -> String {
    let kernel =
        KernelFiles { vmlinux: vmlinux.into(), initramfs: initramfs.into(), command_line: "quiet".into() };
    Machine::boot(&MachineConfig::new(memory, EngineKind::Soft, kernel)).unwrap_err().to_string()
}

/// A one-segment x86-64 executable: header, program header, `data` loaded at `at`.
fn elf(machine: u16, at: u64, data: &[u8], zeroed: u64) -> Vec<u8> {
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend(2u16.to_le_bytes()); // ET_EXEC
    file.extend(machine.to_le_bytes());
    file.extend(1u32.to_le_bytes());
    for word in [at, 64, 0] {
        file.extend(word.to_le_bytes()); // entry, program headers, section headers
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 64, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes()); // PT_LOAD
    file.extend(7u32.to_le_bytes());
    for word in [120, at, at, data.len() as u64, data.len() as u64 + zeroed, 4096] {
        file.extend(u64::to_le_bytes(word));
    }
    file.extend(data);
    file
}

const X86_64: u16 = 62;
const MIB: u64 = 1 << 20;

#[test]
fn a_kernel_must_be_a_whole_x86_64_executable() {
    for file in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0; 4096]] {
        assert!(refusal(64 * MIB, file, b"").contains("not a usable ELF vmlinux"), "{file:?}");
    }
    let good = elf(X86_64, 16 * MIB, &[0xf4; 100], 0);
    for cut in [63, 100, good.len() - 1] {
        assert!(refusal(64 * MIB, &good[..cut], b"").contains("not a usable ELF vmlinux"), "cut at {cut}");
    }
    assert!(refusal(64 * MIB, &elf(183, 16 * MIB, &[0; 100], 0), b"").contains("x86-64"));
    for at in [0x1000, u64::MAX - 50, 0xc000_0000] {
        assert!(
            refusal(64 * MIB, &elf(X86_64, at, &[0; 100], 0), b"").contains("impossible place"),
            "{at:#x}"
        );
    }
}

#[test]
fn memory_must_suffice() {
    let text = refusal(64 * MIB, &elf(X86_64, 16 * MIB, &[0xf4; 100], 60 * MIB), b"");
    assert!(text.contains("64 MiB of guest memory is too little") && text.contains("--memory"), "{text}");
    let text = refusal(64 * MIB, &elf(X86_64, 16 * MIB, &[0xf4; 100], 0), &vec![0; 30 << 20]);
    assert!(text.contains("too little"), "{text}");
    assert!(refusal(3 * MIB, b"", b"").contains("from 64 MiB to 64 GiB"));
}
