//! What the standard libraries' containers and smart pointers hold: `v[2]`, `p->x` and `*p` as the program writes them.

use std::sync::Arc;

use super::evaluate::{EvalError, FrameScope, Place, Where};
use crate::dwarf::{Dwarf, Shape, Type};

/// Deepest nesting of members looked through for the pointer.
const MOST_DEPTH: usize = 12;

/// Those of libstdc++ and libc++ that hold one pointer to what they stand for; its elements lie one behind the other.
const POINTERS: [&str; 12] = [
    "vector<",
    "unique_ptr<",
    "shared_ptr<",
    "__shared_ptr<",
    "basic_string<",
    "basic_string_view<",
    "span<",
    "__normal_iterator<",
    "reference_wrapper<",
    "intrusive_ptr<",
    "scoped_refptr<",
    "scoped_ptr<",
];
/// Those with one value behind them, unless it is an array.
const ONE: [&str; 8] = [
    "unique_ptr<",
    "shared_ptr<",
    "__shared_ptr<",
    "reference_wrapper<",
    "intrusive_ptr<",
    "scoped_refptr<",
    "scoped_ptr<",
    "optional<",
];
/// Rust's cells and locks.
const CELLS: [&str; 8] =
    ["RefCell<", "UnsafeCell<", "SyncUnsafeCell<", "Cell<", "Mutex<", "RwLock<", "ManuallyDrop<", "Atomic"];
/// Rust's, of which the pointer's own type says too little or too much.
const RUST: [&str; 4] = ["Vec<", "Rc<", "Arc<", "String"];

impl FrameScope<'_> {
    /// The pointer inside a container or smart pointer, with the type of what it holds; `None` for anything else.
    pub(super) fn contained(&self, place: &Place) -> Result<Option<Place>, EvalError> {
        let Some(dwarf) = place.dwarf.clone() else { return Ok(None) };
        let Shape::Struct(_) = dwarf.shape(&place.of) else { return Ok(None) };
        let Some(name) = dwarf.stripped_name(&place.of) else { return Ok(None) };
        if name.starts_with("vector<bool") {
            let text =
                "the elements of a std::vector<bool> are bits: ask for the word, v._M_impl._M_start._M_p";
            return Err(EvalError::Operator(text.into()));
        }
        if name.starts_with("array<") {
            return match dwarf.member(&place.of, "_M_elems") {
                Some(_) => self.member(place.clone(), "_M_elems").map(Some),
                None => Ok(None),
            };
        }
        if name.starts_with("optional<") {
            return match dwarf.member(&place.of, "_M_payload") {
                Some(_) => {
                    let payload = self.member(place.clone(), "_M_payload")?;
                    let value =
                        self.member(payload, "_M_payload").and_then(|p| self.member(p, "_M_value"))?;
                    Ok(Some(pointer_to(value)?))
                }
                None => Ok(None),
            };
        }
        // Rust's references to slices and its boxes of them are pairs.
        if dwarf.member(&place.of, "data_ptr").is_some() {
            return self.member(place.clone(), "data_ptr").map(Some);
        }
        let rust = RUST.iter().any(|own| name.starts_with(own)) && dwarf.is_rust(&place.of);
        if !rust && !POINTERS.iter().any(|own| name.starts_with(own)) {
            return Ok(None);
        }
        let Some(found) = self.first_pointer(place.clone(), &dwarf, 0) else { return Ok(None) };
        if !rust {
            return Ok(Some(found));
        }
        if name.starts_with("Rc<") || name.starts_with("Arc<") {
            // It points to the counts and the value.
            let Shape::Pointer(to) = dwarf.shape(&found.of) else { return Ok(None) };
            let inside = self.at(self.load(&found)?, to, Some(dwarf))?;
            let value = self.member(inside.clone(), "value").or_else(|_| self.member(inside, "data"))?;
            return Ok(Some(pointer_to(value)?));
        }
        let element =
            if name == "String" { Some(Type::Integer(1, false)) } else { dwarf.parameter(&place.of, "T") };
        Ok(element.map(|element| Place { of: Type::Pointer(Box::new(element)), size: 8, ..found }))
    }

    /// Is it a reference or smart pointer that has one value behind it, not elements one behind the other?
    pub(super) fn holds_one(&self, place: &Place) -> bool {
        let Some(dwarf) = &place.dwarf else { return false };
        let name = dwarf.stripped_name(&place.of).unwrap_or_default();
        match dwarf.shape(&place.of) {
            // Rust's raw pointers count as C's do; its references and boxes go by the name of their type.
            Shape::Pointer(_) => dwarf.is_rust(&place.of) && !name.is_empty() && !name.starts_with('*'),
            Shape::Struct(_) if dwarf.is_rust(&place.of) => {
                name.starts_with("Rc<") || name.starts_with("Arc<")
            }
            Shape::Struct(_) => {
                // Of an array: "shared_ptr<int []>", "unique_ptr<int [], ...>".
                let first = name.split(',').next().unwrap_or_default();
                ONE.iter().any(|own| name.starts_with(own))
                    && !first.trim_end_matches('>').trim().ends_with(']')
            }
            _ => false,
        }
    }

    /// What one of Rust's cells and locks holds.
    pub(super) fn wrapped(&self, place: &Place) -> Result<Option<Place>, EvalError> {
        let Some(dwarf) = place.dwarf.clone().filter(|dwarf| dwarf.is_rust(&place.of)) else {
            return Ok(None);
        };
        let name = dwarf.stripped_name(&place.of).unwrap_or_default();
        if !CELLS.iter().any(|own| name.starts_with(own)) {
            return Ok(None);
        }
        let inside = ["value", "data"].into_iter().find(|inside| dwarf.member(&place.of, inside).is_some());
        inside.map(|inside| self.member(place.clone(), inside)).transpose()
    }

    /// The first member, however deep, that is a pointer.
    fn first_pointer(&self, place: Place, dwarf: &Arc<Dwarf>, depth: usize) -> Option<Place> {
        if depth > MOST_DEPTH {
            return None;
        }
        match dwarf.shape(&place.of) {
            // Not a deleter's function.
            Shape::Pointer(to) => (dwarf.shape(&to) != Shape::Function).then_some(place),
            Shape::Struct(_) => dwarf.members(&place.of).into_iter().find_map(|member| {
                let inner = self.part(&place, &member, dwarf).ok()??;
                self.first_pointer(inner, dwarf, depth + 1)
            }),
            _ => None,
        }
    }
}

/// A pointer to a place in memory.
fn pointer_to(value: Place) -> Result<Place, EvalError> {
    let Where::Memory(address) = value.at else {
        return Err(EvalError::Operator("what it holds is not in memory".into()));
    };
    Ok(Place {
        at: Where::Value(address),
        of: Type::Pointer(Box::new(value.of)),
        size: 8,
        dwarf: value.dwarf,
    })
}
