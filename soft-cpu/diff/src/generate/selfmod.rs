//! Code that changes itself: eight bytes of code are replaced, by different kinds of stores, before, inside or
//! behind the running code, once or on every round of a loop. x86 executes the new bytes at once (SDM vol. 3A 9.1.3
//! asks for a jump; processors do without, and programs exist that rely on it).

use fastrand::Rng;
use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::{Generated, registers};
use crate::{
    case::{Case, Patch},
    compare::Ignore,
    layout::{CODE, DATA, STACK, exit_stub},
};

/// Makes cases of self-modifying code.
pub struct SelfModifying {
    rng: Rng,
}

/// Eight bytes of whole instructions that write RCX, RDX, R8 and flags only, all flags defined.
fn eight_bytes(rng: &mut Rng) -> [u8; 8] {
    let mut bytes = Vec::new();
    while bytes.len() < 8 {
        let next: &[u8] = match rng.u8(..9) {
            0 => &[0xff, 0xc1],                         // inc ecx
            1 => &[0x83, 0xc1, rng.u8(..)],             // add ecx, imm8
            2 => &[0x83, 0xd2, rng.u8(..)],             // adc edx, imm8
            3 => &[0x31, 0xd2],                         // xor edx, edx
            4 => &[0x8d, 0x51, rng.u8(..)],             // lea edx, [rcx + imm8]
            5 => &[0x41, 0xff, 0xc8],                   // dec r8d
            6 => &[0x49, 0x11, 0xd0],                   // adc r8, rdx
            7 => &[0xba, rng.u8(..), 0, 0, rng.u8(..)], // mov edx, imm32
            _ => &[0x74, 0x00],                         // jz to the next
        };
        if bytes.len() + next.len() <= 8 {
            bytes.extend_from_slice(next);
        } else if bytes.len() >= 6 {
            bytes.push(0x90);
        }
    }
    let mut out = [0; 8];
    out.copy_from_slice(&bytes);
    out
}

impl SelfModifying {
    /// A generator with its own seed.
    pub fn new(seed: u64) -> Self {
        SelfModifying { rng: Rng::with_seed(seed) }
    }

    /// The next case. RBX points at the code that changes, RAX or a vector register holds the new bytes, RSI points
    /// at a copy of them, R15 counts rounds.
    pub fn make(&mut self) -> Generated {
        let rng = &mut self.rng;
        let (old, new) = (eight_bytes(rng), eight_bytes(rng));
        let store: &[u8] = match rng.u8(..9) {
            0 | 1 => &[0x48, 0x89, 0x03],   // mov [rbx], rax
            2 | 3 => &[0x48, 0x87, 0x03],   // xchg [rbx], rax: back again next round
            4 => &[0x0f, 0x7f, 0x03],       // movq [rbx], mm0
            5 => &[0x66, 0x0f, 0xd6, 0x03], // movq [rbx], xmm0
            6 => &[0x48, 0x89, 0xdf, 0xb9, 8, 0, 0, 0, 0xf3, 0xa4, 0x48, 0x83, 0xee, 8], // rep movsb, back
            7 => &[0x89, 0x03, 0x49, 0x89, 0xc1, 0x49, 0xc1, 0xe9, 32, 0x44, 0x89, 0x4b, 4], // two halves
            _ => &[0x48, 0x8d, 0x63, 0x08, 0x50], // lea rsp, [rbx + 8]; push rax
        };
        // How far the changed code is from the store: right behind, some way behind, or before it.
        let filler = vec![0x90u8; [0, 0, 1, 7, 40][rng.usize(..5)]];
        let before = rng.u8(..4) == 0;
        let mut body = Vec::new();
        let site_at = if before {
            body.extend(old);
            body.extend(&filler);
            body.extend(store);
            0
        } else {
            body.extend(store);
            body.extend(&filler);
            body.extend(old);
            body.len() - 8
        };
        // Start so that the changed bytes cross the two code pages now and then.
        let start = match rng.u8(..4) {
            0 => CODE.base + 0x1000 - site_at as u64 - rng.u64(..9),
            _ => CODE.base + 0x400 + rng.u64(..64),
        };
        let site = start + site_at as u64;
        // dec r15; jnz start
        body.extend([0x49, 0xff, 0xcf, 0x0f, 0x85]);
        let back = -(body.len() as i32 + 4);
        body.extend(back.to_le_bytes());
        let mut case = Case { registers: registers::all(rng), patches: Vec::new() };
        let r = &mut case.registers;
        r.rflags = 0x202;
        r.rip = start;
        r.gpr[0] = u64::from_le_bytes(new);
        r.gpr[3] = site;
        r.gpr[4] = STACK.base + 0x1000;
        r.gpr[6] = DATA.base + 0x500;
        r.gpr[15] = rng.u64(1..5);
        r.fx.set_xmm(0, [r.gpr[0], 0]);
        r.fx.set_fsw(0);
        r.fx.set_fcw(0x37f);
        let mut mm = [0xff; 10];
        mm[..8].copy_from_slice(&new);
        r.fx.set_st(0, mm);
        let mut decoder = Decoder::with_ip(64, &body, start, DecoderOptions::NONE);
        let instructions: Vec<Instruction> = decoder.iter().collect();
        let end = start + body.len() as u64;
        case.patches.push(Patch { address: start, bytes: body });
        case.patches.push(Patch { address: end, bytes: exit_stub(0).to_vec() });
        case.patches.push(Patch { address: DATA.base + 0x500, bytes: new.to_vec() });
        // XOR leaves AF undefined, and here it may be read by nothing but the comparison.
        let ignore = Ignore { flags: 0x10, flags_at_fault: 0x10, ..Ignore::default() };
        Generated { case, instructions, ignore }
    }
}
