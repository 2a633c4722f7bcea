//! The trace of a run: its default-level records in order, in compressed frames that a step finds quickly.
//!
//! A frame carries its own length and check, so a torn tail is recognised; it says which steps and records it
//! holds, so a reader skips to a step without decompressing what comes before.

use rewind_platform::record::{REC_RICH_FIRST, RecordHeader};

use crate::spec::Content;

mod frame;
mod read;
mod write;

pub use frame::{MAGIC, VERSION};
pub use read::{Records, TraceError, TraceReader, prefix_path};
pub use write::TraceWriter;

/// One record, as kept: `header.len` counts header, payload and padding in the file, not in the guest's ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What, when, who.
    pub header: RecordHeader,
    /// The rest, without padding.
    pub payload: Vec<u8>,
}

impl Record {
    /// A record from its parts; the header's lengths are set from the payload.
    pub fn new(header: &RecordHeader, payload: &[u8]) -> Self {
        Record { header: normal(header, payload), payload: payload.to_vec() }
    }

    /// Is it one of the kinds every run records (and compares)?
    pub fn is_default(&self) -> bool {
        self.header.kind < REC_RICH_FIRST
    }
}

/// Bytes of the largest record: 16 KiB by the contract.
pub(crate) const RECORD_LIMIT: usize = rewind_platform::record::RECORD_MAX as usize;
pub(crate) const RECORD_HEADER: usize = size_of::<RecordHeader>();

/// The header with lengths that depend on the payload only.
fn normal(header: &RecordHeader, payload: &[u8]) -> RecordHeader {
    let len = (RECORD_HEADER + payload.len()).next_multiple_of(8) as u32;
    RecordHeader { len, payload_len: payload.len() as u32, ..*header }
}

/// BLAKE3 over every default record in order: all header fields but `len` (which counts padding), then the
/// payload. The same on both engines and for stopped and unstopped runs.
#[derive(Clone, Debug)]
pub struct TraceHasher(blake3::Hasher);

impl Default for TraceHasher {
    fn default() -> Self {
        TraceHasher(blake3::Hasher::new_derive_key("rewind trace 1"))
    }
}

impl TraceHasher {
    /// Adds a record; rich kinds do not count.
    pub fn add(&mut self, header: &RecordHeader, payload: &[u8]) {
        if header.kind < REC_RICH_FIRST {
            let header = RecordHeader { len: 0, payload_len: payload.len() as u32, ..*header };
            self.0.update(bytemuck::bytes_of(&header));
            self.0.update(payload);
        }
    }

    /// The hash so far.
    pub fn finish(&self) -> Content {
        Content(*self.0.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests;
