//! Casts between C++ classes that derive from one another: the pointer moves by the distance of the base class.

use std::sync::Arc;

use super::evaluate::{EvalError, FrameScope, Place, Where};
use crate::dwarf::{Dwarf, Member, Shape, Type};

/// Deepest inheritance, and most ways from a class to a base class, looked through.
const MOST_DEPTH: usize = 16;
const MOST_WAYS: usize = 64;

impl FrameScope<'_> {
    /// The address that a pointer to a `from` has as a pointer to a `to`, as C++ converts it.
    pub(super) fn converted(
        &self,
        address: u64,
        from: &Type,
        to: &Type,
        dwarf: &Arc<Dwarf>,
    ) -> Result<u64, EvalError> {
        let (Some(from), Some(to)) = (class(from, dwarf), class(to, dwarf)) else { return Ok(address) };
        if address == 0 || dwarf.same(&from, &to) {
            return Ok(address);
        }
        let (up, down) = (ways(&from, &to, dwarf), ways(&to, &from, dwarf));
        let names = || (dwarf.type_name(&from), dwarf.type_name(&to));
        let ambiguous = || {
            let (from, to) = names();
            EvalError::Operator(format!(
                "a {from} * as {to} * is ambiguous, one is more than once a base class of the other: cast in steps"
            ))
        };
        let mut found: Vec<u64> = Vec::new();
        for way in &up {
            let object = self.at(address, from.clone(), Some(Arc::clone(dwarf)))?;
            if let Some(Place { at: Where::Memory(at), .. }) = self.parts(&object, way, dwarf)? {
                found.push(at);
            }
        }
        for way in &down {
            if way.iter().any(|base| base.dynamic.is_some()) {
                let (from, to) = names();
                return Err(EvalError::Operator(format!(
                    "{from} is a virtual base class of {to}, so where the {to} is cannot be told from a {from} *: \
                     ask through a pointer to the {to}"
                )));
            }
            let distance = way.iter().fold(0, |sum: u64, base| sum.wrapping_add(base.offset));
            found.push(address.wrapping_sub(distance));
        }
        found.dedup();
        match found.as_slice() {
            // Unrelated: the same address, as C does.
            [] => Ok(address),
            [one] => Ok(*one),
            _ => Err(ambiguous()),
        }
    }
}

/// A class as it is defined.
fn class(of: &Type, dwarf: &Dwarf) -> Option<Type> {
    let of = dwarf.defined(of);
    matches!(dwarf.shape(&of), Shape::Struct(_)).then_some(of)
}

/// Every way from a class to one of its base classes.
fn ways(from: &Type, to: &Type, dwarf: &Dwarf) -> Vec<Vec<Member>> {
    fn walk(at: &Type, to: &Type, dwarf: &Dwarf, way: &mut Vec<Member>, found: &mut Vec<Vec<Member>>) {
        for base in dwarf.members(at).into_iter().filter(|member| member.base) {
            if way.len() >= MOST_DEPTH || found.len() >= MOST_WAYS {
                return;
            }
            let own = dwarf.defined(&base.of);
            way.push(base);
            if dwarf.same(&own, to) {
                found.push(way.clone());
            } else {
                walk(&own, to, dwarf, way, found);
            }
            way.pop();
        }
    }
    let mut found = Vec::new();
    walk(from, to, dwarf, &mut Vec::new(), &mut found);
    found
}
