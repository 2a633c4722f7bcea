//! The job's pseudo-terminal.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
};

use crate::sys;

/// Both ends; the master does not block.
pub(crate) struct Terminal {
    pub(crate) master: OwnedFd,
    pub(crate) slave: OwnedFd,
}

/// A new terminal of 80 columns and 24 lines.
pub(crate) fn open() -> Result<Terminal, String> {
    pair().map_err(|e| format!("cannot make a pseudo-terminal: {e}"))
}

fn pair() -> io::Result<Terminal> {
    let master = sys::open(c"/dev/pts/ptmx", libc::O_RDWR | libc::O_NOCTTY | libc::O_NONBLOCK)?;
    let mut unlocked: i32 = 0;
    // SAFETY: the request reads one int.
    unsafe { sys::ioctl_pointer(master.as_fd(), libc::TIOCSPTLCK, &mut unlocked) }?;
    let mut number: u32 = 0;
    // SAFETY: the request writes one unsigned int.
    unsafe { sys::ioctl_pointer(master.as_fd(), libc::TIOCGPTN, &mut number) }?;
    let mut size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads a winsize.
    unsafe { sys::ioctl_pointer(master.as_fd(), libc::TIOCSWINSZ, &mut size) }?;
    let path = CString::new(format!("/dev/pts/{number}"))?;
    let slave = sys::open(&path, libc::O_RDWR | libc::O_NOCTTY)?;
    Ok(Terminal { master, slave })
}
