//! What parent and child exchange: one shared mapping with a batch of cases and their outcomes.

use std::sync::atomic::AtomicU32;

use crate::case::{Case, Chunk, End, MAX_CHUNKS, Outcome, Registers};

/// Cases per batch.
pub(super) const BATCH: usize = 256;
/// Patches per case.
const PATCHES: usize = 24;
/// Bytes of all patches of a case.
const PATCH_BYTES: usize = 4096;

#[repr(C)]
pub(super) struct SharedCase {
    pub(super) registers: Registers,
    patches: u32,
    patch: [(u64, u32); PATCHES],
    bytes: [u8; PATCH_BYTES],
}

impl SharedCase {
    /// Copies `case` in. Panics if it has too many patches: a mistake of the generator.
    pub(super) fn put(&mut self, case: &Case) {
        self.registers = case.registers;
        assert!(case.patches.len() <= PATCHES, "{} patches", case.patches.len());
        self.patches = case.patches.len() as u32;
        let mut at = 0;
        for (slot, patch) in self.patch.iter_mut().zip(&case.patches) {
            *slot = (patch.address, patch.bytes.len() as u32);
            self.bytes[at..at + patch.bytes.len()].copy_from_slice(&patch.bytes);
            at += patch.bytes.len();
        }
    }

    /// Address and bytes of each patch.
    pub(super) fn patches(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut at = 0;
        self.patch[..self.patches as usize].iter().map(move |&(address, len)| {
            at += len as usize;
            (address, &self.bytes[at - len as usize..at])
        })
    }
}

/// Values of [`SharedOutcome::kind`].
pub(super) mod kind {
    pub(in super::super) const EXIT: u32 = 1;
    pub(in super::super) const FAULT: u32 = 2;
    pub(in super::super) const TIMEOUT: u32 = 3;
}

#[repr(C)]
pub(super) struct SharedOutcome {
    pub(super) kind: u32,
    /// Exit number or vector.
    pub(super) number: u32,
    pub(super) error: u64,
    pub(super) cr2: u64,
    pub(super) registers: Registers,
    pub(super) chunks: u32,
    pub(super) chunk: [Chunk; MAX_CHUNKS],
}

impl SharedOutcome {
    pub(super) fn get(&self) -> Outcome {
        let end = match self.kind {
            kind::EXIT => End::Exit(self.number),
            kind::FAULT => End::Fault { vector: self.number, error: self.error, cr2: self.cr2 },
            _ => End::Timeout,
        };
        Outcome { end, registers: self.registers, memory: self.chunk[..self.chunks as usize].to_vec() }
    }
}

#[repr(C)]
pub(super) struct Shared {
    /// First case of the batch the child is to run, and one past the last.
    pub(super) first: u32,
    pub(super) end: u32,
    /// Case the child is at.
    pub(super) current: AtomicU32,
    pub(super) cases: [SharedCase; BATCH],
    pub(super) outcomes: [SharedOutcome; BATCH],
}
