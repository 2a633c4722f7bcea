//! `/dev/rewind`: the calls that only init makes.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rewind_platform::{
    device::{IOCTL_ATTACH, IOCTL_CORES, IOCTL_JOB, IOCTL_REPORT, IOCTL_ROOT, JobBuffer, ReportBuffer},
    job::Job,
    layout::JOB_CAPACITY,
};

use crate::sys;

/// The open device. Closed by exec.
pub(crate) struct Device(OwnedFd);

impl Device {
    pub(crate) fn open() -> Result<Device, String> {
        sys::open(c"/dev/rewind", libc::O_RDWR)
            .map(Device)
            .map_err(|e| format!("cannot open /dev/rewind: {e}; is this the project's kernel?"))
    }

    /// Asks for the job. The machine may be captured inside, and go on long after or many times.
    pub(crate) fn job(&self) -> Result<Job, String> {
        // Touched before the call, so that no page fault follows it: the buffer is in the boot keyframe.
        let mut buffer = vec![1_u8; JOB_CAPACITY as usize];
        let mut argument = JobBuffer { ptr: buffer.as_mut_ptr() as u64, len: buffer.len() as u64 };
        // SAFETY: JobBuffer is this request's argument; pointer and length are of `buffer`, which is alive.
        unsafe { sys::ioctl_pointer(self.0.as_fd(), IOCTL_JOB, &mut argument) }
            .map_err(|e| format!("cannot get the job: {e}"))?;
        let bytes = buffer.get(..argument.len as usize).ok_or("the job is longer than its area")?;
        postcard::from_bytes(bytes)
            .map_err(|e| format!("cannot understand the job: {e}; rebuild with `make build`"))
    }

    /// Creates `/dev/rwblk<image>`.
    pub(crate) fn attach(&self, image: u32) -> io::Result<()> {
        sys::ioctl_number(self.0.as_fd(), IOCTL_ATTACH, image.into()).map(drop)
    }

    /// Reports `cores` cores from now on.
    pub(crate) fn set_cores(&self, cores: u32) -> io::Result<()> {
        sys::ioctl_number(self.0.as_fd(), IOCTL_CORES, cores.into()).map(drop)
    }

    /// Makes the calling process the job's first. It can use this device no more.
    pub(crate) fn become_root(&self) -> io::Result<()> {
        sys::ioctl_number(self.0.as_fd(), IOCTL_ROOT, 0).map(drop)
    }

    /// Writes a report record of `kind` (`REPORT_*`). What does not fit one record is cut.
    pub(crate) fn report(&self, kind: u16, payload: &[u8]) -> io::Result<()> {
        let payload = &payload[..payload.len().min(REPORT_MAX)];
        let mut argument =
            ReportBuffer { ptr: payload.as_ptr() as u64, len: payload.len() as u64, kind: kind.into() };
        // SAFETY: ReportBuffer is this request's argument; the kernel only reads the payload.
        unsafe { sys::ioctl_pointer(self.0.as_fd(), IOCTL_REPORT, &mut argument) }.map(drop)
    }
}

/// Bytes of a report: the longest record less its header.
const REPORT_MAX: usize =
    rewind_platform::record::RECORD_MAX as usize - size_of::<rewind_platform::record::RecordHeader>();
