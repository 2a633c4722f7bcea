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
    #[error("{0} is not a Rewind trace: it was overwritten; record the run again with --again, or remove it")]
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

/// A trace, its frames known. Opening reads headers only.
pub struct TraceReader {
    files: Vec<(PathBuf, File)>,
    pub(super) frames: Vec<Placed>,
    torn: bool,
}

/// A frame and the file it is in. A fork's own file cuts its parent's short, so `frame.records` may be less
/// than the file's frame holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub(super) file: usize,
    pub(super) frame: Frame,
    /// Records of it that belong to this trace.
    pub(super) records: u32,
}

impl Placed {
    fn end(&self) -> u64 {
        self.frame.first_record + u64::from(self.records)
    }
}

/// Where the trace of the run in `dir` that a fork of it begins with is kept: `trace.0`, `trace.1`, ... hold the
/// parent's files (hard links), `trace` the run's own records.
pub fn prefix_path(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("trace.{n}"))
}

impl TraceReader {
    /// Opens the trace of the run in `dir`. A torn tail (a recorder that died) is dropped.
    pub fn open(dir: &Path) -> Result<Self, TraceError> {
        let mut reader = TraceReader { files: Vec::new(), frames: Vec::new(), torn: false };
        loop {
            let path = prefix_path(dir, reader.files.len());
            if !path.exists() {
                break;
            }
            reader.add_file(&path)?;
        }
        reader.add_file(&dir.join("trace"))?;
        Ok(reader)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        let number = self.files.len();
        self.files.push((path.to_owned(), file));
        self.torn = false;
        if len < FILE_HEADER {
            // Died before the header was out: an empty trace.
            self.torn = true;
            return Ok(());
        }
        let mut header = [0; FILE_HEADER as usize];
        self.read_at(number, &mut header, 0)?;
        if header[..8] != frame::MAGIC {
            return Err(TraceError::Foreign(path.to_owned()));
        }
        if header != frame::file_header() {
            let found = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
            return Err(TraceError::Version { path: path.to_owned(), found, known: frame::VERSION });
        }
        self.find_frames(number, len)
    }

    fn find_frames(&mut self, number: usize, len: u64) -> Result<(), TraceError> {
        let mut at = FILE_HEADER;
        let mut first = true;
        while at < len {
            let mut header = [0; FRAME_HEADER];
            if len - at < FRAME_HEADER as u64 {
                self.torn = true;
                break;
            }
            self.read_at(number, &mut header, at)?;
            let Some(frame) = Frame::decode(at, &header).filter(|f| f.body().end <= len) else {
                self.torn = true;
                break;
            };
            if first {
                self.cut(frame.first_record);
                first = false;
            }
            if frame.first_record != self.records() {
                self.torn = true;
                break;
            }
            at = frame.body().end;
            self.frames.push(Placed { file: number, frame, records: frame.records });
        }
        // Only the last frame can be torn inside (its length is right, its bytes are not): check it now.
        if let Some(&last) = self.frames.last().filter(|last| last.file == number)
            && !self.check(&last)?
        {
            self.frames.pop();
            self.torn = true;
        }
        Ok(())
    }

    /// Is no whole frame in the run's own file?
    pub(crate) fn own_is_empty(&self) -> bool {
        self.frames.last().is_none_or(|last| last.file + 1 < self.files.len())
    }

    /// Forgets all records from number `from` on.
    pub(crate) fn cut(&mut self, from: u64) {
        self.frames.retain(|placed| placed.frame.first_record < from);
        if let Some(last) = self.frames.last_mut() {
            last.records = last.records.min((from - last.frame.first_record) as u32);
        }
    }

    fn check(&self, placed: &Placed) -> Result<bool, TraceError> {
        let mut stored = vec![0; placed.frame.stored as usize];
        self.read_at(placed.file, &mut stored, placed.frame.body().start)?;
        Ok(placed.frame.checksum(&stored) == placed.frame.check)
    }

    fn read_at(&self, number: usize, out: &mut [u8], at: u64) -> Result<(), TraceError> {
        let (path, file) = &self.files[number];
        file.read_exact_at(out, at).map_err(|source| TraceError::Io { path: path.clone(), source })
    }

    /// The files it is in, in order, with the run's own last.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Records in whole frames.
    pub fn records(&self) -> u64 {
        self.frames.last().map_or(0, Placed::end)
    }

    /// Was a torn tail dropped?
    pub fn torn(&self) -> bool {
        self.torn
    }

    /// Step of the last record.
    pub fn last_step(&self) -> u64 {
        self.frames.last().map_or(0, |placed| placed.frame.steps.1)
    }

    /// All records.
    pub fn iter(&self) -> Records<'_> {
        self.from_record(0)
    }

    /// Records from number `first` on.
    pub fn from_record(&self, first: u64) -> Records<'_> {
        let frame = self.frames.partition_point(|placed| placed.end() <= first);
        let skip = self.frames.get(frame).map_or(0, |placed| first.saturating_sub(placed.frame.first_record));
        Records { trace: self, frame, bytes: Vec::new(), at: 0, left: 0, skip, below: 0, failed: false }
    }

    /// Records whose step is at least `step`.
    pub fn from_step(&self, step: u64) -> Records<'_> {
        let frame = self.frames.partition_point(|placed| placed.frame.steps.1 < step);
        Records { trace: self, frame, bytes: Vec::new(), at: 0, left: 0, skip: 0, below: step, failed: false }
    }

    fn damaged(&self, placed: &Placed, what: &'static str) -> TraceError {
        TraceError::Damaged { path: self.files[placed.file].0.clone(), at: placed.frame.at, what }
    }

    fn load(&self, placed: &Placed) -> Result<Vec<u8>, TraceError> {
        let damaged = |what| self.damaged(placed, what);
        let frame = &placed.frame;
        let mut stored = vec![0; frame.stored as usize];
        self.read_at(placed.file, &mut stored, frame.body().start)?;
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
    /// Records of the loaded frame not yet given.
    left: u32,
    skip: u64,
    below: u64,
    failed: bool,
}

impl Records<'_> {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if self.left == 0 {
                let Some(frame) = self.trace.frames.get(self.frame) else { return Ok(None) };
                self.bytes = self.trace.load(frame)?;
                self.at = 0;
                self.left = frame.records;
                self.frame += 1;
                continue;
            }
            self.left -= 1;
            let damaged =
                || self.trace.damaged(&self.trace.frames[self.frame - 1], "a record's length is wrong");
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
