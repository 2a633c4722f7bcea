//! Evaluates an expression to a place: an address range with a type, or a value that is nowhere in memory.

use std::sync::Arc;

use super::parse::{Expr, TypeName};
use crate::{
    dwarf::{Dwarf, LocateError, Machine, Piece, Shape, Type, Variable},
    unwind::Loaded,
};

/// Where a value is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// In memory from this address.
    Memory(u64),
    /// In registers or split up; its bytes.
    Elsewhere(Vec<u8>),
    /// A plain value of the expression.
    Value(u64),
}

/// What an expression stands for.
#[derive(Clone, Debug)]
pub struct Place {
    /// Where it is.
    pub at: Where,
    /// Its type.
    pub of: Type,
    /// Bytes.
    pub size: u64,
    /// Debug information its type belongs to.
    pub dwarf: Option<Arc<Dwarf>>,
}

/// Why there is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    /// No such variable.
    #[error("no variable {name} is in scope {place} and no global has that name")]
    Unknown {
        /// The name.
        name: String,
        /// "at bank.c:41 (teller)".
        place: String,
    },
    /// Nothing in the process has debug information.
    #[error(
        "{name}: the program has no debug information (build it with -g), so only addresses can be asked for: @ADDRESS,SIZE"
    )]
    NoDebugInfo {
        /// The name.
        name: String,
    },
    /// Several statics of one name.
    #[error("{name} is ambiguous: {}", places.join("; "))]
    Ambiguous {
        /// The name.
        name: String,
        /// Where each is declared, with its address.
        places: Vec<String>,
    },
    /// It exists but has no place now.
    #[error("{name}: {source}")]
    Nowhere {
        /// The variable.
        name: String,
        /// Why.
        source: LocateError,
    },
    /// A member that is not there.
    #[error("{of} has no member {member}")]
    NoMember {
        /// The type.
        of: String,
        /// The member.
        member: String,
    },
    /// An operator that does not fit.
    #[error("{0}")]
    Operator(String),
    /// Memory that is not there.
    #[error("address {0:#x} is not mapped")]
    Unmapped(u64),
    /// An unknown type in a cast.
    #[error("no type {0} in the program's debug information")]
    NoType(String),
}

/// The frame an expression is evaluated in.
pub struct FrameScope<'a> {
    /// Registers and memory.
    pub machine: &'a dyn Machine,
    /// A general register by its name without `$`; `None` if there is none of that name.
    pub register: &'a dyn Fn(&str) -> Option<u64>,
    /// Module of the instruction first, then the others, each with its debug information if it has some.
    pub modules: &'a [(Loaded, Option<Arc<Dwarf>>)],
    /// The instruction (for callers: the byte before the return address).
    pub address: u64,
    /// "at bank.c:41 (teller)", for messages.
    pub place: String,
}

/// Largest place accepted, bytes.
pub(super) const MOST_BYTES: u64 = 1 << 20;

/// Most pointers a member is looked for behind.
const MOST_POINTERS: usize = 8;

/// Evaluates `expr`.
pub fn evaluate(expr: &Expr, scope: &FrameScope<'_>) -> Result<Place, EvalError> {
    let place = scope.place(expr)?;
    if place.size > MOST_BYTES {
        return Err(EvalError::Operator(format!("{} bytes are too many (at most {MOST_BYTES})", place.size)));
    }
    Ok(place)
}

impl FrameScope<'_> {
    fn place(&self, expr: &Expr) -> Result<Place, EvalError> {
        let place = self.unreferred(expr)?;
        // A C++ reference is what it refers to.
        match (&place.dwarf, &place.at) {
            (Some(dwarf), Where::Memory(_) | Where::Elsewhere(_)) if dwarf.is_reference(&place.of) => {
                let to = pointee(&place)?;
                self.at(self.load(&place)?, to, place.dwarf)
            }
            _ => Ok(place),
        }
    }

    fn unreferred(&self, expr: &Expr) -> Result<Place, EvalError> {
        match expr {
            Expr::Number(n) => Ok(value(*n, None)),
            Expr::Register(name) => {
                let found = (self.register)(name).ok_or_else(|| {
                    EvalError::Operator(format!("no register ${name}: $rax to $r15, $rip, $eflags"))
                })?;
                Ok(value(found, None))
            }
            Expr::Name(name) => self.variable(name),
            Expr::Deref(inner) => self.target(self.place(inner)?),
            Expr::AddressOf(inner) => {
                let inner = self.place(inner)?;
                let Where::Memory(address) = inner.at else {
                    return Err(EvalError::Operator("& needs a place in memory".into()));
                };
                let of = Type::Pointer(Box::new(inner.of));
                Ok(Place { at: Where::Value(address), of, size: 8, dwarf: inner.dwarf })
            }
            Expr::Negate(inner) => Ok(value(self.number(inner)?.wrapping_neg(), None)),
            Expr::Field(inner, name) => {
                let inner = self.place(inner)?;
                self.field(inner, name, 0)
            }
            Expr::Arrow(inner, name) => {
                let inner = self.place(inner)?;
                // Of a struct the dot is meant: gdb takes either too.
                let plain = matches!(shape(&inner), Shape::Struct(_)) && self.contained(&inner)?.is_none();
                let outer = if plain { inner } else { self.target(inner)? };
                self.field(outer, name, 0)
            }
            Expr::Index(inner, index) => {
                let inner = self.place(inner)?;
                let index = self.number(index)?;
                self.element(inner, index)
            }
            Expr::Cast(name, inner) => {
                let inner = self.place(inner)?;
                let dwarf =
                    inner.dwarf.clone().or_else(|| self.modules.iter().find_map(|(_, dwarf)| dwarf.clone()));
                let of = self.named(name, dwarf.as_deref())?;
                let mut loaded = self.load(&inner)?;
                if let (Shape::Pointer(from), Some(dwarf)) = (shape(&inner), &dwarf)
                    && let Shape::Pointer(to) = dwarf.shape(&of)
                {
                    loaded = self.converted(loaded, &from, &to, dwarf)?;
                }
                let size = size(dwarf.as_deref(), &of).unwrap_or(8);
                Ok(Place { at: Where::Value(loaded), of, size, dwarf })
            }
            Expr::Add(a, b) => self.sum(a, b, false),
            Expr::Subtract(a, b) => self.sum(a, b, true),
            Expr::Repeat(inner, count) => {
                let inner = self.place(inner)?;
                let count = self.number(count)?;
                let Where::Memory(_) = inner.at else {
                    return Err(EvalError::Operator("@ needs a place in memory on its left".into()));
                };
                let size = inner.size.checked_mul(count).filter(|size| (1..=MOST_BYTES).contains(size));
                let size = size
                    .ok_or_else(|| EvalError::Operator(format!("{count} elements are too many or none")))?;
                Ok(Place { of: Type::Array(Box::new(inner.of), count), size, ..inner })
            }
            Expr::Bytes(address, size) => {
                let address = self.number(address)?;
                let of = Type::Array(Box::new(Type::Integer(1, false)), *size);
                let dwarf = self.modules.iter().find_map(|(_, dwarf)| dwarf.clone());
                Ok(Place { at: Where::Memory(address), of, size: *size, dwarf })
            }
        }
    }

    fn variable(&self, name: &str) -> Result<Place, EvalError> {
        if let Some((loaded, Some(dwarf))) = self.modules.first() {
            let address = self.address.wrapping_sub(loaded.bias);
            if let Some(local) = dwarf.locals(address).into_iter().find(|local| local.name == name) {
                return self.locate(&local, loaded, dwarf, address);
            }
            // In a C++ method a member's name alone is enough.
            if let Some(this) = dwarf.locals(address).into_iter().find(|local| local.name == "this")
                && let Shape::Pointer(to) = dwarf.shape(&this.of)
                && dwarf.member(&to, name).is_some()
            {
                let this = self.locate(&this, loaded, dwarf, address)?;
                return self.field(this, name, 0);
            }
        }
        self.global(name)
    }

    /// What a pointer, or something that stands for one, points to.
    fn target(&self, inner: Place) -> Result<Place, EvalError> {
        if let Some(pointer) = self.contained(&inner)? {
            return self.target(pointer);
        }
        let to = pointee(&inner)?;
        self.at(self.load(&inner)?, to, inner.dwarf)
    }

    /// A member, also through pointers, as Rust writes it: `a.b`, whatever number of them `a` is behind.
    fn field(&self, inner: Place, name: &str, depth: usize) -> Result<Place, EvalError> {
        if let Shape::Pointer(to) = shape(&inner)
            && depth < MOST_POINTERS
        {
            let outer = self.at(self.load(&inner)?, to, inner.dwarf)?;
            return self.field(outer, name, depth + 1);
        }
        let missing = match self.member(inner.clone(), name) {
            Err(missing @ EvalError::NoMember { .. }) if depth < MOST_POINTERS => missing,
            other => return other,
        };
        if let Some(inside) = self.wrapped(&inner)? {
            return self.field(inside, name, depth + 1).map_err(|_| missing);
        }
        match self.contained(&inner)? {
            Some(pointer) if matches!(shape(&pointer), Shape::Pointer(_)) => {
                self.field(pointer, name, depth + 1).map_err(|_| missing)
            }
            _ => Err(missing),
        }
    }

    pub(super) fn locate(
        &self,
        variable: &Variable,
        loaded: &Loaded,
        dwarf: &Arc<Dwarf>,
        address: u64,
    ) -> Result<Place, EvalError> {
        let nowhere = |source| EvalError::Nowhere { name: variable.name.clone(), source };
        let found = dwarf.locate(variable, address, loaded.bias, self.machine).map_err(nowhere)?;
        let of = match dwarf.bounded(variable, address, loaded.bias, self.machine) {
            Some(of) => of,
            None => variable.of.clone(),
        };
        let size = dwarf.size(&of).unwrap_or(8);
        let at = match found.pieces.as_slice() {
            [(Piece::Memory(at), _)] => Where::Memory(*at),
            pieces => {
                let mut bytes = Vec::new();
                for (piece, length) in pieces {
                    let length = length.unwrap_or(size.saturating_sub(bytes.len() as u64)).min(size) as usize;
                    let mut part = vec![0; length];
                    match piece {
                        Piece::Memory(at) => {
                            if !self.machine.read(*at, &mut part) {
                                return Err(EvalError::Unmapped(*at));
                            }
                        }
                        Piece::Register(number) => {
                            let value = self.machine.register(*number);
                            let value = value.ok_or_else(|| nowhere(LocateError::Register(*number)))?;
                            fill(&mut part, value);
                        }
                        Piece::Value(value) => fill(&mut part, *value),
                        Piece::Gone => return Err(nowhere(LocateError::OptimisedOut)),
                    }
                    bytes.extend(part);
                }
                Where::Elsewhere(bytes)
            }
        };
        Ok(Place { at, of, size, dwarf: Some(Arc::clone(dwarf)) })
    }

    pub(super) fn at(&self, address: u64, of: Type, dwarf: Option<Arc<Dwarf>>) -> Result<Place, EvalError> {
        let size = size(dwarf.as_deref(), &of).ok_or_else(|| {
            EvalError::Operator("a void pointer cannot be followed: cast it, as in *(int *)p".into())
        })?;
        Ok(Place { at: Where::Memory(address), of, size, dwarf })
    }

    fn element(&self, outer: Place, index: u64) -> Result<Place, EvalError> {
        if self.holds_one(&outer) {
            // Behind it is one value, whose elements are meant.
            return self.element(self.target(outer)?, index);
        }
        if let Some(inside) = self.wrapped(&outer)? {
            return self.element(inside, index);
        }
        if let Some(inside) = self.contained(&outer)? {
            return self.element(inside, index);
        }
        let (base, of) = match shape(&outer) {
            Shape::Pointer(to) => (self.load(&outer)?, to),
            Shape::Array(element, _) => match outer.at {
                Where::Memory(at) => (at, element),
                _ => return Err(EvalError::Operator("this array is not in memory".into())),
            },
            _ => {
                let what = type_name(outer.dwarf.as_deref(), &outer.of);
                let text = format!(
                    "[] needs a pointer, an array or a vector on its left, and this is a {what}: gdb tells where an \
                     element is (print &x[i]), and @ADDRESS,SIZE or *(TYPE *)ADDRESS asks for it"
                );
                return Err(EvalError::Operator(text));
            }
        };
        let step = size(outer.dwarf.as_deref(), &of).unwrap_or(1);
        self.at(base.wrapping_add(index.wrapping_mul(step)), of, outer.dwarf)
    }

    fn sum(&self, a: &Expr, b: &Expr, minus: bool) -> Result<Place, EvalError> {
        let left = self.place(a)?;
        let mut right = self.number(b)?;
        let step = match shape(&left) {
            Shape::Pointer(to) => size(left.dwarf.as_deref(), &to).unwrap_or(1),
            _ => 1,
        };
        right = right.wrapping_mul(step);
        let base = self.load(&left)?;
        let sum = if minus { base.wrapping_sub(right) } else { base.wrapping_add(right) };
        Ok(Place { at: Where::Value(sum), ..left })
    }

    fn number(&self, expr: &Expr) -> Result<u64, EvalError> {
        let place = self.place(expr)?;
        self.load(&place)
    }

    /// The value of a scalar place; an array's is its address, as in C.
    pub(super) fn load(&self, place: &Place) -> Result<u64, EvalError> {
        let shape = shape(place);
        match (&place.at, shape) {
            (Where::Memory(at), Shape::Array(..)) => Ok(*at),
            (_, Shape::Struct(_) | Shape::Float(_)) => {
                Err(EvalError::Operator("a number or pointer is needed here".into()))
            }
            (Where::Value(value), _) => Ok(*value),
            (Where::Elsewhere(bytes), shape) => Ok(scalar(bytes, &place.of, &shape)),
            (Where::Memory(at), shape) => {
                let mut bytes = vec![0; place.size.min(8) as usize];
                if !self.machine.read(*at, &mut bytes) {
                    return Err(EvalError::Unmapped(*at));
                }
                Ok(scalar(&bytes, &place.of, &shape))
            }
        }
    }

    fn named(&self, name: &TypeName, dwarf: Option<&Dwarf>) -> Result<Type, EvalError> {
        let mut words: Vec<&str> = name.base.split(' ').collect();
        words.sort_unstable();
        let unsigned = words.contains(&"unsigned");
        let plain = words.iter().all(|word| {
            ["unsigned", "signed", "char", "short", "int", "long", "float", "double", "void", "bool"]
                .contains(word)
        });
        let declared = dwarf.and_then(|dwarf| dwarf.find_type(&name.base));
        let base = match declared {
            Some(of) => of,
            None if plain && words.contains(&"void") => Type::Void,
            None if plain && words.contains(&"float") => Type::Float(4),
            None if plain && words.contains(&"double") => Type::Float(8),
            None if plain && words.contains(&"bool") => Type::Integer(1, false),
            None if plain && words.contains(&"char") => Type::Integer(1, !unsigned),
            None if plain && words.contains(&"short") => Type::Integer(2, !unsigned),
            None if plain && words.contains(&"long") => Type::Integer(8, !unsigned),
            None if plain => Type::Integer(4, !unsigned),
            None => match name.base.as_str() {
                "u8" | "uint8_t" => Type::Integer(1, false),
                "u16" | "uint16_t" => Type::Integer(2, false),
                "u32" | "uint32_t" => Type::Integer(4, false),
                "u64" | "uint64_t" | "size_t" | "usize" | "uintptr_t" => Type::Integer(8, false),
                "i8" | "int8_t" => Type::Integer(1, true),
                "i16" | "int16_t" => Type::Integer(2, true),
                "i32" | "int32_t" => Type::Integer(4, true),
                "i64" | "int64_t" | "ssize_t" | "isize" | "intptr_t" => Type::Integer(8, true),
                "f32" => Type::Float(4),
                "f64" => Type::Float(8),
                _ => return Err(EvalError::NoType(name.base.clone())),
            },
        };
        Ok((0..name.pointers).fold(base, |of, _| Type::Pointer(Box::new(of))))
    }
}

fn value(n: u64, dwarf: Option<Arc<Dwarf>>) -> Place {
    Place { at: Where::Value(n), of: Type::Integer(8, false), size: 8, dwarf }
}

fn fill(part: &mut [u8], value: u64) {
    let bytes = value.to_le_bytes();
    let size = part.len().min(8);
    part[..size].copy_from_slice(&bytes[..size]);
}

fn scalar(bytes: &[u8], of: &Type, shape: &Shape) -> u64 {
    match of {
        Type::Bits(_, at, bits) => {
            let value = extend(bytes, shape) >> (*at).min(63);
            if *bits < 64 { value & ((1 << bits) - 1) } else { value }
        }
        _ => extend(bytes, shape),
    }
}

fn extend(bytes: &[u8], shape: &Shape) -> u64 {
    let mut wide = [0; 8];
    let size = bytes.len().min(8);
    wide[..size].copy_from_slice(&bytes[..size]);
    let signed = matches!(shape, Shape::Integer { signed: true, .. });
    if signed && size > 0 && bytes[size - 1] & 0x80 != 0 {
        wide[size..].fill(0xff);
    }
    u64::from_le_bytes(wide)
}

/// Types made by an expression need no debug information to be understood.
fn shape(place: &Place) -> Shape {
    match (&place.dwarf, &place.of) {
        (Some(dwarf), of) => dwarf.shape(of),
        (None, Type::Pointer(to)) => Shape::Pointer((**to).clone()),
        (None, Type::Array(element, count)) => Shape::Array((**element).clone(), *count),
        (None, Type::Integer(size, signed)) => {
            Shape::Integer { size: u64::from(*size), signed: *signed, character: false, boolean: false }
        }
        (None, Type::Float(size)) => Shape::Float(u64::from(*size)),
        (None, _) => Shape::Void,
    }
}

fn size(dwarf: Option<&Dwarf>, of: &Type) -> Option<u64> {
    match (dwarf, of) {
        (Some(dwarf), of) => dwarf.size(of),
        (None, Type::Pointer(_)) => Some(8),
        (None, Type::Integer(size, _) | Type::Float(size)) => Some(u64::from(*size)),
        (None, Type::Array(element, count)) => size(None, element)?.checked_mul(*count),
        (None, _) => None,
    }
}

pub(super) fn type_name(dwarf: Option<&Dwarf>, of: &Type) -> String {
    dwarf.map_or_else(|| "this type".into(), |dwarf| dwarf.type_name(of))
}

fn pointee(place: &Place) -> Result<Type, EvalError> {
    match shape(place) {
        Shape::Pointer(to) => Ok(to),
        Shape::Array(element, _) => Ok(element),
        // `*0x7f00` alone reads a pointer-sized word.
        _ if matches!(place.at, Where::Value(_)) => Ok(Type::Integer(8, false)),
        _ => Err(EvalError::Operator("* needs a pointer".into())),
    }
}
