//! Tags, FXSAVE, FXRSTOR, LDMXCSR and STMXCSR.
//!
//! The model has no last-instruction and last-operand pointers: FOP, FIP and FDP are always saved as zeroes, as
//! the guest kernel makes it on hardware.

use iced_x86::Code;

use super::{
    FpClass, FpFault, FpInsn, FpOperands, FpState,
    MemAccess::ReadWrite,
    lanes::{bytes, store},
};

/// Bits of MXCSR that may be set.
const MXCSR_MASK: u32 = 0xffff;
/// Bits of the control word that exist.
const FCW_BITS: u16 = 0x1f3f;
/// The bit of the control word that is always set.
const FCW_ONES: u16 = 0x40;
/// Bytes of the FXSAVE image that are written.
const FXSAVE_USED: usize = 416;

/// One bit per register of a full tag word: set if the register is not empty.
pub(super) fn abridged_tags(full: u16) -> u8 {
    (0..8).fold(0, |tags, i| tags | u8::from(full >> (2 * i) & 3 != 3) << i)
}

/// The full tag word as FNSTENV stores it: valid 0, zero 1, special 2, empty 3.
pub(super) fn full_tags(s: &FpState) -> u16 {
    (0..8).fold(0, |full, i| {
        let tag = if s.tags >> i & 1 == 0 { 3 } else { class_of(&s.x87[i]) };
        full | tag << (2 * i)
    })
}

/// Valid (0), zero (1) or special (2): infinity, NaN, denormal or unsupported.
fn class_of(register: &[u8; 16]) -> u16 {
    let [s0, s1, s2, s3, s4, s5, s6, s7, e0, e1, ..] = *register;
    let significand = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let exponent = u16::from_le_bytes([e0, e1]) & 0x7fff;
    match exponent {
        0 if significand == 0 => 1,
        0 | 0x7fff => 2,
        _ if significand >> 63 == 0 => 2,
        _ => 0,
    }
}

impl FpState {
    /// The physical register that is the top of the stack.
    #[inline(always)]
    pub(super) fn top(&self) -> usize {
        usize::from(self.fsw >> 11 & 7)
    }

    /// Recomputes the summary bits ES and B from flags and masks.
    pub(super) fn set_summary(&mut self) {
        self.fsw &= !0x8080;
        if self.fsw & !self.fcw & 0x3f != 0 {
            self.fsw |= 0x8080;
        }
    }

    /// Loads control and status word, dropping bits that do not exist.
    pub(super) fn set_words(&mut self, fcw: u16, fsw: u16) {
        self.fcw = fcw & FCW_BITS | FCW_ONES;
        self.fsw = fsw;
        self.set_summary();
    }
}

fn ldmxcsr(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let value = u32::from_le_bytes(bytes(o.mem));
    if value & !MXCSR_MASK != 0 {
        return Err(FpFault::GeneralProtection);
    }
    s.mxcsr = value;
    Ok(())
}

fn stmxcsr(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    store::<4>(o.mem, [u64::from(s.mxcsr), 0]);
    Ok(())
}

/// Both forms: they differ in how FIP and FDP are stored, which are zero here.
fn fxsave(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let mut image = [0; FXSAVE_USED];
    image[0..2].copy_from_slice(&s.fcw.to_le_bytes());
    image[2..4].copy_from_slice(&s.fsw.to_le_bytes());
    image[4] = s.tags;
    image[24..28].copy_from_slice(&s.mxcsr.to_le_bytes());
    image[28..32].copy_from_slice(&MXCSR_MASK.to_le_bytes());
    for i in 0..8 {
        let at = 32 + 16 * i;
        image[at..at + 10].copy_from_slice(&s.x87[(s.top() + i) % 8][..10]);
    }
    for (i, value) in s.xmm.iter().enumerate() {
        let at = 160 + 16 * i;
        image[at..at + 16].copy_from_slice(&super::lanes::to_bytes(*value));
    }
    debug_assert!(o.mem.len() >= FXSAVE_USED, "FXSAVE area of {} bytes", o.mem.len());
    if let Some(to) = o.mem.first_chunk_mut() {
        *to = image;
    }
    Ok(())
}

fn fxrstor(s: &mut FpState, o: &mut FpOperands<'_>) -> Result<(), FpFault> {
    let image: [u8; FXSAVE_USED] = bytes(o.mem);
    let word = |at: usize| u16::from_le_bytes([image[at], image[at + 1]]);
    let mxcsr = u32::from(word(24)) | u32::from(word(26)) << 16;
    if mxcsr & !MXCSR_MASK != 0 {
        return Err(FpFault::GeneralProtection);
    }
    s.mxcsr = mxcsr;
    s.set_words(word(0), word(2));
    s.tags = image[4];
    for i in 0..8 {
        let register = &mut s.x87[usize::from(word(2) >> 11 & 7).wrapping_add(i) % 8];
        *register = [0; 16];
        register[..10].copy_from_slice(&image[32 + 16 * i..][..10]);
    }
    for (i, value) in s.xmm.iter_mut().enumerate() {
        *value = super::lanes::load::<16>(&image[160 + 16 * i..][..16]);
    }
    Ok(())
}

/// The instructions of this file.
pub(super) fn lookup(code: Code) -> Option<FpInsn> {
    Some(match code {
        Code::Ldmxcsr_m32 => FpInsn::sse(ldmxcsr).reads(4),
        Code::Stmxcsr_m32 => FpInsn::sse(stmxcsr).writes(4),
        // The last 96 bytes are not written: they keep what is there.
        Code::Fxsave_m512byte | Code::Fxsave64_m512byte => {
            FpInsn::new(FpClass::Fxsave, fxsave).mem(ReadWrite, 512).aligned()
        }
        Code::Fxrstor_m512byte | Code::Fxrstor64_m512byte => {
            FpInsn::new(FpClass::Fxsave, fxrstor).reads(512).aligned()
        }
        _ => return None,
    })
}
