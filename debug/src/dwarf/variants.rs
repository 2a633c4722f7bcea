//! Rust's enums with content: a tag, and a member for each variant (DWARF 5, section 5.7.10).

use gimli::AttributeValue;

use super::{Dwarf, Entry, Member, Type};

/// One variant: the tag's value, none for that of all other values.
type Variant = (Option<u64>, Member);

impl Dwarf {
    /// The variant that a value of an enum with content is: `bytes` is the value. `None` for any other type, and
    /// where the tag has none of the declared values.
    pub fn active(&self, of: &Type, bytes: &[u8]) -> Option<Member> {
        let (tag, variants) = self.variants(of)?;
        let value = match tag {
            None => None,
            Some(tag) => {
                let from = usize::try_from(tag.offset).ok()?;
                let size = usize::try_from(self.size(&tag.of)?).ok().filter(|size| *size <= 8)?;
                let mut wide = [0; 8];
                wide[..size].copy_from_slice(bytes.get(from..from.checked_add(size)?)?);
                // As many bits of a declared value count as the tag has.
                let bits = u64::MAX >> (64 - 8 * size.max(1));
                Some((u64::from_le_bytes(wide), bits))
            }
        };
        let is = |declared: &Option<u64>| match (declared, value) {
            (Some(declared), Some((value, bits))) => declared & bits == value,
            _ => false,
        };
        let found = variants.iter().find(|(declared, _)| is(declared));
        found.or_else(|| variants.iter().find(|(declared, _)| declared.is_none())).map(|(_, own)| own.clone())
    }

    fn variants(&self, of: &Type) -> Option<(Option<Member>, Vec<Variant>)> {
        let Type::Declared(entry) = of else { return None };
        let entry = self.stripped(*entry)?;
        let (part, _) =
            self.children(entry).into_iter().find(|(_, die)| die.tag() == gimli::DW_TAG_variant_part)?;
        let tag = self
            .attribute(part, gimli::DW_AT_discr)
            .and_then(|(unit, value)| self.reference(unit, value))
            .map(|tag| self.plain_member(tag));
        let mut variants = Vec::new();
        for (variant, die) in self.children(part) {
            if die.tag() != gimli::DW_TAG_variant {
                continue;
            }
            let declared = match self.attribute(variant, gimli::DW_AT_discr_value) {
                Some((_, AttributeValue::Sdata(n))) => Some(n as u64),
                Some((_, other)) => other.udata_value(),
                None => None,
            };
            let content =
                self.children(variant).into_iter().find(|(_, die)| die.tag() == gimli::DW_TAG_member);
            if let Some((content, _)) = content {
                variants.push((declared, self.plain_member(content)));
            }
        }
        Some((tag, variants))
    }

    fn plain_member(&self, entry: Entry) -> Member {
        Member {
            name: self.name(entry).unwrap_or_default(),
            offset: self.number(entry, gimli::DW_AT_data_member_location).unwrap_or(0),
            of: self.type_of(entry),
            bits: None,
            base: false,
            dynamic: None,
        }
    }
}
