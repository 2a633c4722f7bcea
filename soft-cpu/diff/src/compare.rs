//! Compares two outcomes of one case.

use crate::{
    case::{Chunk, End, Outcome},
    generate::undefined::flag,
};

/// What need not be equal.
#[derive(Clone, Debug, Default)]
pub struct Ignore {
    /// RFLAGS bits.
    pub flags: u64,
    /// More RFLAGS bits, if the case ends in an exception.
    pub flags_at_fault: u64,
    /// General registers, one bit each.
    pub gprs: u16,
    /// Linear address ranges (first byte, bytes).
    pub memory: Vec<(u64, u64)>,
}

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// Name of a general register.
pub fn gpr_name(i: usize) -> &'static str {
    NAMES[i]
}

fn comparable(end: End) -> End {
    match end {
        // Linux reports every fault on an address from TASK_SIZE_MAX up as a protection fault.
        End::Fault { vector: 14, error, cr2 } if cr2 >= 0x7fff_ffff_f000 => {
            End::Fault { vector: 14, error: error | 1, cr2 }
        }
        end => end,
    }
}

/// Every difference in words, `native` first; empty if there is none.
pub fn differences(native: &Outcome, soft: &Outcome, ignore: &Ignore) -> Vec<String> {
    let mut found = Vec::new();
    if (native.end, soft.end) == (End::Timeout, End::Timeout) {
        // Both loop without end (a mutated LOOP to itself with a huge count): how far each came is a matter of speed.
        return found;
    }
    let mut number = |name: &str, a: u64, b: u64| {
        if a != b {
            found.push(format!("{name}: native {a:#x}, soft {b:#x}"));
        }
    };
    let (a, b) = (&native.registers, &soft.registers);
    if matches!(native.end, End::Fault { .. }) && matches!(soft.end, End::Fault { .. }) {
        number("rip", a.rip, b.rip);
    }
    for i in (0..16).filter(|i| ignore.gprs >> i & 1 == 0) {
        number(NAMES[i], a.gpr[i], b.gpr[i]);
    }
    let at_fault = if matches!(native.end, End::Fault { .. }) { ignore.flags_at_fault } else { 0 };
    let mask = !(ignore.flags | at_fault | flag::RF);
    number("rflags", a.rflags & mask, b.rflags & mask);
    number("fs_base", a.fs_base, b.fs_base);
    number("gs_base", a.gs_base, b.gs_base);
    let (a, b) = (&a.fx, &b.fx);
    number("fcw", a.fcw().into(), b.fcw().into());
    number("fsw", a.fsw().into(), b.fsw().into());
    number("tags", a.tags().into(), b.tags().into());
    number("mxcsr", a.mxcsr().into(), b.mxcsr().into());
    for i in 0..8 {
        if a.st(i) != b.st(i) {
            found.push(format!("st{i}: native {}, soft {}", hex(&a.st(i)), hex(&b.st(i))));
        }
    }
    for i in 0..16 {
        let (a, b) = (a.xmm(i), b.xmm(i));
        if a != b {
            found.push(format!(
                "xmm{i}: native {:016x}_{:016x}, soft {:016x}_{:016x}",
                a[1], a[0], b[1], b[0]
            ));
        }
    }
    if comparable(native.end) != comparable(soft.end) {
        found.insert(0, format!("end: native {:x?}, soft {:x?}", native.end, soft.end));
    }
    memory(&native.memory, &soft.memory, &ignore.memory, &mut found);
    found
}

fn memory(native: &[Chunk], soft: &[Chunk], ignore: &[(u64, u64)], found: &mut Vec<String>) {
    if native == soft {
        return;
    }
    let background = background();
    let addresses: std::collections::BTreeSet<u64> = native.iter().chain(soft).map(|c| c.address).collect();
    let mut told = 0;
    for address in addresses {
        let bytes = |chunks: &[Chunk]| {
            chunks.iter().find(|c| c.address == address).map_or_else(
                || {
                    let at = crate::layout::image_offset(address).expect("chunks are in the image");
                    let mut bytes = [0; 64];
                    bytes.copy_from_slice(&background[at..at + 64]);
                    bytes
                },
                |chunk| chunk.bytes,
            )
        };
        let (a, b) = (bytes(native), bytes(soft));
        for i in 0..64 {
            let at = address + i as u64;
            let ignored = ignore.iter().any(|&(first, len)| at.wrapping_sub(first) < len);
            if a[i] != b[i] && !ignored {
                told += 1;
                if told <= 8 {
                    found.push(format!("byte {at:#x}: native {:02x}, soft {:02x}", a[i], b[i]));
                }
            }
        }
    }
    if told > 8 {
        found.push(format!("and {} more bytes", told - 8));
    }
}

fn background() -> &'static [u8] {
    static BACKGROUND: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    BACKGROUND.get_or_init(crate::layout::background)
}

/// Bytes as a little-endian number in hex.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().rev().map(|b| format!("{b:02x}")).collect()
}
