//! The loopback interface.

use std::{
    io,
    os::fd::{AsFd, FromRawFd, OwnedFd},
};

use crate::sys;

/// `struct ifreq` as SIOCGIFFLAGS and SIOCSIFFLAGS use it (40 bytes on x86-64).
#[repr(C)]
struct InterfaceFlags {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

/// Brings `lo` up; the kernel gives it 127.0.0.1 and ::1.
pub(crate) fn loopback_up() -> Result<(), String> {
    up().map_err(|e| format!("cannot bring the loopback interface up: {e}"))
}

fn up() -> io::Result<()> {
    // SAFETY: no memory is touched.
    let fd = sys::check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: a descriptor that was just made and is nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut request = InterfaceFlags { name: [0; 16], flags: 0, rest: [0; 22] };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: InterfaceFlags is ifreq for these two requests.
    unsafe { sys::ioctl_pointer(socket.as_fd(), libc::SIOCGIFFLAGS, &mut request) }?;
    request.flags |= libc::IFF_UP as i16;
    // SAFETY: as above.
    unsafe { sys::ioctl_pointer(socket.as_fd(), libc::SIOCSIFFLAGS, &mut request) }.map(drop)
}
