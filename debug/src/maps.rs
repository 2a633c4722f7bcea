//! Memory maps of a process, from the maple tree of its mm (include/linux/maple_tree.h).

use rewind_platform::state::Fact;
use vmm::address::Gva;

use crate::{
    files,
    kernel::{Kernel, Read, ReadError},
};

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// VM_* flags (include/linux/mm.h): 1 read, 2 write, 4 execute, 8 shared.
    pub flags: u64,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Its `struct file`, if it maps one.
    pub file: Option<Gva>,
    /// Path of that file inside the guest's root.
    pub path: Option<Vec<u8>>,
}

impl Mapping {
    /// "r-xp" as in /proc/PID/maps.
    pub fn permissions(&self) -> String {
        let bit = |bit: u64, yes: char| if self.flags & bit != 0 { yes } else { '-' };
        let shared = if self.flags & 8 != 0 { 's' } else { 'p' };
        [bit(1, 'r'), bit(2, 'w'), bit(4, 'x'), shared].iter().collect()
    }
}

/// Mappings in ascending order.
pub fn mappings(kernel: &Kernel<'_>, mm: Gva) -> Read<Vec<Mapping>> {
    let tree = kernel.address_of(mm, Fact::MmMt)?;
    let root = kernel.field(tree, Fact::MtRoot)?;
    let mut areas = Vec::new();
    if root & 3 == 2 && root > 4096 {
        walk(kernel, root, u64::MAX, 0, &mut areas)?;
    } else if root != 0 && root & 3 == 0 {
        areas.push(Gva(root));
    }
    areas.into_iter().map(|area| mapping(kernel, area)).collect()
}

/// Deepest tree walked: with 10 slots a node, 16 levels hold more areas than memory does.
const MOST_LEVELS: u32 = 16;
/// More areas than sysctl vm.max_map_count ever lets a process have.
const MOST_AREAS: usize = 1 << 20;

/// Node types of `enum maple_type`, in bits 3 to 6 of an encoded node.
const LEAF_64: u64 = 1;
const RANGE_64: u64 = 2;
const ARANGE_64: u64 = 3;

fn walk(kernel: &Kernel<'_>, node: u64, max: u64, level: u32, areas: &mut Vec<Gva>) -> Read<()> {
    let at = Gva(node & !0xff);
    let damaged = ReadError::Damaged { what: "maple node", at };
    let (slots, leaf) = match (node >> 3) & 0xf {
        LEAF_64 => (16, true),
        RANGE_64 => (16, false),
        ARANGE_64 => (10, false),
        _ => return Err(damaged),
    };
    if level > MOST_LEVELS || areas.len() > MOST_AREAS {
        return Err(damaged);
    }
    let mut bytes = [0; 256];
    kernel.read(at, &mut bytes)?;
    let word = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().unwrap_or_default());
    for i in 0..slots {
        // pivot[i] is the last index slot[i] covers; an unused one is 0 and the slot then ends with the node.
        let pivot = if i < slots - 1 { word(1 + i) } else { max };
        let end = if pivot == 0 && i > 0 { max } else { pivot };
        let slot = word(1 + slots - 1 + i);
        if slot != 0 {
            if leaf {
                areas.push(Gva(slot));
            } else {
                walk(kernel, slot, end, level + 1, areas)?;
            }
        }
        if end >= max {
            break;
        }
    }
    Ok(())
}

fn mapping(kernel: &Kernel<'_>, area: Gva) -> Read<Mapping> {
    let file = kernel.field(area, Fact::VmaFile)?;
    let path = if file == 0 { None } else { Some(files::file_path(kernel, Gva(file))?) };
    Ok(Mapping {
        start: kernel.field(area, Fact::VmaStart)?,
        end: kernel.field(area, Fact::VmaEnd)?,
        flags: kernel.field(area, Fact::VmaFlags)?,
        offset: kernel.field(area, Fact::VmaPgoff)?.wrapping_mul(4096),
        file: (file != 0).then_some(Gva(file)),
        path,
    })
}
