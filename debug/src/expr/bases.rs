//! C++ classes that derive from one another: which member a name means, and where a cast pointer points.

use std::sync::Arc;

use super::evaluate::{EvalError, FrameScope, Place, Where};
use crate::dwarf::{Dwarf, MOST_DEPTH, MOST_WAYS, Member, Shape, Type};

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

/// The way to the member that a name means in a class, as C++ looks it up ([class.member.lookup]); `None` if there is none.
pub(super) fn way_to(of: &Type, name: &str, dwarf: &Dwarf) -> Result<Option<Vec<Member>>, EvalError> {
    let all = dwarf.ways_to(of, name);
    if all.len() < 2 {
        return Ok(all.into_iter().next());
    }
    // The class that a way ends in.
    let owner =
        |way: &[Member]| way.iter().rfind(|part| part.base).map_or(of.clone(), |base| base.of.clone());
    // A name in a class hides the same one in its virtual base classes, whichever way leads there.
    let hidden = |way: &[Member]| {
        let roots: Vec<Type> =
            way.iter().filter(|part| part.dynamic.is_some()).map(|part| dwarf.defined(&part.of)).collect();
        all.iter().any(|other| {
            let by = dwarf.defined(&owner(other));
            roots.iter().any(|root| !dwarf.same(&by, root) && !ways(&by, root, dwarf).is_empty())
        })
    };
    // Two ways lead to one place if they go through one virtual base class, or are as long without any.
    let place = |way: &[Member]| {
        let from = way.iter().rposition(|part| part.dynamic.is_some());
        let rest = way.iter().skip(from.map_or(0, |at| at + 1));
        let distance = rest.fold(0, |sum: u64, part| sum.wrapping_add(part.offset));
        (from.map(|at| dwarf.defined(&way[at].of)), distance)
    };
    let mut shown: Vec<&Vec<Member>> = Vec::new();
    for way in all.iter().filter(|way| !hidden(way)) {
        if shown.iter().all(|known| place(known) != place(way)) {
            shown.push(way);
        }
    }
    match shown.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).clone())),
        many => {
            let path = |way: &[Member]| {
                let bases = way.iter().filter(|part| part.base).map(|base| dwarf.type_name(&base.of));
                bases.collect::<Vec<_>>().join("::")
            };
            Err(EvalError::Operator(format!(
                "{name} of {} is ambiguous, it is in {}: cast a pointer to the base class that is meant",
                dwarf.type_name(of),
                many.iter().map(|way| path(way)).collect::<Vec<_>>().join(" and in ")
            )))
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
