//! Members of structs, of base classes and of the variant that an enum is.

use std::sync::Arc;

use super::{
    bases::way_to,
    evaluate::{EvalError, FrameScope, MOST_BYTES, Place, Where, type_name},
};
use crate::dwarf::{Dwarf, Member, Type};

impl FrameScope<'_> {
    /// A member by its name.
    pub(super) fn member(&self, outer: Place, name: &str) -> Result<Place, EvalError> {
        let missing =
            || EvalError::NoMember { of: type_name(outer.dwarf.as_deref(), &outer.of), member: name.into() };
        let dwarf = outer.dwarf.as_ref().ok_or_else(missing)?;
        if let Some(members) = way_to(&outer.of, name, dwarf)? {
            return self.parts(&outer, &members, dwarf)?.ok_or_else(missing);
        }
        // Of an enum with content: the variant it is now, or a member of that.
        let bytes = self.bytes(&outer).ok_or_else(missing)?;
        let variant = dwarf.active(&outer.of, &bytes).ok_or_else(missing)?;
        let inner = self.part(&outer, &variant, dwarf)?.ok_or_else(missing)?;
        if variant.name == name {
            return Ok(inner);
        }
        let members = way_to(&inner.of, name, dwarf)?.ok_or_else(|| EvalError::NoMember {
            of: format!("{}, which is {} now,", type_name(Some(dwarf), &outer.of), variant.name),
            member: name.into(),
        })?;
        self.parts(&inner, &members, dwarf)?.ok_or_else(missing)
    }

    /// The place of the last of some members, each inside the one before.
    pub(super) fn parts(
        &self,
        outer: &Place,
        members: &[Member],
        dwarf: &Arc<Dwarf>,
    ) -> Result<Option<Place>, EvalError> {
        let mut place = outer.clone();
        for member in members {
            match self.part(&place, member, dwarf)? {
                Some(inner) => place = inner,
                None => return Ok(None),
            }
        }
        Ok(Some(place))
    }

    /// A member's place; `None` if the outer one has too few bytes.
    pub(super) fn part(
        &self,
        outer: &Place,
        member: &Member,
        dwarf: &Arc<Dwarf>,
    ) -> Result<Option<Place>, EvalError> {
        let Some(base) = member.dynamic else { return Ok(fixed_part(outer, member, dwarf)) };
        let name = || type_name(Some(dwarf), &member.of);
        let Where::Memory(object) = outer.at else {
            let text = format!("the virtual base class {} of what is not in memory cannot be found", name());
            return Err(EvalError::Operator(text));
        };
        let found = dwarf.virtual_base(base, object, 0, self.machine);
        let at = found.map_err(|source| EvalError::Nowhere {
            name: format!("the virtual base class {} of the object at {object:#x}", name()),
            source,
        })?;
        self.at(at, member.of.clone(), outer.dwarf.clone()).map(Some)
    }

    /// The bytes of a place that is not too large.
    fn bytes(&self, place: &Place) -> Option<Vec<u8>> {
        match &place.at {
            Where::Elsewhere(bytes) => Some(bytes.clone()),
            Where::Memory(at) => {
                let mut bytes = vec![0; usize::try_from(place.size.min(MOST_BYTES)).ok()?];
                self.machine.read(*at, &mut bytes).then_some(bytes)
            }
            Where::Value(_) => None,
        }
    }
}

/// The place of a member that is at the same distance in every object.
fn fixed_part(outer: &Place, member: &Member, dwarf: &Arc<Dwarf>) -> Option<Place> {
    let of = match member.bits {
        Some((at, bits)) => Type::Bits(Box::new(member.of.clone()), at, bits),
        None => member.of.clone(),
    };
    let size = dwarf.size(&of).unwrap_or(1);
    let at = match &outer.at {
        Where::Memory(at) => Where::Memory(at.wrapping_add(member.offset)),
        Where::Elsewhere(bytes) => {
            let from = usize::try_from(member.offset).ok()?;
            Where::Elsewhere(bytes.get(from..from.checked_add(usize::try_from(size).ok()?)?)?.to_vec())
        }
        Where::Value(_) => return None,
    };
    Some(Place { at, of, size, dwarf: Some(Arc::clone(dwarf)) })
}
