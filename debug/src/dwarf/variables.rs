//! Variables in scope at an instruction, and globals by name.

use std::collections::BTreeMap;

use gimli::AttributeValue;

use super::{Die, Dwarf, Entry, Type};

/// Names under which `thread_local!` keeps a value (library/std/src/sys/thread_local).
const RUST_LOCALS: [&str; 4] = ["__RUST_STD_INTERNAL_VAL", "__RUST_STD_INTERNAL_KEY", "VAL", "__KEY"];

/// Where a variable was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In a function or block around the instruction; its function's entry gives the frame base.
    Local {
        /// The function (or the function it was inlined into).
        function: Entry,
    },
    /// Global or static.
    Global,
}

/// A variable of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its entry.
    pub entry: Entry,
    /// Name.
    pub name: String,
    /// Type.
    pub of: Type,
    /// Where it was found.
    pub scope: Scope,
    /// `file` part of its unit and the function it is static in, to tell several of one name apart.
    pub where_declared: String,
}

/// A variable as [`Dwarf::each_variable`] tells it.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The file of its unit.
    pub file: &'a str,
    /// Name.
    pub name: &'a str,
    /// The function it is in.
    pub function: Option<&'a str>,
    /// It has a fixed address, or is thread-local.
    pub fixed: bool,
    /// It is defined here, not only declared.
    pub defined: bool,
}

/// A search for globals of one name in one unit.
struct Hunt<'a> {
    wanted: &'a str,
    /// The unit's file.
    file: &'a str,
    /// Namespaces and classes of the variables declared there.
    declared: BTreeMap<Entry, Vec<String>>,
    found: &'a mut Vec<Variable>,
}

impl Dwarf {
    /// Variables and parameters in scope at `address` (as linked), innermost scope first.
    pub fn locals(&self, address: u64) -> Vec<Variable> {
        let Some((unit, function)) = self.function_at(address) else { return Vec::new() };
        let mut found = Vec::new();
        self.gather(function, address, function, &mut found, 0);
        found.reverse();
        debug_assert!(unit == function.unit);
        found
    }

    /// The function whose code holds `address`.
    pub(super) fn function_at(&self, address: u64) -> Option<(usize, Entry)> {
        for unit in 0..self.units.len() {
            let root = self.root(unit)?;
            let die = self.die(root)?;
            if !self.covers(unit, &die, address) {
                continue;
            }
            if let Some(function) = self.function_within(root, address, 0) {
                return Some((unit, function));
            }
        }
        None
    }

    fn function_within(&self, parent: Entry, address: u64, depth: usize) -> Option<Entry> {
        for (child, die) in self.children(parent) {
            match die.tag() {
                gimli::DW_TAG_subprogram if self.covers(child.unit, &die, address) => return Some(child),
                gimli::DW_TAG_namespace
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_class_type
                | gimli::DW_TAG_module
                    if depth < 32 =>
                {
                    if let Some(found) = self.function_within(child, address, depth + 1) {
                        return Some(found);
                    }
                }
                _ => {}
            }
        }
        None
    }

    fn covers(&self, unit: usize, die: &Die, address: u64) -> bool {
        let Ok(mut ranges) = self.unit(unit).die_ranges(die) else { return false };
        while let Ok(Some(range)) = ranges.next() {
            if range.begin <= address && address < range.end {
                return true;
            }
        }
        false
    }

    /// Outer scopes first, so that the caller's reversal puts the innermost first.
    fn gather(&self, scope: Entry, address: u64, function: Entry, found: &mut Vec<Variable>, depth: usize) {
        if depth > 64 {
            return;
        }
        let mut inner = Vec::new();
        for (child, die) in self.children(scope) {
            match die.tag() {
                gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                    if let Some(name) = self.name(child) {
                        let of = self.type_of(child);
                        let where_declared = self.name(function).unwrap_or_default();
                        found.push(Variable {
                            entry: child,
                            name,
                            of,
                            scope: Scope::Local { function },
                            where_declared,
                        });
                    }
                }
                gimli::DW_TAG_lexical_block | gimli::DW_TAG_inlined_subroutine
                    if self.covers(child.unit, &die, address) =>
                {
                    inner.push(child);
                }
                _ => {}
            }
        }
        for block in inner {
            self.gather(block, address, function, found, depth + 1);
        }
    }

    /// Globals, statics (also those inside functions and namespaces) with this name. `name` may be qualified
    /// (`ns::x`); a definition wins over declarations, so each place is listed once.
    pub fn globals(&self, name: &str) -> Vec<Variable> {
        let mut found = Vec::new();
        for unit in 0..self.units.len() {
            if let Some(root) = self.root(unit) {
                let file = self.name(root).unwrap_or_default();
                let mut hunt =
                    Hunt { wanted: name, file: &file, declared: BTreeMap::new(), found: &mut found };
                self.search(root, &mut hunt, &mut Vec::new(), 0);
            }
        }
        found
    }

    fn search(&self, parent: Entry, hunt: &mut Hunt<'_>, path: &mut Vec<String>, depth: usize) {
        if depth > 32 {
            return;
        }
        for (child, die) in self.children(parent) {
            match die.tag() {
                gimli::DW_TAG_variable => {
                    let has_place = matches!(
                        die.attr_value(gimli::DW_AT_location),
                        Some(AttributeValue::Exprloc(_) | AttributeValue::Block(_))
                    );
                    if !has_place {
                        // What it declares is defined elsewhere, outside its namespace or class.
                        hunt.declared.insert(child, path.clone());
                        continue;
                    }
                    let Some(name) = self.name(child).filter(|_| self.is_static(child)) else {
                        continue;
                    };
                    let declared =
                        self.origin(child.unit, &die).and_then(|origin| hunt.declared.get(&origin));
                    let path: &[String] = declared.map_or(path, |path| path);
                    let (wanted, file) = (hunt.wanted, hunt.file);
                    // What `thread_local!` declares lies in closures inside a namespace of the name that was written.
                    let own = path.iter().rposition(|part| !part.starts_with('{')).map_or(0, |last| last + 1);
                    let (path, name) = match path.get(own.wrapping_sub(1)) {
                        Some(written) if own < path.len() && RUST_LOCALS.contains(&name.as_str()) => {
                            (&path[..own - 1], written.clone())
                        }
                        _ => (path, name),
                    };
                    let qualified = path.iter().cloned().chain([name.clone()]).collect::<Vec<_>>().join("::");
                    if name == wanted || qualified == wanted || qualified.ends_with(&format!("::{wanted}")) {
                        let of = self.type_of(child);
                        let where_declared = if path.is_empty() {
                            file.to_owned()
                        } else {
                            format!("{} ({file})", path.join("::"))
                        };
                        hunt.found.push(Variable {
                            entry: child,
                            name,
                            of,
                            scope: Scope::Global,
                            where_declared,
                        });
                    }
                }
                gimli::DW_TAG_member if die.attr_value(gimli::DW_AT_external).is_some() => {
                    hunt.declared.insert(child, path.clone());
                }
                gimli::DW_TAG_namespace
                | gimli::DW_TAG_module
                | gimli::DW_TAG_subprogram
                | gimli::DW_TAG_lexical_block
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_class_type => {
                    let name = self.name(child);
                    let pushed = name.is_some();
                    path.extend(name);
                    self.search(child, hunt, path, depth + 1);
                    if pushed {
                        path.pop();
                    }
                }
                _ => {}
            }
        }
    }

    /// The name the linker knows a variable by; `None` for one that only its own unit knows.
    pub fn linkage_name(&self, variable: &Variable) -> Option<String> {
        if let Some((unit, value)) = self.attribute(variable.entry, gimli::DW_AT_linkage_name) {
            return self.string(unit, value);
        }
        self.attribute(variable.entry, gimli::DW_AT_external).and_then(|_| self.name(variable.entry))
    }

    /// Every named variable.
    pub fn each_variable(&self, each: &mut dyn FnMut(&Named<'_>)) {
        for unit in 0..self.units.len() {
            if let Some(root) = self.root(unit) {
                let file = self.file(root);
                self.walk(root, (&file, None), each, 0);
            }
        }
    }

    fn walk(
        &self,
        parent: Entry,
        (file, function): (&str, Option<&str>),
        each: &mut dyn FnMut(&Named<'_>),
        depth: usize,
    ) {
        if depth > 32 {
            return;
        }
        for (child, die) in self.children(parent) {
            match die.tag() {
                gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                    if let Some(name) = self.name(child) {
                        let fixed = self.is_static(child);
                        let defined = die.attr_value(gimli::DW_AT_declaration).is_none();
                        each(&Named { file, name: &name, function, fixed, defined });
                    }
                }
                gimli::DW_TAG_subprogram => {
                    let name = self.name(child);
                    self.walk(child, (file, name.as_deref()), each, depth + 1);
                }
                gimli::DW_TAG_namespace
                | gimli::DW_TAG_module
                | gimli::DW_TAG_lexical_block
                | gimli::DW_TAG_inlined_subroutine
                | gimli::DW_TAG_structure_type
                | gimli::DW_TAG_class_type => self.walk(child, (file, function), each, depth + 1),
                _ => {}
            }
        }
    }

    /// The file of a unit, with its directory.
    fn file(&self, root: Entry) -> String {
        let name = self.name(root).unwrap_or_default();
        let directory = self.attribute(root, gimli::DW_AT_comp_dir);
        match directory.and_then(|(unit, value)| self.string(unit, value)) {
            Some(directory) if !name.starts_with('/') => format!("{directory}/{name}"),
            _ => name,
        }
    }

    /// Has it a fixed address (or is it thread-local), rather than a place in a frame?
    fn is_static(&self, entry: Entry) -> bool {
        let Some((unit, AttributeValue::Exprloc(expression))) = self.attribute(entry, gimli::DW_AT_location)
        else {
            return false;
        };
        let mut operations = expression.operations(self.units[unit].encoding());
        matches!(
            operations.next(),
            Ok(Some(
                gimli::Operation::Address { .. }
                    | gimli::Operation::AddressIndex { .. }
                    | gimli::Operation::UnsignedConstant { .. }
                    | gimli::Operation::ConstantIndex { .. }
                    | gimli::Operation::SignedConstant { .. }
            ))
        )
    }
}
