//! BLAKE3 of the job's declared outputs.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::{OpenOptionsExt as _, PermissionsExt as _},
    },
    path::Path,
};

/// Deepest directory tree hashed.
const DEPTH_MAX: u32 = 256;

/// A file's content, a directory's listing (see [`directory`]), or `None` if nothing is there.
pub(crate) fn hash(path: &Path) -> Result<Option<[u8; 32]>, String> {
    let name = |e: io::Error| format!("cannot read the output {}: {e}", path.display());
    match fs::metadata(path) {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(name(e)),
        Ok(m) if m.is_dir() => directory(path, 0).map(Some).map_err(name),
        Ok(m) if m.is_file() => file(path).map(Some).map_err(name),
        Ok(_) => Err(format!("the output {} is neither a file nor a directory", path.display())),
    }
}

fn file(path: &Path) -> io::Result<[u8; 32]> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hasher.finalize().into()),
            n => hasher.update(&buffer[..n]),
        };
    }
}

/// Hash over the entries sorted by name: for each a letter (`f`, `d`, `l`, `o` for anything else), the permission
/// bits (u32), the name's length (u32) and bytes, then 32 bytes: the content's hash, the directory's, the link
/// target's, or zeros. Numbers are little-endian. Times, owners and inode numbers are left out.
fn directory(path: &Path, depth: u32) -> io::Result<[u8; 32]> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other(format!("directories are nested deeper than {DEPTH_MAX}")));
    }
    let mut names =
        fs::read_dir(path)?.map(|e| e.map(|e| e.file_name().into_vec())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    let mut hasher = blake3::Hasher::new();
    for name in names {
        let entry = path.join(std::ffi::OsStr::from_bytes(&name));
        let meta = fs::symlink_metadata(&entry)?;
        let (letter, content) = if meta.is_file() {
            (b'f', file(&entry)?)
        } else if meta.is_dir() {
            (b'd', directory(&entry, depth + 1)?)
        } else if meta.is_symlink() {
            (b'l', *blake3::hash(fs::read_link(&entry)?.as_os_str().as_bytes()).as_bytes())
        } else {
            (b'o', [0; 32])
        };
        hasher.update(&[letter]);
        hasher.update(&(meta.permissions().mode() & 0o7777).to_le_bytes());
        hasher.update(&(name.len() as u32).to_le_bytes());
        hasher.update(&name);
        hasher.update(&content);
    }
    Ok(hasher.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_names_and_modes_count_and_nothing_else() {
        let base = std::env::temp_dir().join(format!("rewind-init-outputs-{}", std::process::id()));
        let make = |name: &str, content: &str| {
            let folder = base.join(name);
            fs::create_dir_all(folder.join("sub")).unwrap();
            fs::write(folder.join("b"), content).unwrap();
            fs::write(folder.join("sub/a"), "x").unwrap();
            hash(&folder).unwrap().unwrap()
        };
        let (one, same, other) = (make("one", "1"), make("same", "1"), make("other", "2"));
        assert_eq!(one, same);
        assert_ne!(one, other);
        assert_eq!(hash(&base.join("absent")).unwrap(), None);
        assert_eq!(hash(&base.join("one/b")).unwrap(), Some(*blake3::hash(b"1").as_bytes()));
        fs::remove_dir_all(base).unwrap();
    }
}
