//! What this host's CPU answers where the architecture leaves it open: RCP and RSQRT, the x87 functions, undefined flags.
//! Both engines use the host CPU for the first two, so a run's numbers are those of the host's fingerprint.
//!
//! The same bytes of machine code run here and inside a micro-guest: if a KVM's guest answers otherwise, `kvm` and `soft`
//! would differ on this very host.

use std::{io, ptr};

use super::checks::{seen, text};
use crate::{
    address::Gpa,
    engine::Exit,
    guest_code,
    micro::{DATA, Micro, SYSCALL_PORT},
};

/// Test vectors, of [`INPUT`] bytes each; what comes out of one takes [`OUTPUT`].
const VECTORS: usize = 64;
const INPUT: usize = 32;
const OUTPUT: usize = 128;

// RSI = vectors, RDI = results, ECX = how many. Touches only what a C function may.
guest_code!(
    numeric_code = "fninit",
    "2: movups xmm0, [rsi]",
    "rcpps xmm1, xmm0",
    "movups [rdi], xmm1",
    "rsqrtps xmm1, xmm0",
    "movups [rdi+16], xmm1",
    // Four functions of any number, then three of one in -1 to 1.
    "fld qword ptr [rsi+16]",
    "fsin",
    "fstp tbyte ptr [rdi+32]",
    "fld qword ptr [rsi+16]",
    "fcos",
    "fstp tbyte ptr [rdi+42]",
    "fld qword ptr [rsi+16]",
    "fptan",
    "fstp st(0)",
    "fstp tbyte ptr [rdi+52]",
    "fld qword ptr [rsi+16]",
    "fld qword ptr [rsi+24]",
    "fpatan",
    "fstp tbyte ptr [rdi+62]",
    "fld qword ptr [rsi+24]",
    "f2xm1",
    "fstp tbyte ptr [rdi+72]",
    "fld qword ptr [rsi+24]",
    "fld qword ptr [rsi+16]",
    "fabs",
    "fyl2x",
    "fstp tbyte ptr [rdi+82]",
    "fld qword ptr [rsi+16]",
    "fld qword ptr [rsi+24]",
    // FYL2XP1 takes at most 1 - sqrt(1/2).
    "fmul qword ptr [rsi+24]",
    "fldlg2",
    "fmulp st(1), st(0)",
    "fyl2xp1",
    "fstp tbyte ptr [rdi+92]",
    // Flags that are undefined after multiplication, division, shifts, bit scans and logic.
    "mov r8, [rsi+16]",
    "mov r9, [rsi+24]",
    "mov rax, r8",
    "mul r9",
    "pushfq",
    "pop r10",
    "mov [rdi+104], r10b",
    "xor edx, edx",
    "mov rax, r8",
    "or r9, 1",
    "div r9",
    "pushfq",
    "pop r10",
    "mov [rdi+105], r10b",
    "mov rax, r8",
    "shl rax, 7",
    "pushfq",
    "pop r10",
    "mov [rdi+106], r10b",
    "mov rax, r8",
    "rol rax, 9",
    "pushfq",
    "pop r10",
    "mov [rdi+107], r10b",
    "bsf rax, r8",
    "pushfq",
    "pop r10",
    "mov [rdi+108], r10b",
    "and r8, r9",
    "pushfq",
    "pop r10",
    "mov [rdi+109], r10b",
    "imul r8, r9, 77",
    "pushfq",
    "pop r10",
    "mov [rdi+110], r10b",
    "add rsi, 32",
    "add rdi, 128",
    "dec ecx",
    "jnz 2b",
    "fninit",
);

const RET: u8 = 0xc3;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn vectors() -> Vec<u8> {
    let mut state = 1;
    let mut bytes = Vec::with_capacity(VECTORS * INPUT);
    // A number in -1 to 1 that has all its digits.
    let unit = |state: &mut u64| (next(state) >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
    for _ in 0..VECTORS {
        for _ in 0..4 {
            bytes.extend(((unit(&mut state).abs() as f32 + 0.001) * 1000.0).to_le_bytes());
        }
        bytes.extend((unit(&mut state) * 1e6).to_le_bytes());
        bytes.extend(unit(&mut state).to_le_bytes());
    }
    bytes
}

/// The answers of the CPU this program runs on.
fn here() -> io::Result<Vec<u8>> {
    let mut code = numeric_code().to_vec();
    code.push(RET);
    let (input, mut output) = (vectors(), vec![0; VECTORS * OUTPUT]);
    let len = code.len();
    // SAFETY: a new private mapping, of the kernel's choice of place.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has `len` writable bytes and is nobody else's.
    unsafe { ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), len) };
    // SAFETY: the whole of that mapping.
    let executable = unsafe { libc::mprotect(page, len, libc::PROT_READ | libc::PROT_EXEC) } == 0;
    let result = if executable {
        // SAFETY: the page has a function of this type: it reads RSI, RDI and ECX (the second, first and fourth
        // argument), uses registers a C function may, reads and writes within the two buffers, and returns.
        unsafe {
            let run: extern "sysv64" fn(*mut u8, *const u8, u64, u64) = std::mem::transmute(page);
            run(output.as_mut_ptr(), input.as_ptr(), 0, VECTORS as u64);
        }
        Ok(output)
    } else {
        Err(io::Error::last_os_error())
    };
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { libc::munmap(page, len) };
    result
}

/// The host's numeric fingerprint, 16 hex digits: equal on two hosts whose approximations and undefined flags are the same.
pub fn fingerprint() -> io::Result<String> {
    // FNV-1a, 64 bits: nobody forges this.
    let hash = here()?.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

/// A guest's answers are this program's.
pub(super) fn as_here(m: &mut Micro) -> Result<(), String> {
    const RESULTS: u64 = DATA + 0x4000;
    let expected = here().map_err(|error| format!("cannot run the code here: {error}"))?;
    let mut code = numeric_code().to_vec();
    code.extend(SYSCALL);
    m.user(&code).map_err(text)?;
    m.memory.write(Gpa(DATA), &vectors()).map_err(text)?;
    let mut state = m.engine.cpu().map_err(text)?;
    state.gpr[soft_cpu::state::gpr::RSI] = DATA;
    state.gpr[soft_cpu::state::gpr::RDI] = RESULTS;
    state.gpr[soft_cpu::state::gpr::RCX] = VECTORS as u64;
    m.engine.set_cpu(&state).map_err(text)?;
    match m.run().map_err(text)? {
        Exit::PortOut { port: SYSCALL_PORT, .. } => {}
        other => return Err(seen(&other)),
    }
    let mut found = vec![0; expected.len()];
    m.memory.read(Gpa(RESULTS), &mut found).map_err(text)?;
    match found.iter().zip(&expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!("{} differs in vector {}", what(at % OUTPUT), at / OUTPUT)),
    }
}

/// What stands at an offset of a result.
fn what(offset: usize) -> &'static str {
    match offset {
        0..16 => "RCPPS",
        16..32 => "RSQRTPS",
        32..42 => "FSIN",
        42..52 => "FCOS",
        52..62 => "FPTAN",
        62..72 => "FPATAN",
        72..82 => "F2XM1",
        82..92 => "FYL2X",
        92..102 => "FYL2XP1",
        _ => "an undefined flag",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cpu_model::REWIND_V2, engine::EngineKind};

    #[test]
    fn the_fingerprint_is_of_many_different_answers() {
        let answers = here().unwrap();
        for function in [0, 16, 32, 42, 52, 62, 72, 82, 92] {
            let of = |vector: usize| &answers[vector * OUTPUT + function..][..10];
            assert!(
                (1..VECTORS).all(|vector| of(vector) != of(0)),
                "{} answers always the same",
                what(function)
            );
        }
        assert_eq!(fingerprint().unwrap(), fingerprint().unwrap());
        assert_eq!(fingerprint().unwrap().len(), 16);
    }

    #[test]
    fn the_software_cpu_takes_its_approximations_from_this_host() {
        let mut m = Micro::new(EngineKind::Soft, &REWIND_V2).unwrap();
        // Its undefined flags are one vendor's, whatever this host is.
        match as_here(&mut m) {
            Ok(()) => {}
            Err(text) => assert!(text.starts_with("an undefined flag"), "{text}"),
        }
    }
}
