//! The places at which a dynamic linker tells debuggers of libraries. gdb has a breakpoint of its own at each of them.
//!
//! glibc changes `_r_debug` on the way to every one (elf/dl-open.c, dl-close.c, rtld.c: `r_state` is set, then
//! `_dl_debug_state` called or a probe passed), so where that is not written the list of libraries is not changed either.

use std::ops::Range;

use object::{Endianness, Object as _, ObjectSection as _, ObjectSymbol as _, elf::FileHeader64};

use super::session::Session;

/// One note of a probe (SystemTap's sdt.h, version 3): header, "stapsdt", three addresses, three texts.
struct Probe<'a> {
    at: u64,
    base: u64,
    provider: &'a [u8],
}

/// What a linker's file says, as linked.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    breakpoints: Vec<u64>,
    state: Option<Range<u64>>,
}

fn probes(mut notes: &[u8]) -> Vec<Probe<'_>> {
    let mut found = Vec::new();
    let word = |bytes: &[u8]| -> Option<u64> { Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?)) };
    let size = |bytes: &[u8]| -> Option<usize> {
        Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize)
    };
    while notes.len() >= 12 {
        let (Some(name), Some(text), Some(kind)) = (size(notes), size(&notes[4..]), size(&notes[8..])) else {
            break;
        };
        let start = 12usize.saturating_add(name.next_multiple_of(4));
        let end = start.saturating_add(text);
        let (Some(owner), Some(content)) =
            (notes.get(12..12usize.saturating_add(name)), notes.get(start..end))
        else {
            break;
        };
        if kind == 3
            && owner == b"stapsdt\0"
            && let (Some(at), Some(base)) = (word(content), content.get(8..).and_then(word))
            && let Some(texts) = content.get(24..)
        {
            let provider = texts.split(|byte| *byte == 0).next().unwrap_or_default();
            found.push(Probe { at, base, provider });
        }
        notes = notes.get(end.next_multiple_of(4)..).unwrap_or_default();
    }
    found
}

fn places(content: &[u8]) -> Option<Places> {
    let file = object::read::elf::ElfFile::<FileHeader64<Endianness>>::parse(content).ok()?;
    let mut places = Places::default();
    for symbol in file.dynamic_symbols() {
        match symbol.name() {
            Ok("_r_debug") => {
                places.state = Some(symbol.address()..symbol.address().checked_add(symbol.size().max(8))?);
            }
            Ok("_dl_debug_state") => places.breakpoints.push(symbol.address()),
            _ => {}
        }
    }
    let base = file.section_by_name(".stapsdt.base").map(|section| section.address());
    if let (Some(base), Some(notes)) = (base, file.section_by_name(".note.stapsdt")) {
        for probe in probes(notes.data().ok()?).iter().filter(|probe| probe.provider == b"rtld") {
            places.breakpoints.push(probe.at.wrapping_add(base.wrapping_sub(probe.base)));
        }
    }
    Some(places)
}

impl Session<'_> {
    /// Tells the traveller whether a breakpoint is one of gdb's own, in the dynamic linker.
    pub(super) fn note_linker(&mut self, breakpoint: u64) {
        let state = self.linker_state(breakpoint);
        self.travel.passes_with(breakpoint, state);
    }

    /// What is written about the time a place in the linker is passed; `None` for any other place.
    fn linker_state(&mut self, breakpoint: u64) -> Option<Range<u64>> {
        let mappings = &self.program.mappings;
        let inside = mappings.iter().find(|own| (own.start..own.end).contains(&breakpoint))?;
        let path = inside.path.clone()?;
        // A linker is linked at 0, and its lowest mapping is its beginning.
        let bias = mappings.iter().find(|own| own.path.as_ref() == Some(&path))?.start;
        if !self.linkers.contains_key(&path) {
            let found = self.content(&path).and_then(|content| places(&content)).unwrap_or_default();
            self.linkers.insert(path.clone(), found);
        }
        let Places { breakpoints, state } = self.linkers.get(&path)?;
        let state = state.as_ref().filter(|_| breakpoints.contains(&breakpoint.wrapping_sub(bias)))?;
        Some(state.start.wrapping_add(bias)..state.end.wrapping_add(bias))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_hosts_linker() {
        let content = std::fs::read("/lib64/ld-linux-x86-64.so.2").unwrap();
        let places = places(&content).unwrap();
        // `_dl_debug_state` at least; with SystemTap's probes, where the C library was built with them, some ten more.
        assert!(places.state.is_some() && !places.breakpoints.is_empty(), "{places:?}");
    }

    #[test]
    fn damaged_notes_end_the_list() {
        let mut notes = Vec::new();
        notes.extend([8u32, 48, 3].iter().flat_map(|word| word.to_le_bytes()));
        notes.extend(b"stapsdt\0");
        notes.extend([16u64, 32, 0].iter().flat_map(|word| word.to_le_bytes()));
        notes.extend(b"rtld\0map_start\0-8@%rax\0");
        notes.resize(12 + 8 + 48, 0);
        let whole = probes(&notes);
        assert!(whole.len() == 1 && whole[0].at == 16 && whole[0].provider == b"rtld");
        for cut in 0..notes.len() {
            assert!(probes(&notes[..cut]).is_empty(), "{cut}");
        }
        assert!(probes(&[0xff; 64]).is_empty());
    }
}
