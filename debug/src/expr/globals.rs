//! Globals by name, where the linkers put them.

use super::evaluate::{EvalError, FrameScope, Place, Where};
use crate::{
    dwarf::{Dwarf, LocateError, Variable},
    unwind::Loaded,
};

impl FrameScope<'_> {
    /// The global called `name` of the first module that has one.
    pub(super) fn global(&self, name: &str) -> Result<Place, EvalError> {
        for (i, (loaded, dwarf)) in self.modules.iter().enumerate() {
            let Some(dwarf) = dwarf else { continue };
            let found = dwarf.globals(name);
            if found.is_empty() {
                continue;
            }
            let address = if i == 0 { self.address.wrapping_sub(loaded.bias) } else { 0 };
            let mut places: Vec<(String, Place)> = Vec::new();
            let mut error = None;
            for variable in kept(found, loaded, dwarf) {
                let located = self.locate(&variable, loaded, dwarf, address);
                match located.map(|place| self.resolved(place, &variable, loaded, dwarf)) {
                    // At the file's own beginning is no variable: the linker threw it away.
                    Ok(place) if place.at == Where::Memory(loaded.bias) => error = Some(removed(name)),
                    // Several units may describe one definition.
                    Ok(place) if places.iter().any(|(_, known)| known.at == place.at) => {}
                    Ok(place) => places.push((variable.where_declared, place)),
                    Err(why) => error = Some(why),
                }
            }
            return match (places.len(), error) {
                (1, _) => Ok(places.remove(0).1),
                (0, Some(error)) => Err(error),
                _ => {
                    let text = |(declared, place): (String, Place)| match place.at {
                        Where::Memory(at) => format!("in {declared}, @{at:#x},{}", place.size),
                        _ => format!("in {declared}"),
                    };
                    Err(EvalError::Ambiguous {
                        name: name.into(),
                        places: places.into_iter().map(text).collect(),
                    })
                }
            };
        }
        if self.modules.iter().all(|(_, dwarf)| dwarf.is_none()) {
            return Err(EvalError::NoDebugInfo { name: name.into() });
        }
        Err(EvalError::Unknown { name: name.into(), place: self.place.clone() })
    }

    /// The place of a global where the dynamic linker made the modules use another one of its name: the
    /// executable's copy, or a library's loaded earlier.
    fn resolved(&self, place: Place, variable: &Variable, loaded: &Loaded, dwarf: &Dwarf) -> Place {
        let Where::Memory(own) = place.at else { return place };
        let Some(name) = dwarf.linkage_name(variable) else { return place };
        let runs_at = |(loaded, linked): (&Loaded, u64)| linked.wrapping_add(loaded.bias);
        // What is not exported is used where it is.
        if loaded.module.exported(&name).map(|linked| runs_at((loaded, linked))) != Some(own) {
            return place;
        }
        // The code at the instruction sees what its own module's slot says, the library's what that one's says.
        let mut slots = self.modules.iter().take(1).map(|(first, _)| first).chain([loaded]);
        let slot = slots.find_map(|user| {
            let mut bytes = [0; 8];
            self.machine.read(runs_at((user, user.module.slot(&name)?)), &mut bytes).then_some(())?;
            Some(u64::from_le_bytes(bytes)).filter(|at| *at != 0)
        });
        let copy = || {
            let mut modules = self.modules.iter();
            modules.find_map(|(program, _)| Some(runs_at((program, program.module.copied(&name)?))))
        };
        Place { at: Where::Memory(slot.or_else(copy).unwrap_or(own)), ..place }
    }
}

fn removed(name: &str) -> EvalError {
    EvalError::Nowhere { name: name.into(), source: LocateError::Removed }
}

/// Those of some globals that the linker kept: of what is defined more than once, it throws the others away.
fn kept(found: Vec<Variable>, loaded: &Loaded, dwarf: &Dwarf) -> Vec<Variable> {
    let is_kept = |variable: &Variable| {
        dwarf.linkage_name(variable).is_none_or(|name| loaded.module.has_variable(&name))
    };
    // None at all are kept where the symbols were stripped.
    let some = found.iter().any(is_kept);
    found.into_iter().filter(|variable| !some || is_kept(variable)).collect()
}
