//! Every write to the home goes through here, so that a process that dies at any of them, or a disk that is
//! full, leaves a home that opens again with everything that was finished still in it.
//!
//! Two shapes of write exist. [`replace`] makes a whole file appear at once: temporary file, fsync, rename,
//! fsync of the directory. [`Appender`] adds to the end; what is appended carries its own length and checksum
//! (see `trace` and `store`), so a torn tail is recognised and dropped at the next open.

use std::{
    fs::{File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

pub mod fault;
use fault::Call;

/// A write to the home failed. Nothing that was complete before is lost.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}{}", remedy(.source))]
pub struct WriteError {
    /// What was being done.
    what: &'static str,
    /// To which file.
    path: PathBuf,
    /// The host's error.
    source: io::Error,
}

impl WriteError {
    /// The host's error.
    pub fn io(&self) -> &io::Error {
        &self.source
    }

    /// Is it [`exchange`] that was refused, with nothing done?
    pub fn is_exchange(&self) -> bool {
        self.what == EXCHANGE
    }
}

const EXCHANGE: &str = "exchange";

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (`rewind gc` and `rewind prune` free space; REWIND_HOME moves the home to another disk)"
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            " (set REWIND_HOME to a directory you can write)"
        }
        io::ErrorKind::FileTooLarge => " (`ulimit -f` says how large files may be)",
        _ => "",
    }
}

fn at<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<T, WriteError> {
    result.map_err(|source| WriteError { what, path: path.to_owned(), source })
}

/// Makes `path` hold exactly `bytes`, all at once, kept through a power cut once this returns.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let temporary = temporary_beside(path);
    let written = (|| {
        let mut file = at("create", &temporary, create_new(&temporary))?;
        at("write", &temporary, write(&mut file, bytes))?;
        at("sync", &temporary, sync(&file))?;
        rename(&temporary, path)
    })();
    if written.is_err() {
        // Best effort: the error that matters is the first one, and `gc` removes what is left.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

/// A name for a temporary file beside `path`, unique among processes; [`is_temporary`] knows it again.
pub fn temporary_beside(path: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    path.with_file_name(format!(".{name}.{}.{n}.tmp", std::process::id()))
}

/// Was this name made by [`temporary_beside`]? Such a file is left over from a process that died.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

/// Renames and makes the rename last.
pub fn rename(from: &Path, to: &Path) -> Result<(), WriteError> {
    at("rename to", to, fault::pass(Call::Rename).and_then(|()| std::fs::rename(from, to)))?;
    sync_parent(to)?;
    if from.parent() != to.parent() { sync_parent(from) } else { Ok(()) }
}

/// Lets two paths change places in one step and makes that last.
pub fn exchange(one: &Path, other: &Path) -> Result<(), WriteError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let swap = || Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?);
    at(EXCHANGE, other, fault::pass(Call::Rename).and_then(|()| swap()))?;
    sync_parent(other)?;
    sync_parent(one)
}

/// Makes an empty file, with the directories it is in; no error if it is there.
pub fn touch(path: &Path) -> Result<(), WriteError> {
    if let Some(parent) = path.parent() {
        create_dir(parent)?;
    }
    let made = fault::pass(Call::Create)
        .and_then(|()| OpenOptions::new().write(true).create(true).truncate(false).open(path));
    at("create", path, made)?;
    sync_parent(path)
}

/// Makes a directory with its parents; no error if it is there.
pub fn create_dir(path: &Path) -> Result<(), WriteError> {
    if path.is_dir() {
        return Ok(());
    }
    at("create directory", path, fault::pass(Call::Create).and_then(|()| std::fs::create_dir_all(path)))?;
    sync_parent(path)
}

/// Removes a file; no error if it is gone.
pub fn remove_file(path: &Path) -> Result<(), WriteError> {
    let result = fault::pass(Call::Remove).and_then(|()| std::fs::remove_file(path));
    at("remove", path, absent_is_fine(result))
}

/// Removes a directory and everything in it; no error if it is gone.
pub fn remove_dir(path: &Path) -> Result<(), WriteError> {
    let result = fault::pass(Call::Remove).and_then(|()| std::fs::remove_dir_all(path));
    at("remove", path, absent_is_fine(result))
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn sync_parent(path: &Path) -> Result<(), WriteError> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    at("sync", parent, File::open(parent).and_then(|dir| sync(&dir)))
}

fn create_new(path: &Path) -> io::Result<File> {
    fault::pass(Call::Create)?;
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn sync(file: &File) -> io::Result<()> {
    fault::pass(Call::Sync)?;
    file.sync_data()
}

fn write(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    match fault::torn(Call::Write, bytes.len())? {
        None => file.write_all(bytes),
        Some(part) => {
            file.write_all(&bytes[..part.bytes])?;
            part.finish()
        }
    }
}

/// A file that only grows at its end.
#[derive(Debug)]
pub struct Appender {
    file: File,
    path: PathBuf,
    len: u64,
}

impl Appender {
    /// Opens or makes the file and cuts it to `valid` bytes (what its reader found whole), so that the next
    /// append follows something complete. `None` keeps all of it.
    pub fn open(path: &Path, valid: Option<u64>) -> Result<Self, WriteError> {
        let existed = path.exists();
        let opened = fault::pass(Call::Create)
            .and_then(|()| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path));
        let mut file = at("open", path, opened)?;
        if !existed {
            sync_parent(path)?;
        }
        let len = at("find the end of", path, file.seek(SeekFrom::End(0)))?;
        let mut appender = Appender { file, path: path.to_owned(), len };
        appender.truncate(valid.unwrap_or(len))?;
        Ok(appender)
    }

    /// Bytes in the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Nothing in it yet?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Cuts the file to `len` bytes if it is longer.
    pub fn truncate(&mut self, len: u64) -> Result<(), WriteError> {
        if len < self.len {
            let cut = fault::pass(Call::Truncate).and_then(|()| self.file.set_len(len));
            at("shorten", &self.path, cut.and_then(|()| self.file.seek(SeekFrom::Start(len))))?;
            self.len = len;
        }
        Ok(())
    }

    /// Adds `bytes`; they are only sure to last after [`Appender::sync`]. After an error the file is cut back
    /// to what it was, as far as the host lets us.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        if let Err(source) = write(&mut self.file, bytes) {
            let _ = self.file.set_len(self.len);
            let _ = self.file.seek(SeekFrom::Start(self.len));
            return Err(WriteError { what: "write", path: self.path.clone(), source });
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Waits until everything appended is on the disk.
    pub fn sync(&mut self) -> Result<(), WriteError> {
        at("sync", &self.path, sync(&self.file))
    }

    /// The open file, for reading back.
    pub fn file(&self) -> &File {
        &self.file
    }
}
