//! Draining the trace ring. All of it is the guest's word: every length is checked.

use std::sync::atomic::Ordering;

use bytemuck::Zeroable;
use rewind_platform::{
    control::{CTL_RING_HEAD, CTL_RING_TAIL},
    layout::{CONTROL_BASE, RING_CAPACITY, RING_OFFSET},
    record::{RECORD_MAX, RecordHeader},
};

use crate::{
    address::Gpa,
    machine::{GuestFault, RecordSink},
    memory::GuestMemory,
};

const HEADER: u64 = size_of::<RecordHeader>() as u64;

/// Where the monitor is in the ring.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    tail: u64,
    payload: Vec<u8>,
}

impl Ring {
    /// Empties the ring, whatever is in it.
    pub(crate) fn reset(&mut self, memory: &GuestMemory) {
        self.tail = 0;
        memory.control_u64(CTL_RING_HEAD).store(0, Ordering::Release);
        memory.control_u64(CTL_RING_TAIL).store(0, Ordering::Release);
    }

    /// Hands every complete record to `sink`, oldest first.
    pub(crate) fn drain(
        &mut self,
        memory: &GuestMemory,
        sink: &mut dyn RecordSink,
    ) -> Result<(), GuestFault> {
        let head = memory.control_u64(CTL_RING_HEAD).load(Ordering::Acquire);
        if head == self.tail {
            return Ok(());
        }
        let bad = |what: &str| GuestFault::Ring { what: what.to_owned() };
        if head.wrapping_sub(self.tail) > RING_CAPACITY {
            return Err(bad("its head is impossible"));
        }
        while self.tail != head {
            let waiting = head.wrapping_sub(self.tail);
            if waiting < HEADER {
                return Err(bad("a record is cut short"));
            }
            let mut header = RecordHeader::zeroed();
            copy(memory, self.tail, bytemuck::bytes_of_mut(&mut header))?;
            let len = u64::from(header.len);
            if len < HEADER || header.len > RECORD_MAX || !len.is_multiple_of(8) || len > waiting {
                return Err(bad("a record has an impossible length"));
            }
            if u64::from(header.payload_len) > len - HEADER {
                return Err(bad("a record's payload is longer than the record"));
            }
            self.payload.resize(header.payload_len as usize, 0);
            copy(memory, self.tail.wrapping_add(HEADER), &mut self.payload)?;
            self.tail = self.tail.wrapping_add(len);
            sink.record(&header, &self.payload);
        }
        memory.control_u64(CTL_RING_TAIL).store(self.tail, Ordering::Release);
        Ok(())
    }
}

/// Copies from the ring at byte position `from`, around its end if need be.
fn copy(memory: &GuestMemory, from: u64, out: &mut [u8]) -> Result<(), GuestFault> {
    let at = from % RING_CAPACITY;
    let first = ((RING_CAPACITY - at) as usize).min(out.len());
    let (before, after) = out.split_at_mut(first);
    let base = CONTROL_BASE + RING_OFFSET;
    memory
        .read(Gpa(base + at), before)
        .and_then(|()| memory.read(Gpa(base), after))
        .map_err(|error| GuestFault::Ring { what: error.to_string() })
}
