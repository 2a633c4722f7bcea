//! A case: registers and memory before; and what came out of running it.

use crate::layout::{IMAGE, image_address};

/// An FXSAVE image in the 64-bit format (Intel SDM vol. 1, table 10-2).
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Fx(pub [u8; 512]);

impl Fx {
    /// FCW.
    pub fn fcw(&self) -> u16 {
        u16::from_le_bytes([self.0[0], self.0[1]])
    }
    /// FSW, TOP in bits 11..14.
    pub fn fsw(&self) -> u16 {
        u16::from_le_bytes([self.0[2], self.0[3]])
    }
    /// Abridged tag word: bit `r` set when physical register `r` is not empty.
    pub fn tags(&self) -> u8 {
        self.0[4]
    }
    /// MXCSR.
    pub fn mxcsr(&self) -> u32 {
        u32::from_le_bytes([self.0[24], self.0[25], self.0[26], self.0[27]])
    }
    /// ST(i), ten bytes.
    pub fn st(&self, i: usize) -> [u8; 10] {
        let mut out = [0; 10];
        out.copy_from_slice(&self.0[32 + 16 * i..42 + 16 * i]);
        out
    }
    /// XMMi as two little-endian halves.
    pub fn xmm(&self, i: usize) -> [u64; 2] {
        let half = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.0[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        [half(160 + 16 * i), half(168 + 16 * i)]
    }
    /// Sets FCW.
    pub fn set_fcw(&mut self, value: u16) {
        self.0[..2].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets FSW.
    pub fn set_fsw(&mut self, value: u16) {
        self.0[2..4].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets the abridged tag word.
    pub fn set_tags(&mut self, value: u8) {
        self.0[4] = value;
    }
    /// Sets MXCSR.
    pub fn set_mxcsr(&mut self, value: u32) {
        self.0[24..28].copy_from_slice(&value.to_le_bytes());
    }
    /// Sets ST(i).
    pub fn set_st(&mut self, i: usize, value: [u8; 10]) {
        self.0[32 + 16 * i..42 + 16 * i].copy_from_slice(&value);
    }
    /// Sets XMMi.
    pub fn set_xmm(&mut self, i: usize, value: [u64; 2]) {
        self.0[160 + 16 * i..168 + 16 * i].copy_from_slice(&value[0].to_le_bytes());
        self.0[168 + 16 * i..176 + 16 * i].copy_from_slice(&value[1].to_le_bytes());
    }
}

impl Default for Fx {
    /// As after FNINIT, with MXCSR at its reset value and all registers zero.
    fn default() -> Self {
        let mut fx = Fx([0; 512]);
        fx.set_fcw(0x37f);
        fx.set_mxcsr(0x1f80);
        fx
    }
}

impl std::fmt::Debug for Fx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "fcw={:#x} fsw={:#x} tags={:#x} mxcsr={:#x}",
            self.fcw(),
            self.fsw(),
            self.tags(),
            self.mxcsr()
        )
    }
}

/// Registers user mode can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Registers {
    /// x87, MMX, XMM and their control registers.
    pub fx: Fx,
    /// In encoding order.
    pub gpr: [u64; 16],
    /// Instruction pointer.
    pub rip: u64,
    /// Flags.
    pub rflags: u64,
    /// FS base.
    pub fs_base: u64,
    /// GS base.
    pub gs_base: u64,
}

/// Bytes to put into the image before the case runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patch {
    /// Linear address of the first byte; every byte is in a span.
    pub address: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Everything a case starts from.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Case {
    /// Registers before.
    pub registers: Registers,
    /// Memory before, where it differs from [`crate::layout::background`]; code included.
    pub patches: Vec<Patch>,
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By exit stub `k`.
    Exit(u32),
    /// By an exception.
    Fault {
        /// Vector.
        vector: u32,
        /// Error code, 0 where the vector has none.
        error: u64,
        /// CR2 of a page fault, 0 otherwise.
        cr2: u64,
    },
    /// It did not end in time.
    Timeout,
    /// The software CPU stopped for a reason of its own.
    Other(&'static str),
}

/// 64 bytes of the image that differ from the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Chunk {
    /// Linear address.
    pub address: u64,
    /// What is there now.
    pub bytes: [u8; 64],
}

/// What came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub end: End,
    /// Registers after. RIP is not meaningful after [`End::Exit`].
    pub registers: Registers,
    /// Memory after, where it differs from the background, in image order.
    pub memory: Vec<Chunk>,
}

/// Most chunks an outcome can have.
pub const MAX_CHUNKS: usize = IMAGE / 64;

/// Puts every changed 64-byte chunk of `image` into `found` and the background back in its place.
pub fn take_changes(image: &mut [u8], background: &[u8], mut found: impl FnMut(Chunk)) {
    for (index, (now, was)) in image.chunks_exact_mut(1024).zip(background.chunks_exact(1024)).enumerate() {
        if now == was {
            continue;
        }
        for (sub, (now, was)) in now.chunks_exact_mut(64).zip(was.chunks_exact(64)).enumerate() {
            if now != was {
                let mut bytes = [0; 64];
                bytes.copy_from_slice(now);
                found(Chunk { address: image_address(index * 1024 + sub * 64), bytes });
                now.copy_from_slice(was);
            }
        }
    }
}
