//! The frame of the trace file.

use std::ops::Range;

/// First 8 bytes of a trace file.
pub const MAGIC: [u8; 8] = *b"RWDTRAC\0";
/// The format's version.
pub const VERSION: u32 = 1;
/// Bytes of the file's header: magic, version (u32), zero (u32).
pub(super) const FILE_HEADER: u64 = 16;
/// Bytes of a frame's header.
pub(super) const FRAME_HEADER: usize = 64;
/// A frame is closed once it holds this many bytes of records.
pub(super) const FRAME_TARGET: usize = 64 << 10;
/// No frame holds more (a hostile file cannot make a reader allocate more).
pub(super) const FRAME_LIMIT: usize = FRAME_TARGET + super::RECORD_LIMIT;

/// What a frame's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Where its header begins in the file.
    pub(super) at: u64,
    /// Bytes of records.
    pub(super) raw: u32,
    /// Bytes stored (zstd).
    pub(super) stored: u32,
    /// Number of the first record in the run.
    pub(super) first_record: u64,
    /// Records in it.
    pub(super) records: u32,
    /// Step of its first and of its last record (records are in step order).
    pub(super) steps: (u64, u64),
    /// First 16 bytes of BLAKE3 of the header's other fields and the stored bytes.
    pub(super) check: [u8; 16],
}

pub(super) fn file_header() -> [u8; FILE_HEADER as usize] {
    let mut out = [0; FILE_HEADER as usize];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out
}

const FRAME_MAGIC: [u8; 4] = *b"FRAM";

impl Frame {
    fn fields(&self) -> [u8; FRAME_HEADER - 16] {
        let mut out = [0; FRAME_HEADER - 16];
        out[..4].copy_from_slice(&FRAME_MAGIC);
        out[4..8].copy_from_slice(&self.raw.to_le_bytes());
        out[8..12].copy_from_slice(&self.stored.to_le_bytes());
        out[12..16].copy_from_slice(&self.records.to_le_bytes());
        out[16..24].copy_from_slice(&self.first_record.to_le_bytes());
        out[24..32].copy_from_slice(&self.steps.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.steps.1.to_le_bytes());
        out
    }

    /// The check its header should have over these stored bytes.
    pub(super) fn checksum(&self, stored: &[u8]) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.fields());
        hasher.update(stored);
        let mut out = [0; 16];
        out.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        out
    }

    pub(super) fn encode(&self) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[..FRAME_HEADER - 16].copy_from_slice(&self.fields());
        out[FRAME_HEADER - 16..].copy_from_slice(&self.check);
        out
    }

    /// The header at `at`, if these bytes can be one.
    pub(super) fn decode(at: u64, bytes: &[u8; FRAME_HEADER]) -> Option<Frame> {
        let word = |i: usize| u32::from_le_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let long = |i: usize| u64::from(word(i)) | u64::from(word(i + 4)) << 32;
        let mut check = [0; 16];
        check.copy_from_slice(&bytes[FRAME_HEADER - 16..]);
        let frame = Frame {
            at,
            raw: word(4),
            stored: word(8),
            records: word(12),
            first_record: long(16),
            steps: (long(24), long(32)),
            check,
        };
        let plausible = bytes[..4] == FRAME_MAGIC
            && (1..=FRAME_LIMIT as u32).contains(&frame.raw)
            && (1..=2 * FRAME_LIMIT as u32).contains(&frame.stored)
            && frame.records > 0
            && frame.first_record.checked_add(u64::from(frame.records)).is_some();
        plausible.then_some(frame)
    }

    /// Where its stored bytes lie.
    pub(super) fn body(&self) -> Range<u64> {
        let start = self.at + FRAME_HEADER as u64;
        start..start + u64::from(self.stored)
    }
}
