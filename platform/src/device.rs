//! The block port and `/dev/rewind`.
//!
//! Any program may write JSON lines to `/dev/rewind`; each line is one record, longer ones are cut
//! ([`crate::record::FLAG_CUT`]). A line whose first key is `mark` (`{"mark": ...}`, blanks allowed before the
//! brace and the key) becomes [`crate::record::REC_MARK`], any other line [`crate::record::REC_PROPERTY`]. The kernel
//! does not look further: whether it is JSON is the reader's to judge.
//!
//! `/dev/rewind-out` and `/dev/rewind-err` are the job's descriptors 1 and 2: every write to them becomes
//! [`crate::record::REC_OUTPUT`] records. `/dev/rewind-in` reads the bytes of outside input; it cannot be opened (ENXIO) in a
//! machine without ([`crate::state::ST_INPUT_OPEN`]). They are character devices that are no terminals and cannot be sought.

/// Most segments of one block request.
pub const BLOCK_SEGMENTS: usize = 256;

/// Most images of one machine.
pub const BLOCK_IMAGES: u64 = 8;
/// Most cores [`IOCTL_CORES`] can report. They can only become more, and only before the job starts.
pub const CORES_MAX: u32 = 64;

/// One block request, in guest memory below 4 GiB, 16-byte aligned. The monitor writes `status` and, for
/// [`BLOCK_INFO`], `sector` = size of the image in 512-byte sectors.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockRequest {
    /// `BLOCK_*`.
    pub op: u32,
    /// Which image, from 0.
    pub image: u32,
    /// First sector (512 bytes each).
    pub sector: u64,
    /// Segments used.
    pub segments: u32,
    /// `BLOCK_OK` or an error, from the monitor.
    pub status: u32,
    /// Unused, zero.
    pub reserved: u64,
    /// Where the data goes.
    pub segment: [BlockSegment; BLOCK_SEGMENTS],
}

/// One piece of guest-physical memory.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockSegment {
    /// Guest-physical address.
    pub gpa: u64,
    /// Bytes, a multiple of 512.
    pub len: u64,
}

/// Ask for the size (attach).
pub const BLOCK_INFO: u32 = 0;
/// Read.
pub const BLOCK_READ: u32 = 1;
/// Success.
pub const BLOCK_OK: u32 = 0;
/// No such image.
pub const BLOCK_ABSENT: u32 = 1;
/// The image could not be read (the run ends with an error naming it).
pub const BLOCK_EIO: u32 = 2;

/// `/dev/rewind` ioctls (init only, type `'R'`): asks for the job; argument = pointer to [`JobBuffer`].
/// Encoded as `_IOWR('R', 1, struct { u64 ptr; u64 len; })`: on return `len` is the job's length.
pub const IOCTL_JOB: u64 = 0xc010_5201;
/// Attach image `arg` (`_IO('R', 2)`): creates `/dev/rwblk<arg>`.
pub const IOCTL_ATTACH: u64 = 0x5202;
/// The calling process becomes the job's first: name [`crate::control::THREAD_ROOT`], counters 0 (`_IO('R', 3)`).
pub const IOCTL_ROOT: u64 = 0x5203;
/// Report `arg` cores (`_IO('R', 4)`).
pub const IOCTL_CORES: u64 = 0x5204;
/// Write a report record: `_IOW('R', 5, struct { u64 ptr; u64 len; u64 kind; })`.
pub const IOCTL_REPORT: u64 = 0x4018_5205;

/// Argument of [`IOCTL_JOB`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct JobBuffer {
    /// User address of the buffer.
    pub ptr: u64,
    /// In: bytes of it. Out: bytes of the job.
    pub len: u64,
}

/// Argument of [`IOCTL_REPORT`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReportBuffer {
    /// User address of the payload.
    pub ptr: u64,
    /// Its bytes.
    pub len: u64,
    /// `REPORT_*`.
    pub kind: u64,
}
