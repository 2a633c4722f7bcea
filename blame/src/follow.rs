//! From a write to where the written value came from, and on, until it leaves the program.

use debug::{look, process};
use run::{
    processes::{Processes, Stretch},
    seek::Timeline,
};
use serde::{Deserialize, Serialize};
use vmm::address::{Gpa, Position};

use crate::{
    access::{Access, How},
    error::BlameError,
    names,
    piece::{self, Origin, PAGE, Piece},
    report::{self, Told},
    scope::Symbols,
    search::{self, Found, Options},
    slice::{self, Lanes, Source},
    target::Target,
};

/// Hops followed.
const MOST_HOPS: usize = 64;

/// One hop: a write, and where its value came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop {
    /// The write; none for the last hop where nobody wrote.
    pub write: Option<Told>,
    /// Where the value came from, in words.
    pub from: String,
}

/// Follows the value of `first`, the last write found, back. `options` are the search's own.
pub fn follow(
    timelines: &mut [Timeline<'_>],
    symbols: &mut Symbols,
    target: &Target,
    found: &Found,
    options: Options<'_>,
) -> Result<Vec<Hop>, BlameError> {
    let Some(timeline) = timelines.first() else { return Ok(Vec::new()) };
    let (_, lanes) = Processes::at(timeline.trace().iter(), timeline.last())
        .map_err(run::error::StageError::from)?
        .lanes(timeline.last());
    let mut walk = Walk { symbols, lanes, options, hops: Vec::new() };
    let mut next = found.last.clone().map(|access| Wanted {
        // The first bytes of what was written, as many as a register holds.
        offset: access.offset,
        len: access.len.min(8),
        access,
    });
    while let Some(wanted) = next {
        if walk.hops.len() >= MOST_HOPS {
            walk.hops.push(Hop { write: None, from: format!("more than {MOST_HOPS} hops: not followed on") });
            break;
        }
        next = walk.hop(timelines, target, &wanted)?;
    }
    Ok(walk.hops)
}

struct Walk<'a> {
    symbols: &'a mut Symbols,
    lanes: Vec<Stretch>,
    options: Options<'a>,
    hops: Vec<Hop>,
}

/// Bytes written, whose origin is wanted.
struct Wanted {
    access: Access,
    /// Their place in the range the access was found for.
    offset: u64,
    len: u64,
}

/// Where to look for the write before.
struct Place {
    at: Position,
    root: Gpa,
    /// Linear address; for the kernel's pages none.
    address: Option<u64>,
    gpa: Option<Gpa>,
    len: u64,
}

impl Walk<'_> {
    fn hop(
        &mut self,
        timelines: &mut [Timeline<'_>],
        target: &Target,
        wanted: &Wanted,
    ) -> Result<Option<Wanted>, BlameError> {
        let access = &wanted.access;
        let told = report::tell_bare(&mut timelines[0], self.symbols, target, access, wanted.len)?;
        let (from, place) = match access.how {
            How::Program => self.of_program(timelines, wanted)?,
            _ => of_kernel(wanted),
        };
        self.hops.push(Hop { write: Some(told), from });
        let Some(place) = place else { return Ok(None) };
        self.before(timelines, &place)
    }

    /// Where a value comes from that an instruction of the program stored.
    fn of_program(
        &self,
        timelines: &mut [Timeline<'_>],
        wanted: &Wanted,
    ) -> Result<(String, Option<Place>), BlameError> {
        let access = &wanted.access;
        let lanes = Lanes { tid: access.who.tid, lanes: &self.lanes };
        let store = access.address.wrapping_add(wanted.offset - access.offset);
        let source = slice::of_store(&mut timelines[0], access.position, store, wanted.len, lanes)?;
        Ok(match source {
            Source::Memory { at, address, len, root, with, .. } => {
                let with =
                    if with.is_empty() { String::new() } else { format!(", with {}", with.join(", ")) };
                let text = format!("loaded from {address:#x} ({len} bytes) at step {at}{with}");
                let place = Place { at, root, address: Some(address), gpa: None, len };
                (text, Some(place))
            }
            Source::Constant { at, .. } => (format!("a constant of the program, at step {at}"), None),
            Source::Kernel { at } => {
                (format!("returned by the system call at step {at}: it comes from outside the program"), None)
            }
            Source::Lost { at, why } => (format!("not followed further than step {at}: {why}"), None),
        })
    }

    /// The write before, to the bytes a value was loaded or copied from.
    fn before(
        &mut self,
        timelines: &mut [Timeline<'_>],
        place: &Place,
    ) -> Result<Option<Wanted>, BlameError> {
        let gpa = match (place.gpa, place.address) {
            (Some(gpa), _) => Some(gpa),
            (None, Some(address)) => {
                timelines[0].seek(place.at)?;
                let machine = timelines[0].looking();
                debug::kernel::translate(machine.memory(), place.root, vmm::address::Gva(address))
            }
            _ => None,
        };
        let Some(gpa) = gpa else {
            self.hops.push(Hop { write: None, from: "it is not mapped any more there: not followed".into() });
            return Ok(None);
        };
        let len = place.len.min(PAGE - gpa.0 % PAGE);
        let piece = Piece { offset: 0, address: place.address, gpa, len, until: place.at };
        let root = place.address.map(|_| place.root);
        let options = Options { all: false, reads: false, limit: None, bits: None, ..self.options };
        let origin = file_origin(&mut timelines[0], &piece, place)?;
        let pieces = std::slice::from_ref(&piece);
        let found = search::search(timelines, pieces, &[origin], root, len, place.at, options)?;
        match found.last {
            Some(access) => {
                let (offset, len) = (access.offset, access.len.min(len).min(8));
                Ok(Some(Wanted { access, offset, len }))
            }
            None => {
                let from = found
                    .origins
                    .first()
                    .map_or_else(|| "nobody wrote it".to_owned(), |(.., from)| report::origin(from));
                self.hops.push(Hop { write: None, from });
                Ok(None)
            }
        }
    }
}

/// A page of a file that is mapped and was not written.
fn file_origin(
    timeline: &mut Timeline<'_>,
    piece: &Piece,
    place: &Place,
) -> Result<Option<Origin>, BlameError> {
    let Some(address) = piece.address else { return Ok(None) };
    timeline.seek(place.at)?;
    let Some(kernel) = look::kernel(timeline.looking()) else { return Ok(None) };
    let owner = process::threads(&kernel)?.into_iter().find(|thread| thread.root == Some(place.root));
    let Some(mm) = owner.and_then(|owner| owner.mm) else { return Ok(None) };
    let mapping = piece::mapping_at(&kernel, mm, address)?.filter(piece::is_private);
    let file = mapping.and_then(|mapping| piece::file_page(&kernel, &mapping, address, piece.gpa));
    Ok(file.map(|(path, offset)| Origin::File { path, offset, position: None }))
}

/// Where bytes come from that the kernel stored.
fn of_kernel(wanted: &Wanted) -> (String, Option<Place>) {
    let access = &wanted.access;
    let call = access.call.map_or_else(|| "the kernel".to_owned(), |call| names::syscall(call.number));
    if access.how == How::Device {
        return ("read from the image".into(), None);
    }
    match &access.source {
        Some(source) => {
            // The first byte accessed was copied from there; the wanted one lies as far behind it.
            let ahead = wanted.offset - access.offset;
            let user = source.address < 1 << 47;
            let place = Place {
                at: access.position,
                root: source.root,
                address: user.then(|| source.address.wrapping_add(ahead)),
                gpa: Some(Gpa(source.gpa.0 + ahead)),
                len: wanted.len,
            };
            let what = if user {
                format!("copied by {call} from {:#x} of the program", source.address.wrapping_add(ahead))
            } else {
                format!("copied by {call} from a page of the kernel's (a file, a pipe or a socket)")
            };
            (what, Some(place))
        }
        None => (format!("made by the kernel in {call}: it comes from outside the program"), None),
    }
}
