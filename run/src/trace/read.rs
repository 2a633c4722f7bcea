//! Reading a trace, whole or torn.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use rewind_platform::record::RecordHeader;

use super::{
    RECORD_HEADER, Record,
    frame::{self, FILE_HEADER, FRAME_HEADER, Frame},
};

/// Why a trace could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The host refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The host's error.
        source: io::Error,
    },
    /// Not a trace.
    #[error("{0} is not a Rewind trace")]
    Foreign(PathBuf),
    /// Of another version.
    #[error("{path}: trace format version {found}; this program reads version {known}")]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// A frame in the middle does not match its check.
    #[error("{path} is damaged at byte {at} ({what}); record the run again with --again, or remove it")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where the frame begins.
        at: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// A trace file, its frames known. Opening reads headers only.
pub struct TraceReader {
    file: File,
    path: PathBuf,
    pub(super) frames: Vec<Frame>,
    torn: bool,
}

impl TraceReader {
    /// Opens the trace at `path`. A torn tail (a recorder that died) is dropped.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let mut reader = TraceReader { file, path: path.to_owned(), frames: Vec::new(), torn: false };
        if len < FILE_HEADER {
            // Died before the header was out: an empty trace.
            reader.torn = true;
            return Ok(reader);
        }
        let mut header = [0; FILE_HEADER as usize];
        reader.file.read_exact_at(&mut header, 0).map_err(io)?;
        if header[..8] != frame::MAGIC {
            return Err(TraceError::Foreign(path.to_owned()));
        }
        if header != frame::file_header() {
            let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
            return Err(TraceError::Version { path: path.to_owned(), found, known: frame::VERSION });
        }
        reader.find_frames(len)?;
        Ok(reader)
    }

    fn find_frames(&mut self, len: u64) -> Result<(), TraceError> {
        let mut at = FILE_HEADER;
        while at < len {
            let mut header = [0; FRAME_HEADER];
            if len - at < FRAME_HEADER as u64 {
                self.torn = true;
                break;
            }
            self.read_at(&mut header, at)?;
            let expected = self.records();
            let frame =
                Frame::decode(at, &header).filter(|f| f.body().end <= len && f.first_record == expected);
            let Some(frame) = frame else {
                self.torn = true;
                break;
            };
            at = frame.body().end;
            self.frames.push(frame);
        }
        // Only the last frame can be torn inside (its length is right, its bytes are not): check it now.
        if let Some(&last) = self.frames.last()
            && !self.check(&last)?
        {
            self.frames.pop();
            self.torn = true;
        }
        Ok(())
    }

    fn check(&self, frame: &Frame) -> Result<bool, TraceError> {
        let mut stored = vec![0; frame.stored as usize];
        self.read_at(&mut stored, frame.body().start)?;
        Ok(frame.checksum(&stored) == frame.check)
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> Result<(), TraceError> {
        self.file.read_exact_at(out, at).map_err(|source| TraceError::Io { path: self.path.clone(), source })
    }

    /// Records in whole frames.
    pub fn records(&self) -> u64 {
        self.frames.last().map_or(0, |frame| frame.first_record + u64::from(frame.records))
    }

    /// Was a torn tail dropped?
    pub fn torn(&self) -> bool {
        self.torn
    }

    /// Step of the last record.
    pub fn last_step(&self) -> u64 {
        self.frames.last().map_or(0, |frame| frame.steps.1)
    }

    /// All records.
    pub fn iter(&self) -> Records<'_> {
        self.from_record(0)
    }

    /// Records from number `first` on.
    pub fn from_record(&self, first: u64) -> Records<'_> {
        let frame = self.frames.partition_point(|f| f.first_record + u64::from(f.records) <= first);
        let skip = self.frames.get(frame).map_or(0, |f| first.saturating_sub(f.first_record));
        Records { trace: self, frame, bytes: Vec::new(), at: 0, skip, below: 0, failed: false }
    }

    /// Records whose step is at least `step`.
    pub fn from_step(&self, step: u64) -> Records<'_> {
        let frame = self.frames.partition_point(|f| f.steps.1 < step);
        Records { trace: self, frame, bytes: Vec::new(), at: 0, skip: 0, below: step, failed: false }
    }

    fn load(&self, frame: &Frame) -> Result<Vec<u8>, TraceError> {
        let damaged = |what| TraceError::Damaged { path: self.path.clone(), at: frame.at, what };
        let mut stored = vec![0; frame.stored as usize];
        self.read_at(&mut stored, frame.body().start)?;
        if frame.checksum(&stored) != frame.check {
            return Err(damaged("its checksum does not match"));
        }
        let raw = zstd::bulk::decompress(&stored, frame.raw as usize)
            .map_err(|_| damaged("it does not decompress"))?;
        if raw.len() != frame.raw as usize {
            return Err(damaged("its length does not match"));
        }
        Ok(raw)
    }
}

/// Records of a trace, in order.
pub struct Records<'a> {
    trace: &'a TraceReader,
    frame: usize,
    bytes: Vec<u8>,
    at: usize,
    skip: u64,
    below: u64,
    failed: bool,
}

impl Records<'_> {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if self.at == self.bytes.len() {
                let Some(frame) = self.trace.frames.get(self.frame) else { return Ok(None) };
                self.bytes = self.trace.load(frame)?;
                self.at = 0;
                self.frame += 1;
            }
            let damaged = || TraceError::Damaged {
                path: self.trace.path.clone(),
                at: self.trace.frames[self.frame - 1].at,
                what: "a record's length is wrong",
            };
            let rest = &self.bytes[self.at..];
            let header = rest.get(..RECORD_HEADER).ok_or_else(damaged)?;
            let header: RecordHeader = bytemuck::pod_read_unaligned(header);
            let (len, payload) = (header.len as usize, header.payload_len as usize);
            let fits = len.is_multiple_of(8)
                && len <= rest.len()
                && payload.checked_add(RECORD_HEADER).is_some_and(|need| need <= len);
            if !fits {
                return Err(damaged());
            }
            let record = Record { header, payload: rest[RECORD_HEADER..RECORD_HEADER + payload].to_vec() };
            self.at += len;
            if self.skip > 0 {
                self.skip -= 1;
            } else if header.step >= self.below {
                return Ok(Some(record));
            }
        }
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.next_record().transpose();
        self.failed = matches!(next, Some(Err(_)));
        next
    }
}
