//! The answer, in words and as data.

use debug::{
    kernel::Kernel,
    look,
    process::{self, Thread},
};
use run::seek::Timeline;
use serde::{Deserialize, Serialize};
use vmm::address::{Gva, Instructions, Position};

use crate::{
    access::{Access, How, Place, Who},
    error::BlameError,
    follow::Hop,
    heap, names,
    piece::Origin,
    scope::{Scene, Symbols},
    search::Found,
    target::Target,
};

/// Most threads listed beside the writer.
const MOST_OTHERS: usize = 64;
/// Most accesses whose place is looked up by going there.
const MOST_VISITED: usize = 200;

/// An access, told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// "3282+214".
    pub at: String,
    /// "write" or "read".
    pub access: String,
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Program.
    pub program: String,
    /// Instruction of the program; 0 for the kernel.
    pub rip: u64,
    /// Where in the source.
    #[serde(flatten)]
    pub place: Place,
    /// "read(3, buf, 4096)" if the kernel did it for a system call; "the kernel" for anything else it did.
    pub by: Option<String>,
    /// The file or peer of that call.
    pub of: Option<String>,
    /// First byte accessed, from the beginning of the range, and bytes.
    pub offset: u64,
    /// See `offset`.
    pub len: u64,
    /// Value before.
    pub old: String,
    /// Value after; for a read, the value read.
    pub new: String,
    /// That value as a number, if it is one.
    pub number: Option<f64>,
}

/// What the allocator did with the block the bytes are in, near the last write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Freed {
    /// Where.
    pub at: String,
    /// Thread id.
    pub tid: u32,
    /// Program.
    pub program: String,
    /// "free" or "realloc".
    pub call: String,
    /// First byte of the block.
    pub block: u64,
    /// After the last write, rather than before it.
    pub since: bool,
    /// Who called.
    #[serde(flatten)]
    pub place: Place,
}

/// A thread beside the writer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Other {
    /// Thread id.
    pub tid: u32,
    /// Process id.
    pub pid: u32,
    /// Program.
    pub program: String,
    /// Where it is.
    #[serde(flatten)]
    pub place: Place,
}

/// Bytes nobody wrote since they came to be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Unwritten {
    /// First byte, from the beginning of the range.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// In words.
    pub from: String,
}

/// The whole answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The run.
    pub run: String,
    /// The position asked at.
    pub at: String,
    /// The expression.
    pub expr: String,
    /// Its value there.
    pub value: String,
    /// Its bytes there, hex; the first 64.
    pub bytes: String,
    /// Its type.
    #[serde(rename = "type")]
    pub of: String,
    /// Its address; none for a file.
    pub address: Option<u64>,
    /// Bytes.
    pub size: u64,
    /// The thread in which it was understood.
    pub tid: u32,
    /// Its process.
    pub pid: u32,
    /// Where that thread is.
    pub place: Place,
    /// The last write.
    pub last: Option<Told>,
    /// The other threads at the last write.
    pub others: Vec<Other>,
    /// The block the bytes are in was freed, at most a window before the last write.
    pub freed: Option<Freed>,
    /// Where the last write's value came from, if asked for: hop by hop.
    pub follow: Vec<Hop>,
    /// Every access, oldest first, if asked for.
    pub accesses: Vec<Told>,
    /// Parts nobody wrote.
    pub unwritten: Vec<Unwritten>,
    /// Step searched back to.
    pub searched_to: u64,
    /// Windows run.
    pub windows: u64,
    /// Windows passed over.
    pub skipped: u64,
    /// Writes seen.
    pub writes: u64,
    /// Reads seen.
    pub reads: u64,
    /// Accesses left out because they were too many.
    pub left_out: u64,
}

/// Where the machine must be to look at who accessed, and what they were in: before the instruction, or before the
/// system call's.
fn view_at(access: &Access) -> Position {
    let back = if access.how != How::Program && access.call.is_some() { 1 } else { 0 };
    let offset = Instructions(access.position.offset.0.saturating_sub(back));
    Position { step: access.position.step, offset }
}

fn thread_of(kernel: &Kernel<'_>, who: &Who) -> Result<Option<Thread>, BlameError> {
    let threads = process::threads(kernel)?;
    Ok(threads.into_iter().find(|thread| thread.task == Gva(who.task) && thread.tid == who.tid))
}

/// Tells one access by going there; with the other threads, if wanted.
fn tell(
    timeline: &mut Timeline<'_>,
    symbols: &mut Symbols,
    target: &Target,
    access: &Access,
    others: Option<&mut Vec<Other>>,
) -> Result<Told, BlameError> {
    let mut told = plain(target, access);
    timeline.seek(view_at(access))?;
    let machine = timeline.looking();
    let cpu = machine.cpu()?;
    let Some(kernel) = look::kernel(machine) else { return Ok(told) };
    if let Some(thread) = thread_of(&kernel, &access.who)? {
        let root = thread.root;
        if let Some(call) = &access.call {
            let (by, of) = names::call(&kernel, root, Gva(access.who.task), call);
            (told.by, told.of) = (Some(by), of);
        }
        if thread.mm.is_some() {
            let scene = Scene::new(&kernel, &cpu, thread, symbols)?;
            told.place = names::place(&kernel, &scene, scene.own_frame(), symbols);
        }
    }
    if let Some(others) = others {
        for thread in process::threads(&kernel)? {
            let own = thread.task == Gva(access.who.task);
            if own || thread.pid == 1 || thread.mm.is_none() || others.len() >= MOST_OTHERS {
                continue;
            }
            let (tid, pid, program) = (thread.tid, thread.pid, thread.comm.clone());
            let scene = Scene::new(&kernel, &cpu, thread, symbols)?;
            let place = names::place(&kernel, &scene, scene.own_frame(), symbols);
            others.push(Other { tid, pid, program, place });
        }
    }
    Ok(told)
}

/// Tells a write to bytes that are not the target's: its values as plain bytes.
pub(crate) fn tell_bare(
    timeline: &mut Timeline<'_>,
    symbols: &mut Symbols,
    target: &Target,
    access: &Access,
    len: u64,
) -> Result<Told, BlameError> {
    let mut told = tell(timeline, symbols, target, access, None)?;
    let part = |bytes: &[u8]| names::bytes(&bytes[..bytes.len().min(len as usize)]);
    (told.old, told.new) = (part(&access.old), part(&access.new));
    Ok(told)
}

/// What an access says by itself.
fn plain(target: &Target, access: &Access) -> Told {
    let show = |bytes: &[u8]| {
        let whole = bytes.len() as u64 == target.len;
        if whole || target.address.is_none() { target.show(bytes) } else { names::bytes(bytes) }
    };
    let by = match access.how {
        How::Program => None,
        How::Device => Some("the image's device".to_owned()),
        How::Kernel | How::KernelPage => Some(match access.call {
            Some(call) => names::syscall(call.number),
            None => "the kernel".to_owned(),
        }),
    };
    Told {
        at: access.position.to_string(),
        access: if access.write { "write" } else { "read" }.into(),
        tid: access.who.tid,
        pid: access.who.pid,
        program: access.who.program.clone(),
        rip: if access.how == How::Program { access.rip } else { 0 },
        place: access.place.clone().unwrap_or_default(),
        by,
        of: None,
        offset: access.offset,
        len: access.len,
        old: show(&access.old),
        new: show(&access.new),
        number: if access.new.len() as u64 == target.len { target.number(&access.new) } else { None },
    }
}

/// Where bytes come from, in words.
pub fn origin(origin: &Origin) -> String {
    match origin {
        Origin::Zero { position, who } => {
            format!(
                "zero since the page was first used, at step {position} by thread {} ({})",
                who.tid, who.program
            )
        }
        Origin::File { path, offset, .. } if path.is_empty() => {
            format!("from a file's page in memory (offset {offset:#x})")
        }
        Origin::File { path, offset, .. } => format!("from {path} at offset {offset:#x}, mapped into memory"),
        Origin::Beginning => "as it was before the job's first step".into(),
    }
}

/// As [`origin`], where the file may be the program's own.
fn origin_of(target: &Target, from: &Origin) -> String {
    let modules = target.sources.as_ref().map(|space| space.modules()).unwrap_or_default();
    match from {
        Origin::File { path, offset, .. }
            if modules.iter().any(|loaded| loaded.module.path == path.as_bytes()) =>
        {
            format!("its initial value, from offset {offset:#x} of {path}")
        }
        _ => origin(from),
    }
}

/// Tells of a block that was freed.
pub fn freed(
    timeline: &mut Timeline<'_>,
    symbols: &mut Symbols,
    target: &Target,
    event: &heap::Event,
    last: Option<Position>,
) -> Result<Freed, BlameError> {
    let access = Access {
        position: event.position,
        write: false,
        how: How::Program,
        who: event.who.clone(),
        rip: 0,
        call: None,
        address: 0,
        offset: 0,
        len: 0,
        old: Vec::new(),
        new: Vec::new(),
        source: None,
        place: None,
    };
    let told = tell(timeline, symbols, target, &access, None)?;
    Ok(Freed {
        at: told.at,
        tid: told.tid,
        program: told.program,
        call: event.call.into(),
        block: event.block,
        since: last.is_none_or(|last| event.position > last),
        place: told.place,
    })
}

/// Goes where it must to tell everything.
pub fn report(
    timeline: &mut Timeline<'_>,
    symbols: &mut Symbols,
    target: &Target,
    found: &Found,
) -> Result<Report, BlameError> {
    let mut others = Vec::new();
    // In the order in which the machine comes by.
    let mut accesses = Vec::new();
    let mut visited = 0;
    for access in &found.accesses {
        let known = target
            .sources
            .as_ref()
            .filter(|_| access.how == How::Program && access.who.pid == target.who.pid);
        let place = known.and_then(|space| {
            let module = space.module_at(access.rip).map(|loaded| loaded.module.path.as_slice());
            names::place_at(&space.source(access.rip), module, symbols)
        });
        let told = match place {
            Some(place) => Told { place, ..plain(target, access) },
            None if visited < MOST_VISITED => {
                visited += 1;
                tell(timeline, symbols, target, access, None)?
            }
            None => plain(target, access),
        };
        accesses.push(told);
    }
    let last = match &found.last {
        Some(access) => Some(tell(timeline, symbols, target, access, Some(&mut others))?),
        None => None,
    };
    let hex: String = target.bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    Ok(Report {
        run: timeline.run().id().to_string(),
        at: target.at.to_string(),
        expr: target.text.clone(),
        value: target.show(&target.bytes),
        bytes: hex,
        of: target.type_name(),
        address: target.address,
        size: target.len,
        tid: target.who.tid,
        pid: target.who.pid,
        place: target.place.clone(),
        last,
        others,
        freed: None,
        follow: Vec::new(),
        accesses,
        unwritten: found
            .origins
            .iter()
            .map(|(offset, len, from)| {
                let from = origin_of(target, from);
                Unwritten { offset: *offset, len: *len, from }
            })
            .collect(),
        searched_to: found.from,
        windows: found.windows,
        skipped: found.skipped,
        writes: found.writes,
        reads: found.reads,
        left_out: found.dropped,
    })
}
