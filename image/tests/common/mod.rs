//! Looks at a tree from outside and mounts images in the host's kernel.
#![allow(dead_code, reason = "each test uses its part")]

use rustix::fs::{AtFlags, FileType};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One file as a program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mtime: (i64, i64),
    pub(crate) nlink: u64,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
    /// BLAKE3 of the content, or the link's target.
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// First name of the same file, for files with several.
    pub(crate) same_as: Option<PathBuf>,
}

/// Everything below `top`, by relative path; `.` is the top itself.
pub(crate) fn look(top: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut seen = BTreeMap::new();
    let mut first_names = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let full = top.join(&path);
        let stat = rustix::fs::statat(rustix::fs::CWD, &full, AtFlags::SYMLINK_NOFOLLOW).expect("stat");
        let kind = FileType::from_raw_mode(stat.st_mode);
        let content = match kind {
            FileType::RegularFile => hash(&full),
            FileType::Symlink => std::fs::read_link(&full).expect("readlink").as_os_str().as_bytes().to_vec(),
            _ => Vec::new(),
        };
        if kind == FileType::Directory {
            let mut names: Vec<_> =
                std::fs::read_dir(&full).expect("readdir").map(|e| e.expect("entry").file_name()).collect();
            names.sort();
            waiting.extend(names.into_iter().rev().map(|name| path.join(name)));
        }
        let several = kind != FileType::Directory && stat.st_nlink > 1;
        let same_as = several.then(|| first_names.entry(stat.st_ino).or_insert_with(|| path.clone()).clone());
        seen.insert(
            if path.as_os_str().is_empty() { PathBuf::from(".") } else { path },
            Seen {
                mode: stat.st_mode,
                uid: stat.st_uid,
                gid: stat.st_gid,
                mtime: (stat.st_mtime, stat.st_mtime_nsec as i64),
                nlink: stat.st_nlink,
                size: if kind == FileType::Directory { 0 } else { stat.st_size as u64 },
                rdev: stat.st_rdev,
                content,
                xattrs: xattrs(&full),
                same_as,
            },
        );
    }
    seen
}

fn hash(path: &Path) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path).expect("open")).expect("read");
    hasher.finalize().as_bytes().to_vec()
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut buffer = vec![0; 1 << 16];
    let len = rustix::fs::llistxattr(path, &mut buffer).unwrap_or(0);
    let names = buffer[..len].to_vec();
    names
        .split(|&b| b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 1 << 16];
            let name_path = std::ffi::OsStr::from_bytes(name);
            let len = rustix::fs::lgetxattr(path, name_path, &mut value).expect("getxattr");
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

/// Compares two trees; says which file differs and how.
#[track_caller]
pub(crate) fn assert_same(expected: &BTreeMap<PathBuf, Seen>, got: &BTreeMap<PathBuf, Seen>) {
    for (path, want) in expected {
        assert_eq!(Some(want), got.get(path), "{}", path.display());
    }
    for path in got.keys() {
        assert!(expected.contains_key(path), "{} is in the image only", path.display());
    }
}

/// A mounted image; unmounted when dropped.
pub(crate) struct Mounted {
    pub(crate) at: tempfile::TempDir,
}

impl Mounted {
    /// Mounts `file` with the host's kernel. Tests that need it run as root where the kernel has EROFS: here, and in
    /// the test bench.
    pub(crate) fn new(file: &Path) -> Mounted {
        let at = tempfile::tempdir().expect("directory");
        let out = Command::new("mount")
            .args(["-t", "erofs", "-o", "loop,ro"])
            .arg(file)
            .arg(at.path())
            .output()
            .expect("mount runs");
        assert!(out.status.success(), "mount: {}", String::from_utf8_lossy(&out.stderr));
        Mounted { at }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(self.at.path()).status();
        assert!(std::thread::panicking() || status.is_ok_and(|s| s.success()), "umount");
    }
}

/// Runs `fsck.erofs` over the image: it succeeds and has nothing to say.
#[track_caller]
pub(crate) fn fsck(file: &Path) {
    let out = Command::new("fsck.erofs").arg(file).output().expect("fsck.erofs runs");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success() && text.is_empty(), "{text}");
}
