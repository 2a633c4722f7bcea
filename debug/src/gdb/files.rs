//! Files gdb reads from the target: those of the run's root, those the guest made, and `/proc/PID/maps`.

use std::fmt::Write as _;

use gdbstub::target::ext::host_io::{
    FsKind, HostIo, HostIoClose, HostIoCloseOps, HostIoErrno, HostIoError, HostIoFstat, HostIoFstatOps,
    HostIoOpen, HostIoOpenFlags, HostIoOpenMode, HostIoOpenOps, HostIoPread, HostIoPreadOps, HostIoReadlink,
    HostIoReadlinkOps, HostIoResult, HostIoSetfs, HostIoSetfsOps, HostIoStat,
};

use super::session::Session;

/// Most files open at once.
const MOST_OPEN: usize = 256;

impl HostIo for Session<'_> {
    fn support_open(&mut self) -> Option<HostIoOpenOps<'_, Self>> {
        Some(self)
    }
    fn support_close(&mut self) -> Option<HostIoCloseOps<'_, Self>> {
        Some(self)
    }
    fn support_pread(&mut self) -> Option<HostIoPreadOps<'_, Self>> {
        Some(self)
    }
    fn support_fstat(&mut self) -> Option<HostIoFstatOps<'_, Self>> {
        Some(self)
    }
    fn support_readlink(&mut self) -> Option<HostIoReadlinkOps<'_, Self>> {
        Some(self)
    }
    fn support_setfs(&mut self) -> Option<HostIoSetfsOps<'_, Self>> {
        Some(self)
    }
}

fn errno<T>(errno: HostIoErrno) -> Result<T, HostIoError<super::target::Never>> {
    Err(HostIoError::Errno(errno))
}

impl HostIoOpen for Session<'_> {
    fn open(&mut self, name: &[u8], flags: HostIoOpenFlags, _: HostIoOpenMode) -> HostIoResult<u32, Self> {
        if flags.intersects(HostIoOpenFlags::O_WRONLY | HostIoOpenFlags::O_RDWR) {
            return errno(HostIoErrno::EROFS);
        }
        if self.open.len() >= MOST_OPEN {
            return errno(HostIoErrno::EMFILE);
        }
        let proc = format!("/proc/{}/", self.travel.pid());
        let content = match name.strip_prefix(proc.as_bytes()) {
            Some(b"maps") => Some(self.maps_text().into_bytes()),
            Some(_) => None,
            None => self.content(name),
        };
        let Some(content) = content else { return errno(HostIoErrno::ENOENT) };
        let fd = (0..).find(|fd| !self.open.contains_key(fd)).unwrap_or(u32::MAX);
        self.open.insert(fd, content);
        Ok(fd)
    }
}

impl HostIoClose for Session<'_> {
    fn close(&mut self, fd: u32) -> HostIoResult<(), Self> {
        match self.open.remove(&fd) {
            Some(_) => Ok(()),
            None => errno(HostIoErrno::EBADF),
        }
    }
}

/// Copies what `out` has room for, from `offset` on.
pub(super) fn part(content: &[u8], offset: u64, count: usize, out: &mut [u8]) -> usize {
    let from = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
    let length = count.min(out.len()).min(content.len() - from);
    out[..length].copy_from_slice(&content[from..from + length]);
    length
}

impl HostIoPread for Session<'_> {
    fn pread(&mut self, fd: u32, count: usize, offset: u64, buf: &mut [u8]) -> HostIoResult<usize, Self> {
        match self.open.get(&fd) {
            Some(content) => Ok(part(content, offset, count, buf)),
            None => errno(HostIoErrno::EBADF),
        }
    }
}

impl HostIoFstat for Session<'_> {
    fn fstat(&mut self, fd: u32) -> HostIoResult<HostIoStat, Self> {
        let Some(content) = self.open.get(&fd) else { return errno(HostIoErrno::EBADF) };
        let size = content.len() as u64;
        Ok(HostIoStat {
            st_dev: 0,
            st_ino: 0,
            st_mode: HostIoOpenMode::S_IFREG | HostIoOpenMode::S_IRUSR,
            st_nlink: 1,
            st_uid: 0,
            st_gid: 0,
            st_rdev: 0,
            st_size: size,
            st_blksize: 4096,
            st_blocks: size.div_ceil(512),
            st_atime: 0,
            st_mtime: 0,
            st_ctime: 0,
        })
    }
}

impl HostIoReadlink for Session<'_> {
    fn readlink(&mut self, name: &[u8], buf: &mut [u8]) -> HostIoResult<usize, Self> {
        let exe = format!("/proc/{}/exe", self.travel.pid());
        if name != exe.as_bytes() {
            return errno(HostIoErrno::EINVAL);
        }
        Ok(part(&self.program.executable, 0, buf.len(), buf))
    }
}

impl HostIoSetfs for Session<'_> {
    fn setfs(&mut self, _: FsKind) -> HostIoResult<(), Self> {
        Ok(())
    }
}

impl Session<'_> {
    /// As /proc/PID/maps has it, without the device.
    fn maps_text(&self) -> String {
        let mut text = String::new();
        for mapping in &self.program.mappings {
            let path = mapping.path.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
            let _ = writeln!(
                text,
                "{:x}-{:x} {} {:08x} 00:00 0 {:>26}{}",
                mapping.start,
                mapping.end,
                mapping.permissions(),
                if mapping.file.is_some() { mapping.offset } else { 0 },
                "",
                path.replace('\n', "\\012")
            );
        }
        text
    }
}
