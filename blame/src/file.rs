//! Bytes of a file: where they are in the page cache of the machine.
//!
//! A file that was written lives in a tmpfs (directly, or as the upper file of the root's overlay), whose pages stay
//! as long as the file does. Its inode is found where the file was last opened for writing, which the trace says.

use debug::{
    files,
    kernel::{Kernel, Read},
    look,
    sources::plain,
};
use rewind_platform::{
    record::{REC_OPEN, REC_RENAME, REC_UNLINK},
    state::Fact,
};
use run::{describe::strings, seek::Timeline};
use vmm::address::{Gpa, Gva, Position};

use crate::{
    access::{Place, Who},
    error::BlameError,
    piece::{PAGE, Piece},
    target::Target,
};

/// Which bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spot {
    /// All of it.
    Whole,
    /// The byte at this offset.
    Offset(u64),
    /// This line, from 1.
    Line(u64),
}

/// Largest file read for a line, and largest part of one blamed.
const MOST_BYTES: u64 = 1 << 20;
/// Steps after an open within which its thread must come back from it.
const MOST_WAIT: u64 = 64;
/// Words of a struct file looked through.
const FILE_WORDS: u64 = 64;

/// "PATH", "PATH:120" (an offset) or "PATH:L7" (a line, from 1).
pub fn parse(text: &str) -> (&str, Spot) {
    if let Some((path, spot)) = text.rsplit_once(':') {
        let line = spot.strip_prefix(['L', 'l']).and_then(|line| line.parse().ok());
        if let Some(line) = line {
            return (path, Spot::Line(line));
        }
        if let Ok(offset) = spot.parse() {
            return (path, Spot::Offset(offset));
        }
    }
    (text, Spot::Whole)
}

/// Where a file was last opened for writing before a step.
struct Opened {
    /// Its name then.
    path: String,
    step: u64,
    tid: u32,
}

fn opened(timeline: &Timeline<'_>, path: &str, at: Position) -> Result<Option<Opened>, BlameError> {
    let failed = |why: String| BlameError::File { path: path.into(), why };
    let mut events = Vec::new();
    for record in timeline.trace().iter() {
        let record = record.map_err(run::error::StageError::from)?;
        if record.header.step >= at.step.0 {
            break;
        }
        if matches!(record.header.kind, REC_OPEN | REC_RENAME | REC_UNLINK) {
            events.push(record);
        }
    }
    let mut name = path.to_owned();
    for record in events.iter().rev() {
        let texts = strings(&record.payload);
        let first = texts.first().map(String::as_str).unwrap_or_default();
        match record.header.kind {
            REC_OPEN if first == name => {
                return Ok(Some(Opened { path: name, step: record.header.step, tid: record.header.tid }));
            }
            REC_RENAME => {
                let to = texts.get(1).map(String::as_str).unwrap_or_default();
                if let Some(rest) =
                    name.strip_prefix(to).filter(|rest| rest.is_empty() || rest.starts_with('/'))
                {
                    name = format!("{first}{rest}");
                }
            }
            REC_UNLINK if first == name => {
                return Err(failed(format!("it was removed at step {}", record.header.step)));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Type of the file system an inode is on.
fn file_system(kernel: &Kernel<'_>, inode: Gva) -> Read<Vec<u8>> {
    let sb = Gva(kernel.field(inode, Fact::InodeSb)?);
    let of = Gva(kernel.field(sb, Fact::SbType)?);
    kernel.string(Gva(kernel.field(of, Fact::FsTypeName)?), 32)
}

fn name_of(kernel: &Kernel<'_>, file: Gva) -> Read<Vec<u8>> {
    let path = kernel.address_of(file, Fact::FilePath)?;
    let dentry = Gva(kernel.field(path, Fact::PathDentry)?);
    let name = kernel.address_of(dentry, Fact::DentryName)?;
    // struct qstr: hash and length, then the name's address.
    let length = (kernel.u64(name)? >> 32) as usize;
    kernel.string(Gva(kernel.u64(Gva(name.0.wrapping_add(8)))?), length.min(255))
}

/// The inode whose pages hold the file's data. An overlay's file holds the file it stands for (its `private_data`,
/// fs/overlayfs/file.c): the pointer in it to a file of the same name on another file system.
fn data_inode(kernel: &Kernel<'_>, file: Gva) -> Read<Option<Gva>> {
    let inode = Gva(kernel.field(file, Fact::FileInode)?);
    if file_system(kernel, inode)? != b"overlay" {
        return Ok(Some(inode));
    }
    let name = name_of(kernel, file)?;
    for i in 0..FILE_WORDS {
        let word = kernel.u64(Gva(file.0.wrapping_add(8 * i))).unwrap_or(0);
        if word < 1 << 63 || !word.is_multiple_of(8) || word == file.0 {
            continue;
        }
        let Ok(inner) = kernel.field(Gva(word), Fact::FileInode).map(Gva) else { continue };
        let kind = file_system(kernel, inner);
        if inner.0 >= 1 << 63
            && kind.is_ok_and(|kind| kind == b"tmpfs")
            && name_of(kernel, Gva(word)).is_ok_and(|own| own == name)
        {
            return Ok(Some(inner));
        }
    }
    Ok(None)
}

/// The inode of the file opened, right after the open.
fn find_inode(timeline: &mut Timeline<'_>, opened: &Opened) -> Result<Option<Gva>, BlameError> {
    for step in opened.step + 1..=(opened.step + MOST_WAIT).min(timeline.last()) {
        timeline.seek(Timeline::at(step))?;
        let Some(kernel) = look::kernel(timeline.looking()) else { return Ok(None) };
        let threads = debug::process::threads(&kernel)?;
        let Some(thread) = threads.into_iter().find(|thread| thread.tid == opened.tid) else { continue };
        // The newest descriptor of that name.
        let open = files::open_files(&kernel, thread.task)?;
        let found = open.iter().rev().find(|file| file.path == opened.path.as_bytes());
        if let Some(file) = found
            && let Some(inode) = data_inode(&kernel, file.file)?
        {
            return Ok(Some(inode));
        }
    }
    Ok(None)
}

/// Puts the machine at `at` and finds the bytes.
pub fn resolve(
    timeline: &mut Timeline<'_>,
    at: Position,
    path: &str,
    spot: Spot,
) -> Result<Target, BlameError> {
    let failed = |why: String| BlameError::File { path: path.into(), why };
    if !path.starts_with('/') {
        return Err(failed("give the path from the guest's root, beginning with /".into()));
    }
    let opened = opened(timeline, &String::from_utf8_lossy(&plain(path.as_bytes())), at)?.ok_or_else(|| {
        failed(format!(
            "nobody opened it by that name for writing before {at}: what it holds came with the root image, unless it is \
             not there, or was written by another name (a link's; `rewind events RUN --kind open` has all)"
        ))
    })?;
    let inode = find_inode(timeline, &opened)?.ok_or_else(|| {
        failed(format!("its pages cannot be found where it was opened, at step {}", opened.step))
    })?;
    timeline.seek(at)?;
    let machine = timeline.looking();
    let kernel = look::kernel(machine).ok_or_else(|| failed("the guest has no kernel yet".into()))?;
    let size = files::inode_size(&kernel, inode)?;
    let (start, len) = range(&kernel, inode, size, spot).map_err(failed)?;
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    let mut offset = 0;
    while offset < len {
        let here = start + offset;
        let part = (PAGE - here % PAGE).min(len - offset);
        let page = files::cached_page(&kernel, inode, here / PAGE)?;
        let page = page.ok_or_else(|| failed(format!("byte {here} lies in a hole: nobody wrote it")))?;
        let gpa = Gpa(page.0 + here % PAGE);
        let mut content = vec![0; part as usize];
        kernel.memory().read(gpa, &mut content).map_err(|_| failed("its pages lie outside memory".into()))?;
        bytes.extend(content);
        pieces.push(Piece { offset, address: None, gpa, len: part, until: at });
        offset += part;
    }
    let who = Who { tid: 0, pid: 0, program: String::new(), name: 0, task: 0 };
    let text = match spot {
        Spot::Whole => path.to_owned(),
        Spot::Offset(offset) => format!("{path}:{offset}"),
        Spot::Line(line) => format!("{path}:L{line}"),
    };
    Ok(Target {
        text,
        at,
        address: None,
        len,
        root: None,
        origins: vec![None; pieces.len()],
        pieces,
        bytes,
        of: None,
        who,
        place: Place::default(),
        bits: None,
        on_heap: false,
        sources: None,
    })
}

fn range(kernel: &Kernel<'_>, inode: Gva, size: u64, spot: Spot) -> Result<(u64, u64), String> {
    match spot {
        Spot::Whole if size == 0 => Err("it is empty".into()),
        Spot::Whole if size > MOST_BYTES => {
            Err(format!("it has {size} bytes, more than are looked at together: give an offset or a line"))
        }
        Spot::Whole => Ok((0, size)),
        Spot::Offset(offset) if offset < size => Ok((offset, 1)),
        Spot::Offset(offset) => Err(format!("byte {offset} is past its end: it has {size} bytes")),
        Spot::Line(0) => Err("lines are counted from 1".into()),
        Spot::Line(line) => {
            let mut content = Vec::new();
            for index in 0..size.min(16 * MOST_BYTES).div_ceil(PAGE) {
                let mut page = vec![0; PAGE as usize];
                if let Ok(Some(gpa)) = files::cached_page(kernel, inode, index) {
                    kernel.memory().read(gpa, &mut page).map_err(|error| error.to_string())?;
                }
                content.extend(page);
            }
            content.truncate(size as usize);
            let mut start = 0;
            for (number, text) in content.split_inclusive(|byte| *byte == b'\n').enumerate() {
                if number as u64 + 1 == line {
                    return Ok((start, (text.len() as u64).min(MOST_BYTES)));
                }
                start += text.len() as u64;
            }
            let lines = content.iter().filter(|byte| **byte == b'\n').count();
            Err(format!("it has no line {line}: it has {lines}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spots() {
        assert_eq!(parse("/tmp/a"), ("/tmp/a", Spot::Whole));
        assert_eq!(parse("/tmp/a:7"), ("/tmp/a", Spot::Offset(7)));
        assert_eq!(parse("/tmp/a:L7"), ("/tmp/a", Spot::Line(7)));
        assert_eq!(parse("/tmp/a:b"), ("/tmp/a:b", Spot::Whole));
    }
}
