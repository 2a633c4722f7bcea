//! The parts of the bytes in question, each in one page frame, and where a frame's content came from.

use debug::{
    files,
    kernel::{Kernel, Read, translate},
    maps::{self, Mapping},
};
use rewind_platform::state::Fact;
use serde::{Deserialize, Serialize};
use vmm::address::{Gpa, Gva, Position};

use crate::access::Who;

/// A page.
pub const PAGE: u64 = 4096;
/// VM_SHARED (include/linux/mm.h).
const SHARED: u64 = 8;

/// One part, in one page frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First byte, from the beginning of the range.
    pub offset: u64,
    /// Its address in the process, if the range is a process's memory.
    pub address: Option<u64>,
    /// Where it is.
    pub gpa: Gpa,
    /// Bytes.
    pub len: u64,
    /// It is there up to this position; later it is elsewhere.
    pub until: Position,
}

/// Where bytes come from that nobody wrote since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// A page of zeroes, made at its first use.
    Zero {
        /// When.
        position: Position,
        /// By whom.
        who: Who,
    },
    /// The content of a file, mapped into memory.
    File {
        /// Path inside the guest.
        path: String,
        /// Offset of the first byte.
        offset: u64,
        /// Read or mapped at this position; none if that was not looked for.
        position: Option<Position>,
    },
    /// It was there when the job began.
    Beginning,
}

/// The mapping an address lies in.
pub(crate) fn mapping_at(kernel: &Kernel<'_>, mm: Gva, address: u64) -> Read<Option<Mapping>> {
    Ok(maps::mappings(kernel, mm)?.into_iter().find(|m| (m.start..m.end).contains(&address)))
}

/// If `gpa` is the cached page of the file that `mapping` maps at `address`: the file's path and offset there.
pub(crate) fn file_page(
    kernel: &Kernel<'_>,
    mapping: &Mapping,
    address: u64,
    gpa: Gpa,
) -> Option<(String, u64)> {
    let file = mapping.file?;
    let offset = address.checked_sub(mapping.start)?.checked_add(mapping.offset)?;
    let inode = kernel.field(file, Fact::FileInode).ok()?;
    let page = files::cached_page(kernel, Gva(inode), offset / PAGE).ok()??;
    let path = mapping.path.as_deref().unwrap_or_default();
    (page.0 == gpa.0 & !(PAGE - 1)).then(|| (String::from_utf8_lossy(path).into_owned(), offset))
}

/// Is it mapped so that writes stay with the process?
pub(crate) fn is_private(mapping: &Mapping) -> bool {
    mapping.flags & SHARED == 0
}

/// Splits a range of a process's memory into pieces by the page tables at `root`; the address that is not mapped
/// if there is one.
pub(crate) fn split(
    kernel: &Kernel<'_>,
    root: Gpa,
    address: u64,
    len: u64,
    until: Position,
) -> Result<Vec<Piece>, u64> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < len {
        let at = address.wrapping_add(offset);
        let size = (PAGE - at % PAGE).min(len - offset);
        let gpa = translate(kernel.memory(), root, Gva(at)).ok_or(at)?;
        pieces.push(Piece { offset, address: Some(at), gpa, len: size, until });
        offset += size;
    }
    Ok(pieces)
}
