//! Runs cases on the host CPU: a forked child has the case's pages at their addresses, jumps in with all
//! registers set, and catches every signal. A child that dies names the case it was at and is replaced.

mod child;
mod shared;
mod trampoline;

use std::{ffi::c_int, io, ptr};

use self::shared::Shared;
use crate::{
    case::{Case, Outcome},
    layout::{IMAGE, background},
};

/// Cases given to [`Native::run`] at once at most.
pub const BATCH: usize = shared::BATCH;

/// The native executor.
pub struct Native {
    setup: child::Setup,
    pid: libc::pid_t,
    /// Parent's ends.
    go: c_int,
    done: c_int,
    running: usize,
}

/// A case that ended the child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// `wait` status.
    pub status: i32,
}

/// Outcome of one case natively.
pub type NativeResult = Result<Outcome, Crash>;

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn map(len: usize, fd: c_int) -> io::Result<*mut libc::c_void> {
    let flags = libc::MAP_SHARED | if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // SAFETY: a new mapping where the kernel likes.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(at) }
}

fn pipe() -> io::Result<[c_int; 2]> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok(ends)
}

/// May user mode set its FS and GS base (HWCAP2_FSGSBASE)? The trampoline needs it.
pub fn supported() -> bool {
    // SAFETY: reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & 2 != 0 }
}

impl Native {
    /// Starts the child.
    ///
    /// # Errors
    /// The host refuses memory, pipes or a process, or has no FSGSBASE for user mode.
    pub fn new() -> io::Result<Self> {
        if !supported() {
            return Err(io::Error::other("the host kernel does not let programs use WRFSBASE"));
        }
        let background = background();
        // SAFETY: the name is a constant string.
        let image_fd = check(unsafe { libc::memfd_create(c"soft-cpu-diff".as_ptr(), libc::MFD_CLOEXEC) })?;
        // SAFETY: a descriptor we just made.
        check(unsafe { libc::ftruncate(image_fd, IMAGE as i64) })?;
        let image: *mut u8 = map(IMAGE, image_fd)?.cast();
        let shared: *mut Shared = map(size_of::<Shared>(), -1)?.cast();
        let signal_stack_len = 256 << 10;
        let signal_stack = map(signal_stack_len, -1)?;
        let (go, done) = (pipe()?, pipe()?);
        let setup = child::Setup {
            shared,
            image_fd,
            image,
            background,
            signal_stack,
            signal_stack_len,
            go: go[0],
            done: done[1],
        };
        let mut native = Native { setup, pid: 0, go: go[1], done: done[0], running: 0 };
        native.spawn()?;
        Ok(native)
    }

    fn spawn(&mut self) -> io::Result<()> {
        // SAFETY: the image is IMAGE bytes long, and no child uses it now.
        unsafe {
            ptr::copy_nonoverlapping(self.setup.background.as_ptr(), self.setup.image, IMAGE);
        }
        // SAFETY: the child runs only `child::main`, which neither allocates nor takes locks.
        match check(unsafe { libc::fork() })? {
            // SAFETY: we are the fresh child.
            0 => unsafe { child::main(&self.setup) },
            pid => self.pid = pid,
        }
        Ok(())
    }

    /// Runs `cases` (at most [`BATCH`]), each from its own state.
    ///
    /// # Errors
    /// The host refuses a new child after a crash.
    pub fn run(&mut self, cases: &[Case]) -> io::Result<Vec<NativeResult>> {
        self.start(cases)?;
        self.finish()
    }

    /// Hands `cases` to the child and returns at once; [`Self::finish`] must follow.
    ///
    /// # Errors
    /// The child cannot be reached.
    pub fn start(&mut self, cases: &[Case]) -> io::Result<()> {
        assert!(cases.len() <= BATCH && self.running == 0);
        for (i, case) in cases.iter().enumerate() {
            // SAFETY: the child is waiting; the mapping has BATCH cases.
            unsafe { (*self.setup.shared).cases[i].put(case) };
        }
        self.running = cases.len();
        self.kick(0)
    }

    fn kick(&mut self, first: usize) -> io::Result<()> {
        // SAFETY: as in `start`.
        unsafe {
            (*self.setup.shared).first = first as u32;
            (*self.setup.shared).end = self.running as u32;
        }
        // SAFETY: writes one byte to our pipe.
        check(unsafe { libc::write(self.go, [1u8].as_ptr().cast(), 1) } as c_int)?;
        Ok(())
    }

    /// Waits for the batch of [`Self::start`].
    ///
    /// # Errors
    /// The host refuses a new child after a crash.
    pub fn finish(&mut self) -> io::Result<Vec<NativeResult>> {
        let mut crashes = std::collections::BTreeMap::new();
        while let Some(status) = self.wait()? {
            // SAFETY: the child is dead; the mapping is ours.
            let at = unsafe { (*self.setup.shared).current.load(std::sync::atomic::Ordering::Relaxed) };
            crashes.insert(at as usize, Crash { status });
            self.spawn()?;
            if at as usize + 1 >= self.running {
                break;
            }
            self.kick(at as usize + 1)?;
        }
        let results = (0..self.running).map(|i| match crashes.get(&i) {
            Some(&crash) => Err(crash),
            // SAFETY: the child is waiting or dead; outcome `i` is complete.
            None => Ok(unsafe { (*self.setup.shared).outcomes[i].get() }),
        });
        let results = results.collect();
        self.running = 0;
        Ok(results)
    }

    /// `None` when the child says it is done, its `wait` status when it died.
    fn wait(&mut self) -> io::Result<Option<i32>> {
        loop {
            let mut poll = libc::pollfd { fd: self.done, events: libc::POLLIN, revents: 0 };
            // SAFETY: one descriptor.
            if unsafe { libc::poll(&mut poll, 1, 100) } == 1 {
                let mut byte = 0u8;
                // SAFETY: room for one byte.
                check(unsafe { libc::read(self.done, (&raw mut byte).cast(), 1) } as c_int)?;
                return Ok(None);
            }
            let mut status = 0;
            // SAFETY: our own child.
            if check(unsafe { libc::waitpid(self.pid, &mut status, libc::WNOHANG) })? != 0 {
                self.pid = 0;
                return Ok(Some(status));
            }
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: ends our own child and gives back what `new` made; nothing refers to it any more.
        unsafe {
            if self.pid > 0 {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, ptr::null_mut(), 0);
            }
            for fd in [self.setup.go, self.setup.done, self.go, self.done, self.setup.image_fd] {
                libc::close(fd);
            }
            libc::munmap(self.setup.image.cast(), IMAGE);
            libc::munmap(self.setup.shared.cast(), size_of::<Shared>());
            libc::munmap(self.setup.signal_stack, self.setup.signal_stack_len);
        }
    }
}
