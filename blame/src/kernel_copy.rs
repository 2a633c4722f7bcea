//! Where the kernel copied bytes from, told by the instruction that stored them.
//!
//! The kernel's copy loops (arch/x86/lib/copy_page_64.S, copy_user_64.S, memcpy_64.S) are `rep movs`, or loads at
//! RSI+d followed by stores at RDI+d with the same d. What is found is checked: the bytes there must be the bytes
//! stored.

use debug::kernel::{Kernel, read_virtual};
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic, OpKind, Register};
use vmm::{
    address::{Gpa, Gva},
    engine::CpuState,
};

const RSI: usize = 6;
const RDI: usize = 7;
/// How far RSI may have been moved on between the loads and the stores.
const AHEAD: [u64; 4] = [0, 32, 64, 8];

/// The linear address the `len` bytes at `address` were copied from by the instruction at `rip`, which has run;
/// `cpu` is the state after it.
pub(crate) fn source(
    kernel: &Kernel<'_>,
    cpu: &CpuState,
    rip: u64,
    address: u64,
    stored: &[u8],
) -> Option<u64> {
    let root = Gpa(cpu.cr3 & 0x000f_ffff_ffff_f000);
    let mut code = [0; 15];
    let len = (1..=15).rev().find(|&len| kernel.read(Gva(rip), &mut code[..len]).is_ok())?;
    let insn = Decoder::with_ip(64, &code[..len], rip, DecoderOptions::NONE).decode();
    let same = |at: u64| {
        let mut there = vec![0; stored.len()];
        let read = read_virtual(kernel.memory(), root, Gva(at), &mut there);
        (read.is_ok() && there == stored).then_some(at)
    };
    match insn.mnemonic() {
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq
            if !matches!(insn.code(), Code::Movsd_xmm_xmmm64 | Code::Movsd_xmmm64_xmm) =>
        {
            let back = cpu.gpr[RDI].wrapping_sub(address);
            same(cpu.gpr[RSI].wrapping_sub(back))
        }
        Mnemonic::Mov if insn.op0_kind() == OpKind::Memory && insn.op1_kind() == OpKind::Register => {
            if insn.memory_base() != Register::RDI || insn.memory_index() != Register::None {
                return None;
            }
            let from = cpu.gpr[RSI].wrapping_add(address.wrapping_sub(cpu.gpr[RDI]));
            AHEAD.into_iter().find_map(|ahead| same(from.wrapping_sub(ahead)))
        }
        _ => None,
    }
}
