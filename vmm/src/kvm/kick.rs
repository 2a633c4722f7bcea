//! Making KVM_RUN return from another thread, and the one ioctl `kvm-ioctls` lacks.
//!
//! The kicker sets a flag and sends a real-time signal to the thread inside `run`. The handler, which runs on
//! that thread, sets `immediate_exit`: a signal that lands just before KVM_RUN is not lost.

use std::{
    cell::Cell,
    io,
    os::fd::AsRawFd,
    ptr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use kvm_bindings::kvm_run;
use kvm_ioctls::VcpuFd;

thread_local! {
    /// The run page of the vCPU this thread is inside `run` with.
    static CURRENT: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

/// Shared by the engine and those who may interrupt it.
#[derive(Debug, Default)]
pub(super) struct Kick {
    wanted: AtomicBool,
    /// Thread inside `run`; 0 none.
    thread: AtomicI32,
}

/// While it lives, kicks reach this thread.
pub(super) struct Running<'a>(&'a Kick);

fn signal() -> libc::c_int {
    // Behind the numbers that debuggers and the C library's own threads use.
    libc::SIGRTMIN() + 5
}

extern "C" fn on_signal(_: libc::c_int) {
    let page = CURRENT.get();
    if !page.is_null() {
        // SAFETY: `Running` clears the pointer before the mapping can go away, on this same thread.
        // `immediate_exit` is the second byte of the page.
        unsafe { ptr::write_volatile(page.add(std::mem::offset_of!(kvm_run, immediate_exit)), 1) };
    }
}

impl Kick {
    pub(super) fn new() -> io::Result<Arc<Kick>> {
        static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
        let installed = INSTALLED.get_or_init(|| {
            // SAFETY: an all-zero sigaction is valid: no flags (so KVM_RUN is not restarted), empty mask.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_signal as *const () as usize;
            // SAFETY: the handler only touches a thread-local cell and one byte.
            let result = unsafe { libc::sigaction(signal(), &action, ptr::null_mut()) };
            if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) }
        });
        installed.map_err(io::Error::from_raw_os_error)?;
        Ok(Arc::new(Kick::default()))
    }

    /// Marks this thread as the one to signal.
    pub(super) fn running(&self, run: &mut kvm_run) -> Running<'_> {
        CURRENT.set(ptr::from_mut(run).cast());
        // SAFETY: gettid has no preconditions.
        self.thread.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        Running(self)
    }

    /// Was it kicked? Forgets it.
    pub(super) fn take(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    pub(super) fn kick(&self) {
        self.wanted.store(true, Ordering::SeqCst);
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: signalling a thread of this process; one that is gone is an error we do not care about.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal()) };
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::SeqCst);
        CURRENT.set(ptr::null_mut());
    }
}

/// KVM_INTERRUPT: `_IOW(KVMIO, 0x86, struct kvm_interrupt)` (uapi/linux/kvm.h).
pub(super) fn interrupt(vcpu: &VcpuFd, vector: u8) -> io::Result<()> {
    const KVM_INTERRUPT: libc::c_ulong = 0x4004_ae86;
    let vector = u32::from(vector);
    // SAFETY: the argument is a struct of one u32, as the request number says.
    let result = unsafe { libc::ioctl(vcpu.as_raw_fd(), KVM_INTERRUPT, &vector) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
