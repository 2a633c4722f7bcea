//! Executables and libraries: symbols, source lines, unwind tables.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Arc,
};

use gimli::{EndianArcSlice, RunTimeEndian};
use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolKind};

use crate::{
    dwarf::{Dwarf, Reader},
    sections::Sections,
};

/// Why a file cannot serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// Not an ELF file that can be read.
    #[error("{path}: not a readable ELF file: {source}")]
    Elf {
        /// Which file.
        path: String,
        /// What the reader said.
        source: object::Error,
    },
    /// Its DWARF cannot be read.
    #[error("{path}: debug information cannot be read: {source}")]
    Dwarf {
        /// Which file.
        path: String,
        /// What the reader said.
        source: gimli::Error,
    },
}

/// One level of source at an address: several when functions are inlined into each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Demangled function name.
    pub function: Option<String>,
    /// Source file as the compiler recorded it.
    pub file: Option<String>,
    /// Line, from 1.
    pub line: Option<u32>,
}

/// An ELF symbol with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Start, as linked.
    pub address: u64,
    /// Bytes; 0 if the file does not say.
    pub size: u64,
    /// Mangled name.
    pub name: String,
    /// It is data, not code.
    pub data: bool,
}

/// A section kept for the unwinder: name, addresses as linked, content.
type Section = (&'static str, Range<u64>, Arc<[u8]>);

/// One ELF file.
pub struct Module {
    /// Path inside the guest.
    pub path: Vec<u8>,
    /// Build id, if it has one.
    pub build_id: Option<Vec<u8>>,
    /// Name and CRC-32 of the file with its debug information, if it says (`.gnu_debuglink`).
    pub debug_link: Option<(Vec<u8>, u32)>,
    /// Symbols by address.
    pub symbols: Vec<Symbol>,
    /// Its first page.
    head: Vec<u8>,
    /// Loadable pieces: (file offset, bytes in the file, address as linked).
    segments: Vec<(u64, u64, u64)>,
    /// Names of its thread-local variables.
    locals: BTreeSet<String>,
    /// Variables that other modules may use, as linked.
    exported: BTreeMap<String, u64>,
    /// Where the dynamic linker puts the addresses of variables the module uses, as linked.
    slots: BTreeMap<String, u64>,
    /// Where an executable has copies of libraries' variables, as linked.
    copied: BTreeMap<String, u64>,
    /// Size and alignment of its thread-local block.
    tls: Option<(u64, u64)>,
    context: Option<addr2line::Context<Reader>>,
    dwarf: Option<Arc<gimli::Dwarf<Reader>>>,
    unwind: Vec<Section>,
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Module({})", String::from_utf8_lossy(&self.path))
    }
}

impl Module {
    /// Reads the ELF file `data`; debug information and symbols may be in `separate`, a file with the same build id.
    pub fn new(path: &[u8], data: &[u8], separate: Option<&[u8]>) -> Result<Self, ModuleError> {
        let name = || String::from_utf8_lossy(path).into_owned();
        let parse =
            |data| object::File::parse(data).map_err(|source| ModuleError::Elf { path: name(), source });
        let file: object::File<'_> = parse(data)?;
        let build_id = file.build_id().ok().flatten().map(<[u8]>::to_vec);
        let debug_link = file.gnu_debuglink().ok().flatten().map(|(name, crc)| (name.to_vec(), crc));
        let debug = match separate {
            Some(separate) => {
                let other: object::File<'_> = parse(separate)?;
                // A stale debug file would give wrong lines, which is worse than none.
                if other.build_id().ok().flatten().map(<[u8]>::to_vec) == build_id {
                    Some(other)
                } else {
                    None
                }
            }
            None => None,
        };
        let debug_file = debug.as_ref().unwrap_or(&file);
        let wrong = |source| ModuleError::Dwarf { path: name(), source };
        let dwarf = dwarf(debug_file).map_err(wrong)?;
        let context = dwarf.clone().map(addr2line::Context::from_arc_dwarf).transpose().map_err(wrong)?;
        let mut symbols = symbols(&file);
        if let Some(debug) = &debug {
            symbols.extend(self::symbols(debug));
        }
        symbols.sort_by(|a, b| (a.address, &a.name).cmp(&(b.address, &b.name)));
        symbols.dedup();
        let segments = file
            .segments()
            .map(|segment| {
                let (offset, size) = segment.file_range();
                (offset, size, segment.address())
            })
            .collect();
        let contents = Sections::new();
        let unwind = [".text", ".eh_frame", ".eh_frame_hdr", ".got"]
            .into_iter()
            .filter_map(|section_name| {
                let section = file.section_by_name(section_name)?;
                let data = contents.content(&section)?;
                let range = section.address()..section.address().checked_add(section.size())?;
                Some((section_name, range, Arc::from(&*data)))
            })
            .collect();
        let tls = tls(&file);
        let mut locals = thread_locals(&file);
        locals.extend(debug.iter().flat_map(thread_locals));
        let exported = exported(&file);
        let slots = related(&file, object::elf::R_X86_64_GLOB_DAT);
        let copied = related(&file, object::elf::R_X86_64_COPY);
        let head = data[..data.len().min(4096)].to_vec();
        Ok(Module {
            path: path.to_vec(),
            build_id,
            debug_link,
            symbols,
            head,
            segments,
            locals,
            exported,
            slots,
            copied,
            tls,
            context,
            dwarf,
            unwind,
        })
    }

    /// Is this how the file begins (at most a page)?
    pub fn begins_with(&self, bytes: &[u8]) -> bool {
        self.head.starts_with(bytes)
    }

    /// Difference between where it runs and where it was linked, given one of its mappings.
    pub fn bias(&self, start: u64, offset: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|(at, size, _)| {
            // The kernel maps whole pages: a mapping begins at the segment's offset rounded down.
            (at & !0xfff) <= offset && offset < at.saturating_add(*size)
        })?;
        Some(start.wrapping_sub(segment.2.wrapping_sub(segment.0).wrapping_add(offset)))
    }

    /// Has it DWARF line information?
    pub fn has_debug_info(&self) -> bool {
        self.context.is_some()
    }

    /// Debug information for expressions; parses all unit headers, so keep it.
    pub fn dwarf(&self) -> Option<Dwarf> {
        self.dwarf.clone().map(Dwarf::new)
    }

    /// Functions and lines at an address as linked, innermost first; falls back to the symbol table.
    pub fn source(&self, address: u64) -> Vec<SourceFrame> {
        let mut frames = Vec::new();
        if let Some(context) = &self.context
            && let Ok(mut found) = context.find_frames(address).skip_all_loads()
        {
            while let Ok(Some(frame)) = found.next() {
                let function = frame.function.as_ref().map(|name| {
                    name.demangle().map_or_else(|_| String::from("?"), std::borrow::Cow::into_owned)
                });
                let location = frame.location.as_ref();
                frames.push(SourceFrame {
                    function,
                    file: location.and_then(|location| location.file).map(str::to_owned),
                    line: location.and_then(|location| location.line),
                });
            }
        }
        if frames.iter().all(|frame| frame.function.is_none())
            && let Some((symbol, _)) = self.symbol(address)
        {
            let function = Some(demangle(&symbol.name));
            match frames.first_mut() {
                Some(frame) => frame.function = function,
                None => frames.push(SourceFrame { function, ..SourceFrame::default() }),
            }
        }
        frames
    }

    /// The symbol that covers an address as linked, with the distance into it.
    pub fn symbol(&self, address: u64) -> Option<(&Symbol, u64)> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols[..after].iter().rev().take(8).find(|symbol| {
            let into = address - symbol.address;
            into < symbol.size || (symbol.size == 0 && into < 4096)
        })?;
        Some((symbol, address - symbol.address))
    }

    /// Did the linker keep the variable with this linkage name?
    pub fn has_variable(&self, name: &str) -> bool {
        self.locals.contains(name) || self.symbols.iter().any(|symbol| symbol.data && symbol.name == name)
    }

    /// Address, as linked, of a variable that other modules may use.
    pub fn exported(&self, name: &str) -> Option<u64> {
        self.exported.get(name).copied()
    }

    /// Where, as linked, the dynamic linker puts the address of a variable the module uses.
    pub fn slot(&self, name: &str) -> Option<u64> {
        self.slots.get(name).copied()
    }

    /// Address, as linked, of an executable's copy of a library's variable: the one that is used.
    pub fn copied(&self, name: &str) -> Option<u64> {
        self.copied.get(name).copied()
    }

    /// A section kept for unwinding: addresses as linked, content.
    pub(crate) fn section(&self, name: &str) -> Option<(Range<u64>, &[u8])> {
        let (_, range, data) = self.unwind.iter().find(|(own, ..)| *own == name)?;
        Some((range.clone(), data))
    }

    /// Bytes its thread-local block begins below the thread pointer, if it is the executable: the first block of
    /// the static ones (System V ABI x86-64, 3.4.2, "variant II").
    pub fn tls_below(&self) -> Option<u64> {
        let (size, align) = self.tls?;
        size.checked_next_multiple_of(align.max(1))
    }

    /// For the unwinder, loaded with `bias`.
    pub(crate) fn unwind_module(&self, range: Range<u64>, bias: u64) -> framehop::Module<Arc<[u8]>> {
        let find = |name| self.unwind.iter().find(|(own, ..)| *own == name);
        let svma = |name| find(name).map(|(_, range, _)| range.clone());
        let data = |name| find(name).map(|(_, _, data)| Arc::clone(data));
        let info = framehop::ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: svma(".text"),
            text: data(".text"),
            got_svma: svma(".got"),
            eh_frame_svma: svma(".eh_frame"),
            eh_frame: data(".eh_frame"),
            eh_frame_hdr_svma: svma(".eh_frame_hdr"),
            eh_frame_hdr: data(".eh_frame_hdr"),
            ..framehop::ExplicitModuleSectionInfo::default()
        };
        framehop::Module::new(String::from_utf8_lossy(&self.path).into_owned(), range, bias, info)
    }
}

fn dwarf(file: &object::File<'_>) -> Result<Option<Arc<gimli::Dwarf<Reader>>>, gimli::Error> {
    if file.section_by_name(".debug_info").is_none() {
        return Ok(None);
    }
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let contents = Sections::new();
    let section = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|section| contents.content(&section));
        Ok(EndianArcSlice::new(Arc::from(&*data.unwrap_or_default()), endian))
    };
    Ok(Some(Arc::new(gimli::Dwarf::load(section)?)))
}

/// Size and alignment of PT_TLS.
fn tls(file: &object::File<'_>) -> Option<(u64, u64)> {
    use object::read::elf::ProgramHeader as _;
    let object::File::Elf64(elf) = file else { return None };
    let endian = elf.endian();
    let header = elf.elf_program_headers().iter().find(|h| h.p_type(endian) == object::elf::PT_TLS)?;
    Some((header.p_memsz(endian), header.p_align(endian)))
}

fn thread_locals(file: &object::File<'_>) -> BTreeSet<String> {
    let all = file.symbols().chain(file.dynamic_symbols());
    all.filter(|symbol| symbol.kind() == SymbolKind::Tls && !symbol.is_undefined())
        .filter_map(|symbol| Some(symbol.name().ok()?.to_owned()))
        .collect()
}

fn exported(file: &object::File<'_>) -> BTreeMap<String, u64> {
    file.dynamic_symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Data && symbol.address() != 0)
        .filter_map(|symbol| Some((symbol.name().ok()?.to_owned(), symbol.address())))
        .collect()
}

/// Places of the relocations of one type (System V ABI x86-64, 4.4) of what may be a variable.
fn related(file: &object::File<'_>, r_type: object::elf::RelocationType) -> BTreeMap<String, u64> {
    let (Some(relocations), Some(table)) = (file.dynamic_relocations(), file.dynamic_symbol_table()) else {
        return BTreeMap::new();
    };
    let wanted = object::RelocationFlags::Elf { r_type };
    relocations
        .filter(|(_, relocation)| relocation.flags() == wanted)
        .filter_map(|(at, relocation)| {
            let object::RelocationTarget::Symbol(index) = relocation.target() else { return None };
            let symbol = table.symbol_by_index(index).ok()?;
            (symbol.kind() != SymbolKind::Text).then_some(())?;
            Some((symbol.name().ok()?.to_owned(), at))
        })
        .collect()
}

fn symbols(file: &object::File<'_>) -> Vec<Symbol> {
    let all = file.symbols().chain(file.dynamic_symbols());
    all.filter(|symbol| symbol.address() != 0 && matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Data))
        .filter_map(|symbol| {
            Some(Symbol {
                address: symbol.address(),
                size: symbol.size(),
                name: symbol.name().ok()?.to_owned(),
                data: symbol.kind() == SymbolKind::Data,
            })
        })
        .collect()
}

/// A symbol's name as its language writes it.
pub fn demangle(name: &str) -> String {
    addr2line::demangle_auto(name.into(), None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test binary itself is an ELF file with lines.
    #[test]
    fn reads_its_own_lines() {
        let data = std::fs::read("/proc/self/exe").unwrap();
        let module = Module::new(b"self", &data, None).unwrap();
        let marker = module.symbols.iter().find(|s| s.name.contains("marker_function")).unwrap();
        let frames = module.source(marker.address);
        let frame = frames.last().unwrap();
        assert!(frame.function.as_deref().unwrap().ends_with("marker_function"), "{frame:?}");
        assert!(frame.file.as_deref().unwrap().ends_with("module.rs"), "{frame:?}");
        assert!(module.symbol(marker.address).is_some());
        assert_eq!(marker_function(1), 2);
    }

    #[inline(never)]
    fn marker_function(n: u32) -> u32 {
        std::hint::black_box(n) + 1
    }

    #[test]
    fn refuses_what_is_not_elf() {
        assert!(matches!(Module::new(b"x", b"#!/bin/sh\n", None), Err(ModuleError::Elf { .. })));
        let data = std::fs::read("/proc/self/exe").unwrap();
        // Truncated anywhere: an error or less information, never a panic.
        for cut in [10, 64, 4096, data.len() / 2] {
            let _ = Module::new(b"x", &data[..cut], None);
        }
    }
}
