//! System calls that std does not wrap.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

/// The calling process's id.
pub(crate) fn pid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::getpid() }
}

/// A system call's result as std has errors.
pub(crate) fn check(result: i32) -> io::Result<i32> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// mount(2). `kind` and `options` may be empty.
pub(crate) fn mount(
    source: &CStr,
    target: &CStr,
    kind: &CStr,
    flags: libc::c_ulong,
    options: &CStr,
) -> io::Result<()> {
    // SAFETY: all pointers are strings that outlive the call.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    })
    .map(drop)
}

/// chroot(2).
pub(crate) fn chroot(path: &CStr) -> io::Result<()> {
    // SAFETY: a string that outlives the call.
    check(unsafe { libc::chroot(path.as_ptr()) }).map(drop)
}

/// mknod(2)'s mode bits after the umask was cleared.
pub(crate) fn clear_umask(mask: libc::mode_t) {
    // SAFETY: changes one number of the process.
    unsafe { libc::umask(mask) };
}

/// open(2), close-on-exec.
pub(crate) fn open(path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: a string that outlives the call; no O_CREAT, so no mode is read.
    let fd = check(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })?;
    // SAFETY: a descriptor that was just made and is nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// ioctl(2) with a number as argument.
pub(crate) fn ioctl_number(fd: BorrowedFd<'_>, request: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: callers use requests whose argument is a number, so the kernel touches no memory of ours.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, argument) })
}

/// ioctl(2) with a pointer to `argument`, which must be the type `request` is defined for.
///
/// # Safety
/// `T` must be laid out as the kernel reads and writes it for this request, pointers inside valid for it.
pub(crate) unsafe fn ioctl_pointer<T>(fd: BorrowedFd<'_>, request: u64, argument: &mut T) -> io::Result<i32> {
    // SAFETY: the caller's promise.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, ptr::from_mut(argument)) })
}

/// Sets the wall clock to `seconds` since 1970.
pub(crate) fn set_wall_clock(seconds: i64) -> io::Result<()> {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    // SAFETY: points to a timespec.
    check(unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) }).map(drop)
}

/// `struct rand_pool_info` with 32 bytes.
#[repr(C)]
struct Entropy {
    entropy_count: i32,
    buf_size: i32,
    buf: [u8; 32],
}

/// `RNDADDENTROPY` (drivers/char/random.c): `_IOW('R', 3, int[2])`.
const ADD_ENTROPY: u64 = 0x4008_5203;
/// `RNDRESEEDCRNG`: `_IO('R', 7)`.
const RESEED: u64 = 0x5207;

/// Adds `seed` to the kernel's generator and makes it effective at once.
pub(crate) fn seed_generator(seed: [u8; 32]) -> io::Result<()> {
    use std::os::fd::AsFd as _;
    let device = open(c"/dev/urandom", libc::O_RDWR)?;
    let mut entropy = Entropy { entropy_count: 256, buf_size: 32, buf: seed };
    // SAFETY: `Entropy` is rand_pool_info with its flexible array at 32 bytes, as buf_size says.
    unsafe { ioctl_pointer(device.as_fd(), ADD_ENTROPY, &mut entropy) }?;
    ioctl_number(device.as_fd(), RESEED, 0).map(drop)
}

/// sethostname(2).
pub(crate) fn set_host_name(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length of one string.
    check(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }).map(drop)
}

/// Open files as a usual login has them: 1,024, which a program may raise to 1,048,576.
pub(crate) fn raise_open_file_limit() -> Result<(), String> {
    let limit = libc::rlimit { rlim_cur: 1024, rlim_max: 1 << 20 };
    // SAFETY: points to an rlimit.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) })
        .map(drop)
        .map_err(|e| format!("cannot set the limit of open files: {e}"))
}

/// The resolution of timers: clock_getres(2), asked of the kernel itself, as the vDSO's answer is a tick old.
pub(crate) fn timer_resolution() -> Result<std::time::Duration, String> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: points to a timespec.
    let result = unsafe { libc::syscall(libc::SYS_clock_getres, libc::CLOCK_MONOTONIC, &raw mut time) };
    check(result as i32).map_err(|e| format!("cannot ask for the timers' resolution: {e}"))?;
    Ok(std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Powers the machine off. Does not return.
pub(crate) fn power_off() -> ! {
    // SAFETY: no memory is touched; the machine ends inside.
    unsafe { libc::reboot(libc::RB_POWER_OFF) };
    // Only a kernel without power off gets here; PID 1 must not return.
    loop {
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
    }
}
