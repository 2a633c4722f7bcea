//! What a program's debug information says of its variables and types.

mod locate;
mod types;
mod variables;
mod variants;

use std::sync::Arc;

use gimli::{AttributeValue, DebuggingInformationEntry, EndianArcSlice, RunTimeEndian, UnitOffset, UnitRef};
pub use locate::{Evaluated, LocateError, Machine, Piece};
pub(crate) use types::{MOST_DEPTH, MOST_WAYS};
pub use types::{Member, Shape, Type};
pub use variables::{Named, Scope, Variable};

/// How DWARF sections are read.
pub type Reader = EndianArcSlice<RunTimeEndian>;
pub(crate) type Die = DebuggingInformationEntry<Reader>;

/// One module's debug information with its units parsed.
pub struct Dwarf {
    dwarf: Arc<gimli::Dwarf<Reader>>,
    units: Vec<gimli::Unit<Reader>>,
}

impl std::fmt::Debug for Dwarf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dwarf({} units)", self.units.len())
    }
}

/// A debugging information entry: unit and offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    unit: usize,
    offset: usize,
}

impl Dwarf {
    /// Parses the headers of all units; one that cannot be parsed ends the list (the rest is unreadable).
    pub fn new(dwarf: Arc<gimli::Dwarf<Reader>>) -> Self {
        let mut units = Vec::new();
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            if let Ok(unit) = dwarf.unit(header) {
                units.push(unit);
            }
        }
        Dwarf { dwarf, units }
    }

    fn unit(&self, index: usize) -> UnitRef<'_, Reader> {
        UnitRef::new(&self.dwarf, &self.units[index])
    }

    fn die(&self, entry: Entry) -> Option<Die> {
        self.units.get(entry.unit)?.entry(UnitOffset(entry.offset)).ok()
    }

    fn string(&self, unit: usize, value: AttributeValue<Reader>) -> Option<String> {
        use gimli::Reader as _;
        let text = self.unit(unit).attr_string(value).ok()?;
        Some(text.to_string_lossy().ok()?.into_owned())
    }

    /// DW_AT_name, through DW_AT_abstract_origin and DW_AT_specification.
    fn name(&self, entry: Entry) -> Option<String> {
        let mut at = entry;
        for _ in 0..8 {
            let die = self.die(at)?;
            if let Some(value) = die.attr_value(gimli::DW_AT_name) {
                return self.string(at.unit, value);
            }
            at = self.origin(at.unit, &die)?;
        }
        None
    }

    fn origin(&self, unit: usize, die: &Die) -> Option<Entry> {
        let value = die
            .attr_value(gimli::DW_AT_abstract_origin)
            .or_else(|| die.attr_value(gimli::DW_AT_specification))?;
        self.reference(unit, value)
    }

    /// The entry a reference attribute points at.
    fn reference(&self, unit: usize, value: AttributeValue<Reader>) -> Option<Entry> {
        match value {
            AttributeValue::UnitRef(offset) => Some(Entry { unit, offset: offset.0 }),
            AttributeValue::DebugInfoRef(offset) => {
                let index = self.units.iter().position(|unit| offset.to_unit_offset(unit).is_some())?;
                Some(Entry { unit: index, offset: offset.to_unit_offset(&self.units[index])?.0 })
            }
            _ => None,
        }
    }

    /// Attribute of an entry, else of what it originates from.
    fn attribute(&self, entry: Entry, name: gimli::DwAt) -> Option<(usize, AttributeValue<Reader>)> {
        let mut at = entry;
        for _ in 0..8 {
            let die = self.die(at)?;
            if let Some(value) = die.attr_value(name) {
                return Some((at.unit, value));
            }
            at = self.origin(at.unit, &die)?;
        }
        None
    }

    /// Children of an entry.
    fn children(&self, entry: Entry) -> Vec<(Entry, Die)> {
        let Some(unit) = self.units.get(entry.unit) else { return Vec::new() };
        let Ok(mut tree) = unit.entries_tree(Some(UnitOffset(entry.offset))) else { return Vec::new() };
        let Ok(root) = tree.root() else { return Vec::new() };
        let mut out = Vec::new();
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            let die = child.entry().clone();
            out.push((Entry { unit: entry.unit, offset: die.offset().0 }, die));
        }
        out
    }

    fn root(&self, unit: usize) -> Option<Entry> {
        let mut cursor = self.units[unit].entries();
        let die = cursor.next_dfs().ok()??;
        Some(Entry { unit, offset: die.offset().0 })
    }
}
