//! Memory for compiled code: one memory file mapped twice, to write through one mapping and to run in the other, so
//! that no page is ever writable and executable at once.

use std::ptr::NonNull;

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Bytes of compiled code kept; untouched pages cost nothing.
const CAPACITY: usize = 64 << 20;

/// The two mappings. Code is only ever added, until everything is forgotten at once.
#[derive(Debug)]
pub(crate) struct Buffer {
    write: NonNull<u8>,
    run: NonNull<u8>,
    used: usize,
}

// SAFETY: the mappings belong to this value alone and are tied to no thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// `None` where the host allows no such memory; then nothing is compiled.
    pub(crate) fn new() -> Option<Buffer> {
        let file = memfd_create("compiled", MemfdFlags::CLOEXEC).ok()?;
        ftruncate(&file, CAPACITY as u64).ok()?;
        let map = |protection| {
            // SAFETY: a new mapping at an address of the kernel's choice.
            let at =
                unsafe { mmap(std::ptr::null_mut(), CAPACITY, protection, MapFlags::SHARED, &file, 0).ok()? };
            NonNull::new(at.cast::<u8>())
        };
        let write = map(ProtFlags::READ | ProtFlags::WRITE)?;
        let Some(run) = map(ProtFlags::READ | ProtFlags::EXEC) else {
            unmap(write);
            return None;
        };
        Some(Buffer { write, run, used: 0 })
    }

    /// Adds code; where it runs. `None`: full.
    pub(crate) fn add(&mut self, code: &[u8]) -> Option<*const u8> {
        let end = self.used.checked_add(code.len())?;
        if end > CAPACITY {
            return None;
        }
        // SAFETY: inside both mappings; what ran before lies below `used`.
        let at = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), self.write.as_ptr().add(self.used), code.len());
            self.run.as_ptr().add(self.used)
        };
        self.used = end.next_multiple_of(16);
        Some(at)
    }

    /// Forgets all code. Nothing may lead into it any more.
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        unmap(self.write);
        unmap(self.run);
    }
}

fn unmap(at: NonNull<u8>) {
    // SAFETY: one of the two mappings, of this length, not used again.
    let done = unsafe { munmap(at.as_ptr().cast(), CAPACITY) };
    debug_assert!(done.is_ok());
}
