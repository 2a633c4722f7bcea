//! Types as DWARF has them, reduced to what expressions and printing need.

use gimli::{AttributeValue, DwAte};

use super::{Dwarf, Entry};

/// A type: its entry, or what an expression made of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Type {
    /// As the program declares it.
    Declared(Entry),
    /// `void`, or a type the debug information does not give.
    Void,
    /// Pointer made by an expression.
    Pointer(Box<Type>),
    /// Array of n, made by an expression (`expr@n`).
    Array(Box<Type>, u64),
    /// An integer with no declaration: (bytes, signed).
    Integer(u8, bool),
    /// A floating-point number with no declaration: bytes.
    Float(u8),
    /// Some bits of a number: which one, the first bit, how many.
    Bits(Box<Type>, u64, u64),
}

/// What a type is once names and qualifiers are taken off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// No value.
    Void,
    /// Signed or unsigned integer of so many bytes.
    Integer {
        /// Bytes.
        size: u64,
        /// Signed.
        signed: bool,
        /// A character type.
        character: bool,
        /// A truth value.
        boolean: bool,
    },
    /// Floating point of so many bytes (16 for an x87 extended).
    Float(u64),
    /// Pointer or reference.
    Pointer(Type),
    /// Struct, class or union of so many bytes.
    Struct(u64),
    /// Elements and count (0 if unknown).
    Array(Type, u64),
    /// Enumeration of so many bytes with its names.
    Enum(u64, Vec<(i128, String)>),
    /// Code.
    Function,
    /// Something this program does not know; bytes.
    Other(u64),
}

/// A member of a struct.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its name; empty if anonymous.
    pub name: String,
    /// Byte offset.
    pub offset: u64,
    /// Its type.
    pub of: Type,
    /// Bit-field: (bit offset from `offset`, bits).
    pub bits: Option<(u64, u64)>,
    /// A base class.
    pub base: bool,
    /// A virtual base class: the object itself says where it is ([`Dwarf::virtual_base`]), not `offset`.
    pub dynamic: Option<Entry>,
}

/// Deepest inheritance, and most ways from a class to a base class or member, looked through.
pub(crate) const MOST_DEPTH: usize = 16;
pub(crate) const MOST_WAYS: usize = 64;

/// Longest chain of typedefs and qualifiers followed.
const MOST_LINKS: usize = 64;

impl Dwarf {
    /// DW_AT_type of an entry.
    pub(super) fn type_of(&self, entry: Entry) -> Type {
        self.attribute(entry, gimli::DW_AT_type)
            .and_then(|(unit, value)| self.reference(unit, value))
            .map_or(Type::Void, Type::Declared)
    }

    pub(super) fn number(&self, entry: Entry, name: gimli::DwAt) -> Option<u64> {
        let (_, value) = self.attribute(entry, name)?;
        value.udata_value().or_else(|| match value {
            AttributeValue::Sdata(n) => u64::try_from(n).ok(),
            _ => None,
        })
    }

    /// Takes typedefs and qualifiers off.
    pub(super) fn stripped(&self, entry: Entry) -> Option<Entry> {
        let mut at = entry;
        for _ in 0..MOST_LINKS {
            match self.die(at)?.tag() {
                gimli::DW_TAG_typedef
                | gimli::DW_TAG_const_type
                | gimli::DW_TAG_volatile_type
                | gimli::DW_TAG_restrict_type
                | gimli::DW_TAG_atomic_type => match self.type_of(at) {
                    Type::Declared(next) => at = next,
                    _ => return None,
                },
                _ => return Some(at),
            }
        }
        None
    }

    /// Is it a reference of C++'s, which stands for what it refers to?
    pub fn is_reference(&self, of: &Type) -> bool {
        let Type::Declared(entry) = of else { return false };
        let tag = self.stripped(*entry).and_then(|entry| self.die(entry)).map(|die| die.tag());
        matches!(tag, Some(gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type))
    }

    /// The name of a declared type once typedefs and qualifiers are taken off.
    pub fn stripped_name(&self, of: &Type) -> Option<String> {
        let Type::Declared(entry) = of else { return None };
        self.name(self.stripped(*entry)?)
    }

    /// What a template or a generic type was made with: the type given for `name`.
    pub fn parameter(&self, of: &Type, name: &str) -> Option<Type> {
        let Type::Declared(entry) = of else { return None };
        let children = self.children(self.stripped(*entry)?);
        let own = |(child, die): &(Entry, super::Die)| {
            die.tag() == gimli::DW_TAG_template_type_parameter && self.name(*child).as_deref() == Some(name)
        };
        children.into_iter().find(own).map(|(child, _)| self.type_of(child))
    }

    /// Is the type declared by a Rust program?
    pub fn is_rust(&self, of: &Type) -> bool {
        let Type::Declared(entry) = of else { return false };
        let language = self.root(entry.unit).and_then(|root| self.attribute(root, gimli::DW_AT_language));
        matches!(language, Some((_, AttributeValue::Language(gimli::DW_LANG_Rust))))
    }

    /// What a type is.
    pub fn shape(&self, of: &Type) -> Shape {
        match of {
            Type::Void => Shape::Void,
            Type::Pointer(to) => Shape::Pointer((**to).clone()),
            Type::Array(element, count) => Shape::Array((**element).clone(), *count),
            Type::Integer(size, signed) => {
                Shape::Integer { size: u64::from(*size), signed: *signed, character: false, boolean: false }
            }
            Type::Float(size) => Shape::Float(u64::from(*size)),
            Type::Bits(_, at, bits) => Shape::Other(at.saturating_add(*bits).div_ceil(8)),
            Type::Declared(entry) => {
                self.stripped(*entry).and_then(|entry| self.declared(entry)).unwrap_or(Shape::Void)
            }
        }
    }

    fn declared(&self, entry: Entry) -> Option<Shape> {
        let size = self.number(entry, gimli::DW_AT_byte_size).unwrap_or(0);
        Some(match self.die(entry)?.tag() {
            gimli::DW_TAG_base_type => {
                let encoding = match self.attribute(entry, gimli::DW_AT_encoding) {
                    Some((_, AttributeValue::Encoding(encoding))) => encoding,
                    _ => DwAte(0),
                };
                match encoding {
                    // Of 16 bytes there are two: the x87's, and IEEE 754's binary128, which has it in its name.
                    gimli::DW_ATE_float
                        if size == 16 && self.name(entry).is_some_and(|name| name.contains("128")) =>
                    {
                        Shape::Other(size)
                    }
                    gimli::DW_ATE_float => Shape::Float(size),
                    gimli::DW_ATE_boolean
                    | gimli::DW_ATE_signed
                    | gimli::DW_ATE_unsigned
                    | gimli::DW_ATE_signed_char
                    | gimli::DW_ATE_unsigned_char
                    | gimli::DW_ATE_UTF => Shape::Integer {
                        size,
                        signed: matches!(encoding, gimli::DW_ATE_signed | gimli::DW_ATE_signed_char),
                        character: matches!(
                            encoding,
                            gimli::DW_ATE_signed_char | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_UTF
                        ),
                        boolean: encoding == gimli::DW_ATE_boolean,
                    },
                    _ => Shape::Other(size),
                }
            }
            gimli::DW_TAG_pointer_type
            | gimli::DW_TAG_reference_type
            | gimli::DW_TAG_rvalue_reference_type => Shape::Pointer(self.type_of(entry)),
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type => {
                Shape::Struct(size)
            }
            gimli::DW_TAG_array_type => {
                let counts: Vec<u64> = self
                    .children(entry)
                    .into_iter()
                    .filter(|(_, die)| die.tag() == gimli::DW_TAG_subrange_type)
                    .map(|(child, _)| {
                        let upper = self.number(child, gimli::DW_AT_upper_bound);
                        self.number(child, gimli::DW_AT_count)
                            .or(upper.and_then(|upper| upper.checked_add(1)))
                            .unwrap_or(0)
                    })
                    .collect();
                let element = self.type_of(entry);
                let (first, rest) = counts.split_first()?;
                let inner = rest.iter().rev().fold(element, |of, count| Type::Array(Box::new(of), *count));
                Shape::Array(inner, *first)
            }
            gimli::DW_TAG_enumeration_type => {
                let values = self.children(entry).into_iter().filter_map(|(child, die)| {
                    let value = die.attr_value(gimli::DW_AT_const_value)?;
                    let value = match value {
                        AttributeValue::Sdata(n) => i128::from(n),
                        other => i128::from(other.udata_value()?),
                    };
                    Some((value, self.name(child)?))
                });
                Shape::Enum(size, values.collect())
            }
            gimli::DW_TAG_subroutine_type => Shape::Function,
            _ => Shape::Other(size),
        })
    }

    /// Bytes a value of the type takes; `None` if the debug information does not say.
    pub fn size(&self, of: &Type) -> Option<u64> {
        match self.shape(of) {
            Shape::Void | Shape::Function => None,
            Shape::Integer { size, .. }
            | Shape::Float(size)
            | Shape::Struct(size)
            | Shape::Enum(size, _)
            | Shape::Other(size) => (size > 0).then_some(size),
            Shape::Pointer(_) => Some(8),
            Shape::Array(element, count) => self.size(&element)?.checked_mul(count).filter(|size| *size > 0),
        }
    }

    /// The type as its language writes it (C's way for pointers and arrays).
    pub fn type_name(&self, of: &Type) -> String {
        match of {
            Type::Void => "void".into(),
            Type::Pointer(to) => format!("{} *", self.type_name(to)),
            Type::Array(element, count) => format!("{} [{count}]", self.type_name(element)),
            Type::Integer(size, true) => format!("int{}_t", u32::from(*size) * 8),
            Type::Integer(size, false) => format!("uint{}_t", u32::from(*size) * 8),
            Type::Float(4) => "float".into(),
            Type::Float(8) => "double".into(),
            Type::Float(_) => "long double".into(),
            Type::Bits(of, _, bits) => format!("{} : {bits}", self.type_name(of)),
            Type::Declared(entry) => self.declared_name(*entry, 0),
        }
    }

    fn declared_name(&self, entry: Entry, depth: usize) -> String {
        if depth > MOST_LINKS {
            return "?".into();
        }
        let inner = |this: &Self| match this.type_of(entry) {
            Type::Declared(inner) => this.declared_name(inner, depth + 1),
            other => this.type_name(&other),
        };
        let Some(die) = self.die(entry) else { return "?".into() };
        let tag = die.tag();
        if let Some(name) = self.name(entry) {
            return match tag {
                gimli::DW_TAG_structure_type if self.is_c(entry) => format!("struct {name}"),
                gimli::DW_TAG_union_type if self.is_c(entry) => format!("union {name}"),
                gimli::DW_TAG_enumeration_type if self.is_c(entry) => format!("enum {name}"),
                _ => name,
            };
        }
        match tag {
            gimli::DW_TAG_pointer_type => format!("{} *", inner(self)),
            gimli::DW_TAG_reference_type => format!("{} &", inner(self)),
            gimli::DW_TAG_const_type => format!("const {}", inner(self)),
            gimli::DW_TAG_volatile_type => format!("volatile {}", inner(self)),
            gimli::DW_TAG_atomic_type => format!("_Atomic {}", inner(self)),
            gimli::DW_TAG_restrict_type => inner(self),
            gimli::DW_TAG_array_type => match self.declared(entry) {
                Some(Shape::Array(element, count)) => format!("{} [{count}]", self.type_name(&element)),
                _ => format!("{} []", inner(self)),
            },
            gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type => "struct {...}".into(),
            gimli::DW_TAG_union_type => "union {...}".into(),
            gimli::DW_TAG_enumeration_type => "enum {...}".into(),
            gimli::DW_TAG_subroutine_type => "function".into(),
            _ => "?".into(),
        }
    }

    fn is_c(&self, entry: Entry) -> bool {
        let language = self.root(entry.unit).and_then(|root| self.attribute(root, gimli::DW_AT_language));
        matches!(
            language,
            Some((
                _,
                AttributeValue::Language(
                    gimli::DW_LANG_C
                        | gimli::DW_LANG_C89
                        | gimli::DW_LANG_C99
                        | gimli::DW_LANG_C11
                        | gimli::DW_LANG_C17
                )
            ))
        )
    }

    /// Members of a struct in order of declaration, base classes first.
    pub fn members(&self, of: &Type) -> Vec<Member> {
        let Type::Declared(entry) = of else { return Vec::new() };
        let Some(entry) = self.stripped(*entry) else { return Vec::new() };
        let mut members = Vec::new();
        for (child, die) in self.children(entry) {
            let base = die.tag() == gimli::DW_TAG_inheritance;
            if !base && die.tag() != gimli::DW_TAG_member {
                continue;
            }
            if die.attr_value(gimli::DW_AT_external).is_some()
                && die.attr_value(gimli::DW_AT_data_member_location).is_none()
            {
                continue; // a static member: a variable elsewhere
            }
            let size = self.number(child, gimli::DW_AT_bit_size);
            let bit_offset = self.number(child, gimli::DW_AT_data_bit_offset);
            let offset = self.number(child, gimli::DW_AT_data_member_location);
            let (offset, bits) = match (size, bit_offset) {
                (Some(size), Some(at)) => (at / 8, Some((at % 8, size))),
                (Some(size), None) => (offset.unwrap_or(0), Some((0, size))),
                _ => (offset.unwrap_or(0), None),
            };
            let name = self.name(child).unwrap_or_default();
            let place = die.attr_value(gimli::DW_AT_data_member_location);
            let dynamic = matches!(place, Some(AttributeValue::Exprloc(_) | AttributeValue::Block(_)));
            let dynamic = (base && dynamic).then_some(child);
            members.push(Member { name, offset, of: self.type_of(child), bits, base, dynamic });
        }
        members
    }

    /// Finds a member by name, also in anonymous members and base classes: those to go through, then itself.
    pub fn member(&self, of: &Type, name: &str) -> Option<Vec<Member>> {
        self.ways_to(of, name).into_iter().next()
    }

    /// As [`Dwarf::member`], every way: a class's own hides those of its base classes, and of several in base classes it is
    /// for C++ to say which is meant.
    pub fn ways_to(&self, of: &Type, name: &str) -> Vec<Vec<Member>> {
        let mut found = Vec::new();
        self.member_within(of, name, &mut Vec::new(), &mut found);
        found
    }

    fn member_within(&self, of: &Type, name: &str, way: &mut Vec<Member>, found: &mut Vec<Vec<Member>>) {
        if way.len() > MOST_DEPTH || found.len() >= MOST_WAYS {
            return;
        }
        let members = self.members(of);
        if let Some(member) = members.iter().find(|member| member.name == name && !member.base) {
            found.push(way.iter().chain([member]).cloned().collect());
            return;
        }
        for outer in members.into_iter().filter(|member| member.base || member.name.is_empty()) {
            let inside = outer.of.clone();
            way.push(outer);
            self.member_within(&inside, name, way, found);
            way.pop();
        }
    }

    /// The definition of a type that is only declared here; else the type itself.
    pub fn defined(&self, of: &Type) -> Type {
        let Type::Declared(entry) = of else { return of.clone() };
        let Some(own) = self.stripped(*entry) else { return of.clone() };
        let declared = self.die(own).is_some_and(|die| die.attr_value(gimli::DW_AT_declaration).is_some());
        let found = declared.then(|| self.find_type(&self.name(own)?)).flatten();
        found.unwrap_or(Type::Declared(own))
    }

    /// Are two types one? Each unit declares those it uses.
    pub fn same(&self, one: &Type, other: &Type) -> bool {
        let (Type::Declared(a), Type::Declared(b)) = (one, other) else { return one == other };
        let (Some(a), Some(b)) = (self.stripped(*a), self.stripped(*b)) else { return false };
        let outline = |entry| {
            let members = self.members(&Type::Declared(entry)).into_iter();
            members.map(|member| (member.name, member.offset, member.base)).collect::<Vec<_>>()
        };
        a == b
            || (self.name(a).is_some()
                && self.name(a) == self.name(b)
                && self.size(one) == self.size(other)
                && outline(a) == outline(b))
    }

    /// A named type (struct, typedef, base type), for casts; the first unit that declares it wins.
    pub fn find_type(&self, name: &str) -> Option<Type> {
        let plain =
            name.strip_prefix("struct ").or(name.strip_prefix("union ")).or(name.strip_prefix("enum "));
        let plain = plain.unwrap_or(name).trim();
        let parts: Vec<&str> = plain.split("::").collect();
        (0..self.units.len()).find_map(|unit| self.type_in(self.root(unit)?, &parts, 0))
    }

    /// The type called by the last of `parts` inside the namespaces and types called by the others.
    fn type_in(&self, parent: Entry, parts: &[&str], depth: usize) -> Option<Type> {
        let (first, rest) = parts.split_first().filter(|_| depth < 32)?;
        for (child, die) in self.children(parent) {
            let tag = die.tag();
            let outer = matches!(
                tag,
                gimli::DW_TAG_namespace
                    | gimli::DW_TAG_module
                    | gimli::DW_TAG_structure_type
                    | gimli::DW_TAG_class_type
            );
            let is_type = matches!(
                tag,
                gimli::DW_TAG_base_type
                    | gimli::DW_TAG_typedef
                    | gimli::DW_TAG_structure_type
                    | gimli::DW_TAG_class_type
                    | gimli::DW_TAG_union_type
                    | gimli::DW_TAG_enumeration_type
            );
            if !(outer || is_type) || self.name(child).as_deref() != Some(first) {
                continue;
            }
            let declaration = die.attr_value(gimli::DW_AT_declaration).is_some();
            if rest.is_empty() && is_type && !declaration {
                return Some(Type::Declared(child));
            }
            if let Some(found) = (!rest.is_empty()).then(|| self.type_in(child, rest, depth + 1)).flatten() {
                return Some(found);
            }
        }
        None
    }
}
