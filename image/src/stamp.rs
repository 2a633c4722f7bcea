//! How a host file's version is known, and opening host files without being led elsewhere.

use crate::format::Mtime;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags, ResolveFlags, Stat};
use std::{fs::File, io, os::unix::ffi::OsStrExt, path::Path};

/// A version of a host file. Content cannot change without the stamp changing, because `ctime` cannot be set by a
/// program; except within one tick of the clock, which [`crate::hashes`] and [`crate::root`] rule out by waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp {
    /// Device of the file system.
    pub dev: u64,
    /// Inode number on it.
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of content, as a program may set it.
    pub mtime: Mtime,
    /// Last change of content or metadata, kept by the kernel.
    pub ctime: Mtime,
}

impl Stamp {
    pub(crate) fn of(stat: &Stat) -> Stamp {
        Stamp {
            dev: stat.st_dev,
            ino: stat.st_ino,
            size: stat.st_size as u64,
            mtime: Mtime { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 },
            ctime: Mtime { seconds: stat.st_ctime, nanos: stat.st_ctime_nsec as u32 },
        }
    }
}

/// Opens `path` below `dir` for reading. No component may be a symbolic link or lead out of `dir`, also not by a
/// mount's magic link, and nothing is waited for (a FIFO put in the file's place does not block).
pub(crate) fn open_beneath(dir: impl AsFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    // openat2 refuses flags that mean nothing with O_PATH.
    let calm = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NONBLOCK | OFlags::NOCTTY };
    rustix::fs::openat2(
        dir,
        Path::new(std::ffi::OsStr::from_bytes(path)),
        flags | calm | OFlags::CLOEXEC | OFlags::NOFOLLOW,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )
}

/// Opens the directory a caller named; links on the way to it are the caller's own.
pub(crate) fn open_top(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// The version of an open file.
pub(crate) fn stamp_of(file: impl AsFd) -> io::Result<Stamp> {
    Ok(Stamp::of(&rustix::fs::fstat(file)?))
}

/// The clock that `ctime` is at least as late as: a file written from now on has this time or a later one. Decides what
/// may be kept or trusted, and goes nowhere else.
pub(crate) fn coarse_now() -> Mtime {
    clock(rustix::time::ClockId::RealtimeCoarse)
}

/// A moment that every file written so far has an earlier time than. Waits for the coarse clock to pass the exact one
/// (a tick, 10 ms at most, or longer where ticks are late): newer kernels stamp files with either.
pub(crate) fn settled_now() -> Mtime {
    let exact = clock(rustix::time::ClockId::Realtime);
    loop {
        let coarse = coarse_now();
        if coarse > exact {
            return coarse;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn clock(id: rustix::time::ClockId) -> Mtime {
    let now = rustix::time::clock_gettime(id);
    Mtime { seconds: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// Reads exactly `out` from `offset`; the end of the file before that is `Ok(false)`.
pub(crate) fn read_fully(file: &File, out: &mut [u8], offset: u64) -> io::Result<bool> {
    match std::os::unix::fs::FileExt::read_exact_at(file, out, offset) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
