//! Paths, open files and file content from the kernel's dentries and page cache.

use rewind_platform::state::Fact;
use vmm::address::{Gpa, Gva};

use crate::kernel::{Kernel, Read, ReadError};

/// Longest chain of directories followed.
const MOST_PARENTS: usize = 4096;
/// Longest name of one directory entry.
const NAME_MAX: usize = 255;

/// Path of an open file inside the root of its mount namespace.
pub fn file_path(kernel: &Kernel<'_>, file: Gva) -> Read<Vec<u8>> {
    let path = kernel.address_of(file, Fact::FilePath)?;
    let (mnt, dentry) = (kernel.field(path, Fact::PathMnt)?, kernel.field(path, Fact::PathDentry)?);
    path_of(kernel, Gva(mnt), Gva(dentry))
}

/// Path of (vfsmount, dentry), as d_path (fs/d_path.c) builds it, without regard to the reader's root.
pub fn path_of(kernel: &Kernel<'_>, mnt: Gva, dentry: Gva) -> Read<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mount_offset = kernel.fact(Fact::MountMnt)?;
    let (mut mount, mut dentry) = (Gva(mnt.0.wrapping_sub(mount_offset)), dentry);
    for _ in 0..MOST_PARENTS {
        let root =
            kernel.u64(Gva(mount.0.wrapping_add(mount_offset).wrapping_add(kernel.fact(Fact::MntRoot)?)))?;
        if dentry.0 == root {
            let parent = kernel.field(mount, Fact::MountParent)?;
            if parent == mount.0 {
                break;
            }
            dentry = Gva(kernel.field(mount, Fact::MountMountpoint)?);
            mount = Gva(parent);
            continue;
        }
        let parent = kernel.field(dentry, Fact::DentryParent)?;
        let name = kernel.address_of(dentry, Fact::DentryName)?;
        // struct qstr: hash and length, then the name's address.
        let length = (kernel.u64(name)? >> 32) as usize;
        if length > NAME_MAX {
            return Err(ReadError::Damaged { what: "directory entry", at: dentry });
        }
        let mut text = vec![0; length];
        kernel.read(Gva(kernel.u64(Gva(name.0 + 8))?), &mut text)?;
        parts.push(text);
        if parent == dentry.0 {
            // The root of a file system that is mounted nowhere (a pipe, a memfd): its name is all there is.
            return Ok(parts.pop().unwrap_or_default());
        }
        dentry = Gva(parent);
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(path)
}

/// One open descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// Descriptor number.
    pub fd: u32,
    /// Its `struct file`.
    pub file: Gva,
    /// Path or name.
    pub path: Vec<u8>,
    /// Offset.
    pub position: u64,
}

/// Most descriptors read of one process.
const MOST_FILES: u64 = 1 << 16;

/// Open descriptors of a task.
pub fn open_files(kernel: &Kernel<'_>, task: Gva) -> Read<Vec<OpenFile>> {
    let files = kernel.field(task, Fact::TaskFiles)?;
    if files == 0 {
        return Ok(Vec::new());
    }
    let table = Gva(kernel.field(Gva(files), Fact::FilesFdt)?);
    let most = u64::from(kernel.field32(table, Fact::FdtMaxFds)?).min(MOST_FILES);
    let slots = kernel.field(table, Fact::FdtFd)?;
    let mut open = Vec::new();
    for fd in 0..most {
        let file = Gva(kernel.u64(Gva(slots.wrapping_add(fd * 8)))?);
        if file.0 != 0 {
            let path = file_path(kernel, file)?;
            open.push(OpenFile { fd: fd as u32, file, path, position: kernel.field(file, Fact::FilePos)? });
        }
    }
    Ok(open)
}

/// Size in bytes of the file behind an inode.
pub fn inode_size(kernel: &Kernel<'_>, inode: Gva) -> Read<u64> {
    kernel.field(inode, Fact::InodeSize)
}

/// Page frame that caches page `index` of the file behind `inode`; `None` if it is not cached.
pub fn cached_page(kernel: &Kernel<'_>, inode: Gva, index: u64) -> Read<Option<Gpa>> {
    let mapping = Gva(kernel.field(inode, Fact::InodeMapping)?);
    let pages = kernel.address_of(mapping, Fact::MappingPages)?;
    let (shift, slots) = (kernel.fact(Fact::XaChunkShift)?, kernel.fact(Fact::XaNodeSlots)?);
    let mut entry = kernel.field(pages, Fact::XaHead)?;
    if !(1..=6).contains(&shift) {
        return Err(ReadError::Damaged { what: "XA_CHUNK_SHIFT", at: pages });
    }
    let mut first = true;
    // Each level consumes `shift` bits of the index: a node of shift 0 is the last.
    for _ in 0..=64 / shift {
        if entry & 3 != 2 {
            // Not a node: a folio pointer, or (bit 0) a value entry, which caches nothing.
            if entry == 0 || entry & 1 != 0 || (first && index > 0) {
                return Ok(None);
            }
            return Ok(Some(kernel.page_frame(Gva(entry))?));
        }
        if entry < 4096 {
            // A sibling or retry entry: part of a larger folio, which this kernel does not make for files.
            return Ok(None);
        }
        let node = entry - 2;
        let mut own = [0];
        kernel.read(Gva(node), &mut own)?;
        let own = u64::from(own[0]);
        if own > 60 {
            return Err(ReadError::Damaged { what: "xarray node", at: Gva(node) });
        }
        if first && index.checked_shr((own + shift) as u32).unwrap_or(0) != 0 {
            // Past what the tree covers.
            return Ok(None);
        }
        first = false;
        let slot = (index >> own) & ((1 << shift) - 1);
        entry = kernel.u64(Gva(node.wrapping_add(slots).wrapping_add(slot * 8)))?;
    }
    Err(ReadError::Damaged { what: "page cache", at: pages })
}

/// Name of the file system an inode lies on: "tmpfs", "erofs", "overlay".
pub fn file_system(kernel: &Kernel<'_>, inode: Gva) -> Read<Vec<u8>> {
    let block = Gva(kernel.field(inode, Fact::InodeSb)?);
    let kind = Gva(kernel.field(block, Fact::SbType)?);
    kernel.string(Gva(kernel.field(kind, Fact::FsTypeName)?), 32)
}

/// Content of a file of at most `most` bytes whose pages the page cache has: all of them, on a file system that
/// lives in it (tmpfs, whose holes are zeros). `None` if it is larger, or a page is missing elsewhere.
pub fn cached_content(kernel: &Kernel<'_>, inode: Gva, most: u64) -> Read<Option<Vec<u8>>> {
    let size = inode_size(kernel, inode)?;
    if size > most {
        return Ok(None);
    }
    let memory_only = matches!(file_system(kernel, inode)?.as_slice(), b"tmpfs" | b"ramfs" | b"devtmpfs");
    let mut out = vec![0; size as usize];
    for (index, part) in out.chunks_mut(4096).enumerate() {
        match cached_page(kernel, inode, index as u64)? {
            Some(page) => kernel
                .memory()
                .read(page, part)
                .map_err(|_| ReadError::Damaged { what: "page cache", at: inode })?,
            None if memory_only => {}
            None => return Ok(None),
        }
    }
    Ok(Some(out))
}
