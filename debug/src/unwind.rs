//! Call stacks of user threads.

use std::sync::Arc;

use framehop::{
    Unwinder as _,
    x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64},
};

use crate::{
    maps::Mapping,
    module::{Module, SourceFrame},
    process::UserRegisters,
};

/// Most frames of one stack: a deeper one is cut, and says so.
pub const MOST_FRAMES: usize = 512;

/// A module loaded in one process.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The file.
    pub module: Arc<Module>,
    /// First address of its first mapping.
    pub start: u64,
    /// Address after its last mapping.
    pub end: u64,
    /// Where it runs less where it was linked.
    pub bias: u64,
}

/// Modules of a process.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    modules: Vec<Loaded>,
}

/// One frame of a stack, before inlining is undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Instruction address; for callers, the return address.
    pub address: u64,
    /// It is a return address (look up the line of the byte before it).
    pub is_return: bool,
    /// Path of the module, if it lies in one.
    pub module: Option<Vec<u8>>,
    /// Source, innermost inlined function first.
    pub source: Vec<SourceFrame>,
}

impl AddressSpace {
    /// Of a process with these mappings; `module` gives the file of one, if it can be read.
    pub fn new(mappings: &[Mapping], mut module: impl FnMut(&Mapping) -> Option<Arc<Module>>) -> Self {
        let mut modules: Vec<Loaded> = Vec::new();
        for mapping in mappings {
            let Some(path) = &mapping.path else { continue };
            if let Some(known) = modules.iter_mut().find(|known| known.module.path == *path) {
                known.end = known.end.max(mapping.end);
                continue;
            }
            let Some(module) = module(mapping) else { continue };
            if let Some(bias) = module.bias(mapping.start, mapping.offset) {
                modules.push(Loaded { module, start: mapping.start, end: mapping.end, bias });
            }
        }
        AddressSpace { modules }
    }

    /// Loaded modules, in ascending order of address.
    pub fn modules(&self) -> &[Loaded] {
        &self.modules
    }

    /// The module an address lies in.
    pub fn module_at(&self, address: u64) -> Option<&Loaded> {
        self.modules.iter().find(|loaded| (loaded.start..loaded.end).contains(&address))
    }

    /// Functions and lines at an address, innermost first.
    pub fn source(&self, address: u64) -> Vec<SourceFrame> {
        self.module_at(address)
            .map(|loaded| loaded.module.source(address.wrapping_sub(loaded.bias)))
            .unwrap_or_default()
    }

    /// The stack from `registers`; `read` reads a u64 of the thread's memory.
    pub fn stack(&self, registers: &UserRegisters, mut read: impl FnMut(u64) -> Option<u64>) -> Vec<Frame> {
        let mut unwinder: UnwinderX86_64<Arc<[u8]>> = UnwinderX86_64::new();
        for loaded in &self.modules {
            unwinder.add_module(loaded.module.unwind_module(loaded.start..loaded.end, loaded.bias));
        }
        let mut cache = CacheX86_64::new();
        let start = UnwindRegsX86_64::new(registers.rip, registers.gpr[4], registers.gpr[5]);
        let mut read_stack = |address| read(address).ok_or(());
        let mut iterator = unwinder.iter_frames(registers.rip, start, &mut cache, &mut read_stack);
        let mut frames = Vec::new();
        // An unwinding error ends the stack: what was found before is still right.
        while let Ok(Some(frame)) = iterator.next() {
            let (address, is_return) = (frame.address(), frame.address_for_lookup() != frame.address());
            let lookup = frame.address_for_lookup();
            let module = self.module_at(lookup).map(|loaded| loaded.module.path.clone());
            frames.push(Frame { address, is_return, module, source: self.source(lookup) });
            if frames.len() >= MOST_FRAMES {
                break;
            }
        }
        frames
    }
}
