//! Writing a trace.

use std::path::Path;

use rewind_platform::record::{REC_RICH_FIRST, RecordHeader};

use super::{
    RECORD_HEADER, TraceHasher,
    frame::{self, FRAME_TARGET, Frame},
    normal,
};
use crate::{
    durable::{Appender, WriteError},
    spec::Content,
};

/// Appends records to a new trace file.
pub struct TraceWriter {
    file: Appender,
    gathered: Vec<u8>,
    in_frame: u32,
    steps: (u64, u64),
    records: u64,
    hasher: TraceHasher,
    compressor: zstd::bulk::Compressor<'static>,
}

impl TraceWriter {
    /// Begins the trace of the run in `dir`, dropping what was there.
    pub fn create(dir: &Path) -> Result<Self, WriteError> {
        Self::create_after(dir, 0, TraceHasher::default())
    }

    /// Begins the own part of a fork's trace, after `records` records of its parent's with the hash state
    /// `hasher`.
    pub fn create_after(dir: &Path, records: u64, hasher: TraceHasher) -> Result<Self, WriteError> {
        let mut file = Appender::open(&dir.join("trace"), Some(0))?;
        file.append(&frame::file_header())?;
        Ok(TraceWriter {
            file,
            gathered: Vec::with_capacity(FRAME_TARGET * 2),
            in_frame: 0,
            steps: (0, 0),
            records,
            hasher,
            // Only fails without memory, as any allocation does.
            compressor: zstd::bulk::Compressor::new(1).expect("a zstd context"),
        })
    }

    /// Adds a record. Rich kinds are not kept: replaying gives them again.
    pub fn add(&mut self, header: &RecordHeader, payload: &[u8]) -> Result<(), WriteError> {
        if header.kind >= REC_RICH_FIRST {
            return Ok(());
        }
        self.hasher.add(header, payload);
        let header = normal(header, payload);
        if self.in_frame == 0 {
            self.steps.0 = header.step;
        }
        self.steps.1 = header.step;
        self.in_frame += 1;
        self.records += 1;
        self.gathered.extend_from_slice(bytemuck::bytes_of(&header));
        self.gathered.extend_from_slice(payload);
        self.gathered.resize(self.gathered.len().next_multiple_of(8), 0);
        debug_assert!(self.gathered.len().is_multiple_of(8) && RECORD_HEADER.is_multiple_of(8));
        if self.gathered.len() >= FRAME_TARGET { self.flush() } else { Ok(()) }
    }

    /// Writes what is gathered, so that readers see it.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        if self.in_frame == 0 {
            return Ok(());
        }
        let stored = self.compressor.compress(&self.gathered).expect("zstd compresses to a sized buffer");
        let mut frame = Frame {
            at: self.file.len(),
            raw: self.gathered.len() as u32,
            stored: stored.len() as u32,
            first_record: self.records - u64::from(self.in_frame),
            records: self.in_frame,
            steps: self.steps,
            check: [0; 16],
        };
        frame.check = frame.checksum(&stored);
        let mut bytes = frame.encode().to_vec();
        bytes.extend_from_slice(&stored);
        self.file.append(&bytes)?;
        self.gathered.clear();
        self.in_frame = 0;
        Ok(())
    }

    /// Writes what is gathered and waits until all of it is on the disk.
    pub fn sync(&mut self) -> Result<(), WriteError> {
        self.flush()?;
        self.file.sync()
    }

    /// Records of the whole trace so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Hash of them.
    pub fn hash(&self) -> Content {
        self.hasher.finish()
    }

    /// Bytes written to the file.
    pub fn file_len(&self) -> u64 {
        self.file.len()
    }
}
