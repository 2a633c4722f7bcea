//! Gathers the accesses of one window.

use std::{collections::VecDeque, ops::ControlFlow, ops::Range};

use debug::{
    kernel::{Kernel, translate},
    look,
};
use run::scan::{Hit, Look};
use vmm::{
    Machine,
    address::{Gpa, Gva, Position},
    engine::{Access as Kind, Watch, WatchHit, WatchRange},
};

use crate::{
    access::{Access, How, Source, WHOLE},
    current, kernel_copy,
    piece::{self, Origin, PAGE, Piece},
};

/// First address that is not the program's.
const KERNEL_HALF: u64 = 1 << 47;
/// fork, vfork, clone, clone3.
const FORKS: [u64; 4] = [56, 57, 58, 435];
/// Accesses kept of one window when all are wanted.
pub const MOST_KEPT: usize = 200_000;

/// What to gather.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Where the bytes are.
    pub pieces: Vec<Piece>,
    /// How many bytes.
    pub len: u64,
    /// Page-table root of the process, if they are a process's memory.
    pub root: Option<Gpa>,
    /// Every access, not the last write alone.
    pub all: bool,
    /// Reads too.
    pub reads: bool,
    /// Of a bit-field: the first bit and how many; writes that leave them as they are do not count.
    pub bits: Option<(u64, u64)>,
    /// Give up after so many hits ([`Gathered::busy`]).
    pub most_hits: Option<u64>,
}

impl Wanted {
    /// What to watch.
    pub fn look(&self) -> Look {
        let watch = |piece: &Piece| Watch {
            range: WatchRange::Physical(piece.gpa),
            len: piece.len,
            read: self.reads,
            write: true,
        };
        Look { watches: self.pieces.iter().map(watch).collect(), breakpoints: Vec::new() }
    }
}

/// How a frame got its content, when that was no write of the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fill {
    /// A copy of what is there.
    Copy(Gpa),
    /// Something that has no history.
    From(Origin),
}

/// What one piece saw.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The last fill, with its position; what was before it is forgotten.
    pub fill: Option<(Position, Fill)>,
    /// The last write since.
    pub last: Option<Access>,
    /// Writes since.
    pub writes: u64,
    /// Reads since.
    pub reads: u64,
}

impl Seen {
    /// The last write was one of the whole piece.
    pub(crate) fn covers(&self, piece: &Piece) -> bool {
        self.last.as_ref().is_some_and(|last| {
            last.offset <= piece.offset && piece.offset + piece.len <= last.offset.saturating_add(last.len)
        })
    }
}

/// What a window gave.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// Piece by piece.
    pub seen: Vec<Seen>,
    /// All accesses, oldest first, if wanted.
    pub all: VecDeque<Access>,
    /// Accesses that were too many to keep.
    pub dropped: u64,
    /// There were more hits than wanted: what was gathered is not the whole window.
    pub busy: bool,
    hits: u64,
    shadow: Vec<u8>,
}

/// A part of the range touched by an instruction.
struct Touch {
    piece: usize,
    bytes: Range<u64>,
    address: u64,
}

impl Gathered {
    /// At the beginning of a window.
    pub fn begin(wanted: &Wanted, machine: &Machine) -> Gathered {
        let mut gathered = Gathered {
            seen: vec![Seen::default(); wanted.pieces.len()],
            shadow: vec![0; wanted.len as usize],
            ..Gathered::default()
        };
        gathered.refresh(wanted, machine, 0..wanted.len);
        gathered
    }

    /// Takes a hit.
    pub fn hit(&mut self, wanted: &Wanted, machine: &mut Machine, hit: &Hit) -> ControlFlow<()> {
        if wanted.pieces.iter().all(|piece| hit.position >= piece.until) {
            return ControlFlow::Break(());
        }
        self.hits += 1;
        if wanted.most_hits.is_some_and(|most| self.hits > most) {
            self.busy = true;
            return ControlFlow::Break(());
        }
        // An instruction may read and write; a write it reads first is one access to the reader.
        for kind in [Kind::Read, Kind::Write] {
            let accesses = || hit.accesses.iter().filter(|access| access.access == kind);
            let Some(first) = accesses().next() else { continue };
            let touches: Vec<Touch> =
                accesses().flat_map(|access| touches(wanted, machine, hit, access)).collect();
            if !touches.is_empty() {
                self.take(wanted, machine, hit, first, &touches);
            }
        }
        ControlFlow::Continue(())
    }

    fn take(
        &mut self,
        wanted: &Wanted,
        machine: &mut Machine,
        hit: &Hit,
        first: &WatchHit,
        touches: &[Touch],
    ) {
        let write = first.access == Kind::Write;
        let how = match first {
            WatchHit { device: true, .. } => How::Device,
            WatchHit { user: true, .. } => How::Program,
            WatchHit { address, .. } if address.0 < KERNEL_HALF => How::Kernel,
            _ => How::KernelPage,
        };
        let cpu = if how == How::Program { None } else { machine.cpu().ok() };
        let from = touches.iter().map(|touch| touch.bytes.start).min().unwrap_or(0);
        let to = touches.iter().map(|touch| touch.bytes.end).max().unwrap_or(0);
        let kept = if wanted.len as usize <= WHOLE {
            0..wanted.len as usize
        } else {
            from as usize..(to as usize).min(from as usize + WHOLE)
        };
        let old = self.shadow[kept.clone()].to_vec();
        if write {
            self.refresh(wanted, machine, from..to);
        }
        let new = self.shadow[kept].to_vec();
        // A write that leaves the bits as they are does not count, but it may give the frame its content.
        let unchanged = write && wanted.bits.is_some_and(|bits| bits_of(&old, bits) == bits_of(&new, bits));
        if unchanged && how == How::Program {
            return;
        }
        let Some(kernel) = look::kernel(machine) else { return };
        let Ok(task) = current::task(&kernel) else { return };
        let Ok(who) = current::who(&kernel, task) else { return };
        let call = if how == How::Program { None } else { current::call(&kernel, task).ok().flatten() };
        let mut access = Access {
            position: hit.position,
            write,
            how,
            who,
            rip: hit.rip.0,
            call,
            address: touches.iter().min_by_key(|touch| touch.bytes.start).map_or(0, |touch| touch.address),
            offset: from,
            len: to - from,
            old,
            new,
            source: None,
            place: None,
        };
        let behind = matches!(how, How::KernelPage | How::Device);
        if behind && !write && (call.is_none_or(|call| FORKS.contains(&call.number))) {
            return; // The kernel copies pages; nobody reads a value.
        }
        let mut real = false;
        for touch in touches {
            let fill = match &cpu {
                Some(cpu) if write && (behind || how == How::Kernel) => {
                    let stored = &self.shadow[touch.bytes.start as usize..touch.bytes.end as usize];
                    let stored = &stored[..stored.len().min(8)];
                    let source = kernel_copy::source(&kernel, cpu, hit.rip.0, touch.address, stored);
                    let source = source.and_then(|address| {
                        let gpa = physical(&kernel, hit.root, address)?;
                        Some(Source { address, root: hit.root, gpa })
                    });
                    if touch.bytes.start == from || access.source.is_none() {
                        access.source = source;
                    }
                    let scene = Scene { kernel: &kernel, hit, access: &access, source, task };
                    if behind { scene.fill(wanted, touch, stored) } else { None }
                }
                _ => None,
            };
            let seen = &mut self.seen[touch.piece];
            match fill {
                Some(fill) => {
                    *seen = Seen { fill: Some((hit.position, fill)), ..Seen::default() };
                    let piece = &wanted.pieces[touch.piece];
                    let inside = piece.offset..piece.offset + piece.len;
                    self.all.retain(|old| old.offset < inside.start || old.offset + old.len > inside.end);
                }
                None if unchanged => {}
                None => {
                    real = true;
                    if write && seen.last.as_ref().is_some_and(|last| goes_on(last, &access)) {
                        continue;
                    }
                    let count = if write { &mut seen.writes } else { &mut seen.reads };
                    *count += 1;
                }
            }
        }
        if !real {
            return;
        }
        // A system call that writes in several pieces is one write.
        let before = self.all.back().or_else(|| self.seen[touches[0].piece].last.as_ref());
        let merged = before.filter(|before| write && goes_on(before, &access)).map(|before| {
            let whole = wanted.len as usize <= WHOLE;
            Access {
                new: if whole { access.new.clone() } else { before.new.clone() },
                len: access.offset + access.len - before.offset,
                ..before.clone()
            }
        });
        let goes_on = merged.is_some();
        let access = merged.unwrap_or(access);
        if wanted.all {
            if goes_on {
                self.all.pop_back();
            }
            self.all.push_back(access.clone());
            if self.all.len() > MOST_KEPT {
                self.all.pop_front();
                self.dropped += 1;
            }
        }
        if write {
            for touch in touches {
                self.seen[touch.piece].last = Some(access.clone());
            }
        }
    }

    /// Reads the part of the range at `bytes` again.
    fn refresh(&mut self, wanted: &Wanted, machine: &Machine, bytes: Range<u64>) {
        for piece in &wanted.pieces {
            let start = bytes.start.max(piece.offset);
            let end = bytes.end.min(piece.offset + piece.len);
            if start < end {
                let out = &mut self.shadow[start as usize..end as usize];
                // The frames of a range lie in memory: its page tables led there.
                let _ = machine.memory().read(Gpa(piece.gpa.0 + start - piece.offset), out);
            }
        }
    }
}

/// Does `next` go on with what `before` began: the same system call's copy, byte behind byte?
fn goes_on(before: &Access, next: &Access) -> bool {
    before.write
        && next.call.is_some()
        && (before.call, before.position, before.how, before.who.task)
            == (next.call, next.position, next.how, next.who.task)
        && before.offset.checked_add(before.len) == Some(next.offset)
}

/// Some bits of a little-endian number.
fn bits_of(bytes: &[u8], (at, bits): (u64, u64)) -> u128 {
    let mut wide = [0; 16];
    let size = bytes.len().min(16);
    wide[..size].copy_from_slice(&bytes[..size]);
    let value = u128::from_le_bytes(wide) >> at.min(127);
    if bits < 128 { value & ((1 << bits) - 1) } else { value }
}

fn physical(kernel: &Kernel<'_>, root: Gpa, at: u64) -> Option<Gpa> {
    if at < KERNEL_HALF {
        translate(kernel.memory(), root, Gva(at))
    } else {
        current::kernel_page(kernel, at)
    }
}

/// The parts of the range an access touches.
fn touches(wanted: &Wanted, machine: &Machine, hit: &Hit, access: &WatchHit) -> Vec<Touch> {
    let size = u64::from(access.size);
    let room = PAGE - access.physical.0 % PAGE;
    let mut parts =
        vec![(access.physical.0, access.address.0, if access.device { size } else { size.min(room) })];
    if !access.device && size > room {
        let next = access.address.0.wrapping_add(room);
        if let Some(kernel) = look::kernel(machine)
            && let Some(gpa) = physical(&kernel, hit.root, next)
        {
            parts.push((gpa.0, next, size - room));
        }
    }
    let mut touches = Vec::new();
    for (number, piece) in wanted.pieces.iter().enumerate() {
        if hit.position >= piece.until {
            continue;
        }
        for (gpa, address, size) in &parts {
            let start = (*gpa).max(piece.gpa.0);
            let end = gpa.saturating_add(*size).min(piece.gpa.0 + piece.len);
            if start < end {
                let offset = piece.offset + start - piece.gpa.0;
                let address = address.wrapping_add(start - gpa);
                touches.push(Touch { piece: number, bytes: offset..offset + end - start, address });
            }
        }
    }
    touches
}

struct Scene<'a> {
    kernel: &'a Kernel<'a>,
    hit: &'a Hit,
    access: &'a Access,
    source: Option<Source>,
    task: Gva,
}

impl Scene<'_> {
    /// Does this write of the kernel's to a page, behind the process's back, give the frame its content, rather
    /// than change the bytes?
    fn fill(&self, wanted: &Wanted, touch: &Touch, stored: &[u8]) -> Option<Fill> {
        let piece = &wanted.pieces[touch.piece];
        let position = self.hit.position;
        let (Some(root), Some(address)) = (wanted.root, piece.address) else {
            // A page of a file. What the device brings is the file's content in the image.
            return (self.access.how == How::Device).then_some(Fill::From(Origin::Beginning));
        };
        let address = address.wrapping_add(touch.bytes.start - piece.offset);
        let here = Gpa(piece.gpa.0 + (touch.bytes.start - piece.offset));
        // Before a fork the frame was the parent's, at the same address.
        let mapped = [root, self.hit.root].map(|root| translate(self.kernel.memory(), root, Gva(address)));
        if mapped.contains(&Some(here)) {
            return None;
        }
        let mapping = current::mm(self.kernel, self.task)
            .ok()
            .flatten()
            .and_then(|mm| piece::mapping_at(self.kernel, mm, address).ok().flatten());
        if self.access.how == How::Device {
            let path = mapping.as_ref().and_then(|mapping| {
                let path = String::from_utf8_lossy(mapping.path.as_deref()?).into_owned();
                Some((path, address.checked_sub(mapping.start)?.checked_add(mapping.offset)?))
            });
            let (path, offset) = path.unwrap_or_default();
            return Some(Fill::From(Origin::File { path, offset, position: Some(position) }));
        }
        let frame = |at: Gpa| at.0 & !(PAGE - 1);
        if let Some(source) = self.source.map(|source| source.gpa).filter(|gpa| gpa.0 % PAGE == here.0 % PAGE)
        {
            if let Some(mapping) = mapping.as_ref().filter(|mapping| piece::is_private(mapping))
                && let Some((path, offset)) = piece::file_page(self.kernel, mapping, address, source)
            {
                return Some(Fill::From(Origin::File { path, offset, position: Some(position) }));
            }
            let forks = self.access.call.is_none_or(|call| FORKS.contains(&call.number));
            if mapped.iter().flatten().any(|gpa| frame(*gpa) == frame(source)) || forks {
                let start = source.0 - (touch.bytes.start - piece.offset);
                return Some(Fill::Copy(Gpa(start)));
            }
        }
        let zero = stored.iter().all(|byte| *byte == 0);
        // The kernel's own page of zeroes, mapped by a read before, is no history either.
        let fresh = self.source.is_none() || self.access.call.is_none();
        if zero && fresh {
            return Some(Fill::From(Origin::Zero { position, who: self.access.who.clone() }));
        }
        None
    }
}
