//! What a debugger will want of a job's root, beside what the job read of it: its programs and their libraries, for symbols
//! and for unwinding, and the sources they were made from. Read once, when a run is recorded, they can be shown when the
//! program has been built anew since, and elsewhere.

use std::collections::{BTreeSet, VecDeque};

use gimli::{EndianSlice, LittleEndian};
use object::{
    Object, ObjectSection as _,
    elf::{DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DynamicTag},
    read::{ReadCache, ReadCacheOps, elf::ElfFile64},
};

use crate::{sections::Sections, separate};

/// Files of a root.
pub trait Tree {
    /// Bytes of the regular file at `path`, through links; `None` if there is none.
    fn size(&mut self, path: &[u8]) -> Option<u64>;
    /// Fills `out` from `offset` of the file whose size was asked for last; `None` if that cannot be read.
    fn read(&mut self, offset: u64, out: &mut [u8]) -> Option<()>;
}

/// Largest program or library read whole that has symbols or lines, and one that has none, of which only the tables for
/// unwinding are of use.
const MOST_PROGRAM: u64 = 128 << 20;
const MOST_STRIPPED: u64 = 4 << 20;
/// Largest source.
const MOST_SOURCE: u64 = 4 << 20;
/// Bytes read of one root.
const MOST_BYTES: u64 = 256 << 20;
/// Programs, libraries and sources looked for.
const MOST_FILES: usize = 10_000;

/// Largest file whose headers are looked at, and bytes of headers, names and tables read for that.
const MOST_LOOKED_AT: u64 = 256 << 20;
const MOST_HEADERS: u64 = 64 << 20;
/// Entries of a dynamic section looked at.
const MOST_ENTRIES: usize = 4096;
/// Longest path.
const MOST_PATH: usize = 4096;
/// Names of sources looked at.
const MOST_NAMES: usize = 1_000_000;

/// Where the dynamic linker looks beside what a program says (ld.so(8), and Debian's ld.so.conf).
const LIBRARIES: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/lib64", "/lib", "/usr/lib"];

/// Programs and libraries of the system: what is installed to debug them is large, and stays.
const SYSTEM_PROGRAMS: [&str; 5] = ["/usr/", "/lib/", "/lib64/", "/bin/", "/sbin/"];

/// Where sources of systems and of packages begin, which do not change under a program.
const SYSTEM: [&str; 3] = ["/usr/include/", "/usr/lib/", "/rustc/"];
/// What paths of such sources have in them.
const PACKAGES: [&str; 2] = ["/.cargo/registry/", "/.rustup/"];

/// Reads through `tree` what is wanted of `programs`, and of `files` that may be libraries, which ran in `directory`, with
/// `library_path` (directories) in their environment. What is not there, is no program or cannot be read is passed over.
pub fn gather(
    tree: &mut dyn Tree,
    programs: &BTreeSet<Vec<u8>>,
    files: Vec<Vec<u8>>,
    directory: &[u8],
    library_path: &[Vec<u8>],
) {
    let mut wanted: VecDeque<Vec<u8>> = programs.iter().map(|path| joined(directory, path)).collect();
    wanted.extend(files);
    let mut seen = BTreeSet::new();
    let mut left = MOST_BYTES;
    let mut sources = Sources::default();
    while let Some(path) = wanted.pop_front() {
        if seen.len() >= MOST_FILES || !seen.insert(path.clone()) {
            continue;
        }
        let Some(found) = program(tree, &path, &mut left) else { continue };
        sources.paths.extend(found.sources.paths);
        let system = SYSTEM_PROGRAMS.iter().any(|place| path.starts_with(place.as_bytes()));
        if !system && let Some(separate) = found.separate.into_iter().find(|path| tree.size(path).is_some()) {
            wanted.push_front(separate);
        }
        let origin = path.rsplitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default();
        for name in &found.needed {
            let own = found.runpath.iter().map(|text| with_origin(text, origin));
            let system = LIBRARIES.iter().map(|directory| directory.as_bytes().to_vec());
            let places = own.chain(library_path.iter().cloned()).chain(system);
            // Of several the dynamic linker took one: which depends on more than is known here.
            let paths = places.map(|place| joined(&joined(directory, &place), name));
            let direct = name.contains(&b'/').then(|| joined(directory, name));
            // Before what else was read: there may be more of that than is looked at.
            for path in paths.chain(direct).filter(|path| tree.size(path).is_some()) {
                wanted.push_front(path);
            }
        }
    }
    for path in sources.paths.iter().take(MOST_FILES) {
        if let Some(size) = tree.size(path).filter(|size| *size <= MOST_SOURCE.min(left)) {
            left -= size;
            let _ = whole(tree, size);
        }
    }
}

/// `path` as seen from `directory`.
fn joined(directory: &[u8], path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") { path.to_vec() } else { [directory, b"/", path].concat() }
}

/// A directory of a run path, with `$ORIGIN` put in.
fn with_origin(text: &[u8], origin: &[u8]) -> Vec<u8> {
    for word in [&b"${ORIGIN}"[..], b"$ORIGIN"] {
        if let Some(rest) = text.strip_prefix(word) {
            return [origin, rest].concat();
        }
    }
    text.to_vec()
}

/// What a program or library leads to.
#[derive(Default)]
struct Leads {
    /// Libraries, by name, and the dynamic linker.
    needed: Vec<Vec<u8>>,
    /// Directories to look for them in.
    runpath: Vec<Vec<u8>>,
    /// Where its debug information may lie.
    separate: Vec<Vec<u8>>,
    sources: Sources,
}

/// Sources that an ELF file's line tables name, without those of systems and packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Their absolute paths, spelled as they are shown.
    pub paths: BTreeSet<Vec<u8>>,
    /// Directories they were compiled in: what they are named from, where that is not their path.
    pub directories: BTreeSet<Vec<u8>>,
}

/// Looks at the ELF file `path`, and reads all of it unless it is too large for its use.
fn program(tree: &mut dyn Tree, path: &[u8], left: &mut u64) -> Option<Leads> {
    let size = tree.size(path).filter(|size| *size <= MOST_LOOKED_AT)?;
    let cache = ReadCache::new(Ranged { tree, size, at: 0, left: MOST_HEADERS });
    let file = ElfFile64::<object::LittleEndian, _>::parse(&cache).ok()?;
    let mut leads = Leads::default();
    dynamic(&file, &mut leads);
    let has = |name: &str| file.section_by_name(name).is_some();
    let (lines, symbols) = (has(".debug_line") || has(".zdebug_line"), has(".symtab"));
    if !lines {
        let (id, link) = (file.build_id().ok().flatten(), file.gnu_debuglink().ok().flatten());
        leads.separate =
            separate::candidates(path, id, link).into_iter().map(|candidate| candidate.path).collect();
    }
    let most = if lines || symbols { MOST_PROGRAM } else { MOST_STRIPPED };
    if size > most.min(*left) {
        return Some(leads);
    }
    *left -= size;
    let content = whole(tree, size)?;
    if lines && let Some(sources) = sources(&content) {
        leads.sources = sources;
    }
    Some(leads)
}

fn whole(tree: &mut dyn Tree, size: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    let mut piece = vec![0; 1 << 20];
    while (content.len() as u64) < size {
        let part = (size - content.len() as u64).min(piece.len() as u64) as usize;
        tree.read(content.len() as u64, &mut piece[..part])?;
        content.extend_from_slice(&piece[..part]);
    }
    Some(content)
}

/// Libraries a file needs and where it says they are (`DT_NEEDED`, `DT_RUNPATH`, `DT_RPATH`).
fn dynamic<'data, R: object::ReadRef<'data>>(
    file: &ElfFile64<'data, object::LittleEndian, R>,
    leads: &mut Leads,
) {
    let section = |name| file.section_by_name(name).and_then(|section| section.data().ok());
    let linker = section(".interp").and_then(|path| path.split(|byte| *byte == 0).next());
    leads.needed.extend(linker.map(<[u8]>::to_vec));
    let (Some(entries), Some(names)) = (section(".dynamic"), section(".dynstr")) else { return };
    let entries = &entries[..entries.len().min(MOST_ENTRIES * 16)];
    let text = |at: u64| {
        let rest = names.get(usize::try_from(at).ok()?..)?;
        let text = rest.split(|byte| *byte == 0).next()?;
        (text.len() <= MOST_PATH).then(|| text.to_vec())
    };
    for entry in entries.chunks_exact(16) {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        match (DynamicTag(word(0).cast_signed()), text(word(8))) {
            (DT_NULL, _) => break,
            (DT_NEEDED, Some(name)) => leads.needed.push(name),
            (DT_RUNPATH | DT_RPATH, Some(paths)) => {
                leads.runpath.extend(paths.split(|byte| *byte == b':').map(<[u8]>::to_vec));
            }
            _ => {}
        }
    }
}

/// The sources of an ELF file. `None` if it is no such file.
pub fn sources(content: &[u8]) -> Option<Sources> {
    let file = object::File::parse(content).ok()?;
    let contents = Sections::new();
    let load = |id: gimli::SectionId| -> Result<std::borrow::Cow<'_, [u8]>, gimli::Error> {
        let section = file.section_by_name(id.name());
        Ok(section.and_then(|section| contents.content(&section)).unwrap_or_default())
    };
    let sections = gimli::DwarfSections::load(load).ok()?;
    let dwarf = sections.borrow(|section| EndianSlice::new(section, LittleEndian));
    let mut found = Sources::default();
    let mut units = dwarf.units();
    let mut looked = 0;
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let Some(program) = &unit.line_program else { continue };
        let header = program.header();
        let text = |value| {
            let text = dwarf.attr_string(&unit, value).ok().filter(|text| text.len() <= MOST_PATH);
            text.map(|text| text.slice().to_vec())
        };
        let base = unit.comp_dir.filter(|text| text.len() <= MOST_PATH);
        let base = base.map(|text| text.slice().to_vec()).unwrap_or_default();
        looked += 1;
        for entry in header.file_names() {
            let Some(name) = text(entry.path_name()) else { continue };
            let directory = entry.directory(header).and_then(text).unwrap_or_default();
            looked += 1;
            if looked > MOST_NAMES {
                return Some(found);
            }
            if base.len() + directory.len() + name.len() > MOST_PATH {
                continue;
            }
            let path = joined(&joined(&base, &directory), &name);
            let has = |part: &str| path.windows(part.len()).any(|window| window == part.as_bytes());
            let system = SYSTEM.iter().any(|place| path.starts_with(place.as_bytes()));
            if path.starts_with(b"/") && !system && !PACKAGES.iter().any(|part| has(part)) {
                found.paths.insert(path);
                found.directories.insert(base.clone());
            }
            if found.paths.len() >= MOST_FILES {
                return Some(found);
            }
        }
    }
    Some(found)
}

/// A file as the ELF reader takes one that is not read whole.
struct Ranged<'t> {
    tree: &'t mut dyn Tree,
    size: u64,
    at: u64,
    /// Bytes that may still be read of it so.
    left: u64,
}

impl ReadCacheOps for Ranged<'_> {
    fn len(&mut self) -> Result<u64, ()> {
        Ok(self.size)
    }

    fn seek(&mut self, at: u64) -> Result<u64, ()> {
        self.at = at;
        Ok(at)
    }

    fn read(&mut self, out: &mut [u8]) -> Result<usize, ()> {
        let part = self.size.saturating_sub(self.at).min(out.len() as u64) as usize;
        self.read_exact(&mut out[..part])?;
        Ok(part)
    }

    fn read_exact(&mut self, out: &mut [u8]) -> Result<(), ()> {
        if self.at.checked_add(out.len() as u64).is_none_or(|end| end > self.size) {
            return Err(());
        }
        self.left = self.left.checked_sub(out.len() as u64).ok_or(())?;
        self.tree.read(self.at, out).ok_or(())?;
        self.at += out.len() as u64;
        Ok(())
    }
}
