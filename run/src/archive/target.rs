//! Where an exported run is written to.

use std::{
    fs::FileType,
    io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use super::ArchiveError;

/// Symbolic links followed before they count as a circle, as in path_resolution(7).
const LINKS: usize = 40;

/// The file that `path` leads to, through symbolic links, whether it is there already or not: writing replaces it, and must
/// not put a file where a link, a device or a pipe was.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, ArchiveError> {
    let io = |source| ArchiveError::Io { what: "write", path: path.to_owned(), source };
    match std::fs::metadata(path) {
        Ok(meta) if meta.is_file() => return path.canonicalize().map_err(io),
        Ok(meta) => {
            let what = kind(meta.file_type());
            return Err(ArchiveError::Target { path: path.to_owned(), what });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(io(error)),
    }
    // Nothing there, or links to nothing: the file appears where they lead.
    let mut at = path.to_owned();
    for _ in 0..LINKS {
        match std::fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_symlink() => {
                let to = std::fs::read_link(&at).map_err(io)?;
                at = at.parent().unwrap_or(Path::new("")).join(to);
            }
            Ok(_) => return Ok(at),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(at),
            Err(error) => return Err(io(error)),
        }
    }
    Err(io(io::Error::other("too many symbolic links")))
}

fn kind(of: FileType) -> &'static str {
    match of {
        of if of.is_dir() => "a directory",
        of if of.is_fifo() => "a pipe",
        of if of.is_socket() => "a socket",
        of if of.is_char_device() || of.is_block_device() => "a device",
        _ => "no regular file",
    }
}
