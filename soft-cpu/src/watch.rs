//! Looking at accesses: watched ranges, breakpoints, the debug registers and the access stream.
//!
//! None of it costs anything when unused. A page that somebody looks at never gets a fast TLB tag, so its accesses
//! take the slow path, which asks [`Hooks`]. An instruction with something to record runs in a block of its own.

use crate::{access::Span, cpu::Cpu, fault::Abort, insn::R};

/// Kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Kind {
    Read,
    Write,
    Execute,
}

/// Where a watched range is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRange {
    /// Linear, in any address space.
    Virtual(u64),
    /// Guest-physical.
    Physical(u64),
}

/// A watched range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// First byte.
    pub range: WatchRange,
    /// Bytes, at least 1.
    pub len: u64,
    /// Report reads.
    pub read: bool,
    /// Report writes.
    pub write: bool,
    /// Report instructions that begin in it.
    pub execute: bool,
}

/// One access that hit a watch; the instruction has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchHit {
    /// Address of the instruction.
    pub rip: u64,
    /// First byte accessed, linear.
    pub address: u64,
    /// Its guest-physical address.
    pub physical: u64,
    /// Bytes.
    pub size: u16,
    /// What it did.
    pub kind: Kind,
    /// At CPL 3.
    pub user: bool,
    /// Instructions retired at CPL 3 since CPL last became 3, before the one that did it.
    pub since_user: u64,
}

/// What the access stream records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stream {
    /// Nothing.
    #[default]
    Off,
    /// Every access of every instruction, with the bytes before and after.
    All,
    /// Accesses of instructions at CPL 3 with user privilege, without bytes: the kernel runs at full speed.
    User,
}

/// One access of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accessed {
    /// Instructions retired at CPL 3 before the accessing one ([`crate::Counts::user_instructions`]).
    pub user_instructions: u64,
    /// Address of the instruction.
    pub rip: u64,
    /// First byte, linear.
    pub address: u64,
    /// Its guest-physical address.
    pub physical: u64,
    /// A write (a read-modify-write is one write; `old` is what it read).
    pub write: bool,
    /// With user privilege.
    pub user: bool,
    /// Bytes accessed.
    pub size: u16,
    /// Bytes before the instruction (empty under [`Stream::User`]).
    pub old: Vec<u8>,
    /// Bytes after it; empty for a read and under [`Stream::User`].
    pub new: Vec<u8>,
}

/// A debug register's watch: linear address, length, reads too, DR6 bit.
#[derive(Clone, Copy, Debug)]
struct DebugWatch {
    address: u64,
    len: u64,
    reads: bool,
    cause: u64,
}

/// Everything that looks.
#[derive(Debug, Default)]
pub(crate) struct Hooks {
    watches: Vec<Watch>,
    debug: Vec<DebugWatch>,
    /// Sorted.
    breakpoints: Vec<u64>,
    debug_breakpoints: Vec<(u64, u64)>,
    pub(crate) stream: Stream,
    pub(crate) accesses: Vec<Accessed>,
    /// Stream entries whose bytes after the instruction are still to be read.
    open: Vec<(usize, Span)>,
    pub(crate) hits: Vec<WatchHit>,
    /// How many of `hits` and `accesses` are by elements of a repeated instruction that are done: they stay when a
    /// later element faults.
    committed: (usize, usize),
}

/// Hits by one repeated instruction after which they are handed over before it goes on.
const MANY_HITS: usize = 1024;

fn overlaps(a: u64, a_len: u64, b: u64, b_len: u64) -> bool {
    a.wrapping_sub(b) < b_len || b.wrapping_sub(a) < a_len
}

impl Hooks {
    pub(crate) fn set_watches(&mut self, watches: &[Watch]) {
        self.watches = watches.iter().copied().filter(|w| w.len > 0).collect();
    }

    pub(crate) fn set_breakpoints(&mut self, at: &[u64]) {
        self.breakpoints = at.to_vec();
        self.breakpoints.sort_unstable();
    }

    /// An element of a repeated instruction is done.
    #[inline]
    pub(crate) fn commit(&mut self) {
        self.committed = (self.hits.len(), self.accesses.len());
    }

    /// Enough hits that a repeated instruction should stop between two elements.
    pub(crate) fn full(&self) -> bool {
        self.hits.len() >= MANY_HITS
    }

    /// Forgets the hits of an instruction that did not complete; there were `first` before it.
    pub(crate) fn drop_hits(&mut self, first: usize) {
        self.hits.truncate(first.max(self.committed.0));
    }

    /// An instruction begins.
    pub(crate) fn begin(&mut self) {
        self.committed = (0, 0);
    }

    /// Some data access may be of interest.
    #[inline]
    pub(crate) fn any_data(&self) -> bool {
        self.stream != Stream::Off || !self.watches.is_empty() || !self.debug.is_empty()
    }

    /// Nothing but watches looks at data accesses.
    #[inline]
    pub(crate) fn only_watches(&self) -> bool {
        !self.watches.is_empty() && self.stream == Stream::Off && self.debug.is_empty()
    }

    /// Instructions on this linear page must run one at a time.
    pub(crate) fn steps_page(&self, linear: u64) -> bool {
        if self.breakpoints.is_empty() && self.debug_breakpoints.is_empty() && self.watches.is_empty() {
            return false;
        }
        let page = linear & !0xfff;
        let first = self.breakpoints.partition_point(|&b| b < page);
        self.breakpoints.get(first).is_some_and(|&b| b & !0xfff == page)
            || self.debug_breakpoints.iter().any(|&(b, _)| b & !0xfff == page)
            || self.watches.iter().any(|w| match w.range {
                WatchRange::Virtual(at) => w.execute && overlaps(page, 4096, at, w.len),
                // Which linear pages lead there is not known here.
                WatchRange::Physical(_) => w.execute,
            })
    }

    pub(crate) fn is_breakpoint(&self, rip: u64) -> bool {
        self.breakpoints.binary_search(&rip).is_ok()
    }

    /// The physical address (or 0), if an execute watch covers `rip`.
    pub(crate) fn execute_watched(&self, rip: u64, physical: impl FnOnce() -> Option<u64>) -> Option<u64> {
        if !self.watches.iter().any(|w| w.execute) {
            return None;
        }
        let gpa = physical();
        self.watched(rip, gpa.unwrap_or(u64::MAX), 1, Kind::Execute).then_some(gpa.unwrap_or(0))
    }

    /// DR6 bits of the instruction breakpoints at `rip`.
    pub(crate) fn debug_breakpoint(&self, rip: u64) -> u64 {
        self.debug_breakpoints.iter().filter(|&&(b, _)| b == rip).fold(0, |bits, &(_, bit)| bits | bit)
    }

    pub(crate) fn watched(&self, linear: u64, gpa: u64, len: u64, kind: Kind) -> bool {
        self.watches.iter().any(|w| {
            let wanted = match kind {
                Kind::Read => w.read,
                Kind::Write => w.write,
                Kind::Execute => w.execute,
            };
            wanted
                && match w.range {
                    WatchRange::Virtual(at) => overlaps(linear, len, at, w.len),
                    WatchRange::Physical(at) => overlaps(gpa, len, at, w.len),
                }
        })
    }
}

impl Cpu {
    /// May accesses of this kind to the page of `linear` take the fast path?
    pub(crate) fn fast_allowed(&self, linear: u64, gpa: u64, kind: Kind) -> bool {
        let streamed = match self.hooks.stream {
            Stream::Off => false,
            Stream::All => true,
            // Nobody reaches the upper half with user privilege.
            Stream::User => linear >> 63 == 0,
        };
        if self.alignment_checked || streamed {
            return false;
        }
        if !self.hooks.any_data() {
            return true;
        }
        let (page, frame) = (linear & !0xfff, gpa & !0xfff);
        !self.hooks.watched(page, frame, 4096, kind)
            && !self
                .hooks
                .debug
                .iter()
                .any(|d| (kind == Kind::Write || d.reads) && overlaps(page, 4096, d.address, d.len))
    }

    /// A data access about to happen: records it, or asks for the instruction to be run alone first.
    pub(crate) fn hook_access(
        &mut self,
        linear: u64,
        len: usize,
        first_len: usize,
        gpas: (u64, Option<u64>),
        write: bool,
        user: bool,
    ) -> R {
        let kind = if write { Kind::Write } else { Kind::Read };
        let rest = linear.wrapping_add(first_len as u64);
        let hit = self.hooks.watched(linear, gpas.0, first_len as u64, kind)
            || gpas.1.is_some_and(|gpa| self.hooks.watched(rest, gpa, (len - first_len) as u64, kind));
        let cause = self
            .hooks
            .debug
            .iter()
            .filter(|d| (write || d.reads) && overlaps(linear, len as u64, d.address, d.len))
            .fold(0, |bits, d| bits | d.cause);
        let streamed = match self.hooks.stream {
            Stream::Off => false,
            Stream::All => true,
            Stream::User => user && self.user,
        };
        if !hit && cause == 0 && !streamed {
            return Ok(());
        }
        if !self.alone {
            return Err(Abort::Alone);
        }
        self.debug_cause |= cause;
        let rip = self.rip;
        if hit {
            let size = len as u16;
            self.hooks.hits.push(WatchHit {
                rip,
                address: linear,
                physical: gpas.0,
                size,
                kind,
                user: self.user,
                // An instruction that runs alone begins with the counts settled.
                since_user: self.counts.since_user(),
            });
        }
        if streamed {
            let old = if self.hooks.stream == Stream::All { vec![0; len] } else { Vec::new() };
            self.hooks.accesses.push(Accessed {
                user_instructions: self.counts.user_instructions,
                rip,
                address: linear,
                physical: gpas.0,
                write,
                user,
                size: len as u16,
                old,
                new: Vec::new(),
            });
        }
        Ok(())
    }

    /// Fills in the bytes of the access just recorded.
    pub(crate) fn hook_value(&mut self, span: &Span) {
        if self.hooks.stream != Stream::All || !self.alone {
            return;
        }
        let at = self.hooks.accesses.len().wrapping_sub(1);
        if let Some(access) = self.hooks.accesses.get_mut(at) {
            span.read_bytes(&mut access.old);
            if access.write {
                self.hooks.open.push((at, *span));
            }
        }
    }

    /// After an instruction: reads the bytes its writes left. `done`: it completed.
    pub(crate) fn finish_stream(&mut self, first: usize, done: bool) {
        for (at, span) in std::mem::take(&mut self.hooks.open) {
            if let Some(access) = self.hooks.accesses.get_mut(at) {
                access.new = vec![0; access.old.len()];
                span.read_bytes(&mut access.new);
            }
        }
        if !done {
            self.hooks.accesses.truncate(first.max(self.hooks.committed.1));
        }
    }

    /// Takes DR0 to DR3 and DR7 into the hooks (SDM vol. 3B 17.2).
    pub(crate) fn update_debug_registers(&mut self) {
        let dr7 = self.sys.dr7;
        let (mut data, mut code) = (Vec::new(), Vec::new());
        for i in 0..4u32 {
            if dr7 >> (2 * i) & 3 == 0 {
                continue;
            }
            let len = [1u64, 2, 8, 4][(dr7 >> (18 + 4 * i) & 3) as usize];
            let address = self.sys.dr[i as usize];
            let cause = 1 << i;
            match dr7 >> (16 + 4 * i) & 3 {
                0 => code.push((address, cause)),
                1 => data.push(DebugWatch { address: address & !(len - 1), len, reads: false, cause }),
                3 => data.push(DebugWatch { address: address & !(len - 1), len, reads: true, cause }),
                // I/O breakpoints need CR4.DE and are not in the model.
                _ => {}
            }
        }
        let none_before = self.hooks.debug.is_empty() && self.hooks.debug_breakpoints.is_empty();
        let changed = !(none_before && data.is_empty() && code.is_empty());
        self.hooks.debug = data;
        self.hooks.debug_breakpoints = code;
        if changed {
            self.flush_tlb_all();
        }
    }
}
