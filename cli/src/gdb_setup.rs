//! What gdb is told about a run's files before it connects.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use debug::{gather, gdb::Session, sources::plain};

use crate::{context, look::RunFiles};

/// What gdb is told before it connects.
pub(crate) fn commands_for(session: &mut Session<'_>, files: &RunFiles) -> String {
    let mut text = String::from(
        "set confirm off\nset breakpoint pending on\nset remotetimeout 600\nset tcp auto-retry off\n\
         set auto-connect-native-target off\n",
    );
    let local = local_root(session, files);
    match &local {
        Some(root) => {
            let _ = writeln!(text, "set sysroot {}", root.display());
            // A library may be known by a relative name.
            let directory = String::from_utf8_lossy(&session.program().directory).into_owned();
            if !directory.contains(['\n', ':']) {
                let root = root.display().to_string();
                let _ = writeln!(text, "set solib-search-path {}{directory}", root.trim_end_matches('/'));
            }
        }
        None => text.push_str("set sysroot target:/\n"),
    }
    // After a `monitor goto` everything gdb knows of the process is old.
    text.push_str(
        "define hookpost-monitor\n  maintenance flush register-cache\n  maintenance flush dcache\nend\n\
         document hookpost-monitor\nRewind: a monitor command may have gone to another place.\nend\n",
    );
    let executable = session.program().executable.clone();
    let content = session.content(&executable).unwrap_or_default();
    let mentions = |word: &[u8]| content.windows(word.len()).any(|part| part == word);
    if mentions(b"gdb_load_rust_pretty_printers") {
        rust_printers(&mut text);
    }
    if local.as_deref() != Some(Path::new("/")) {
        cpp_printers(&mut text);
        if let Some(root) = files.directory() {
            let _ = writeln!(text, "directory {}", root.display());
        }
    }
    text
}

/// A folder of this machine that has the files the process uses, byte for byte as far as it shows: gdb then reads
/// them itself, and finds what distributions put beside them.
fn local_root(session: &mut Session<'_>, files: &RunFiles) -> Option<PathBuf> {
    let root = files.directory()?;
    let mut paths: Vec<Vec<u8>> =
        session.program().mappings.iter().filter_map(|mapping| mapping.path.clone()).collect();
    paths.push(session.program().executable.clone());
    paths.sort();
    paths.dedup();
    for path in paths.iter().filter(|path| path.starts_with(b"/")) {
        let there = files.beside(path);
        if session.content(path).is_none_or(|own| there.as_ref() != Some(&own)) {
            return None;
        }
    }
    Some(root)
}

/// Most sources that are written out for gdb.
const MOST_SOURCES: usize = 10_000;
/// Bytes of them.
const MOST_BYTES: usize = 256 << 20;

/// If some source is not on this machine what it was when the run was recorded, all that are kept with the run are written
/// below `directory`, and gdb is told to look there.
pub(crate) fn old_sources(session: &mut Session<'_>, files: &RunFiles, directory: &Path) -> Result<Vec<u8>> {
    let mut paths: BTreeSet<Vec<u8>> =
        session.program().mappings.iter().filter_map(|mapping| mapping.path.clone()).collect();
    paths.insert(session.program().executable.clone());
    let mut all = gather::Sources::default();
    for path in paths {
        let found = session.content(&path).and_then(|content| gather::sources(&content)).unwrap_or_default();
        all.paths.extend(found.paths);
        all.directories.extend(found.directories);
    }
    let mut left = MOST_BYTES;
    let mut kept = Vec::new();
    for path in all.paths.iter().take(MOST_SOURCES) {
        if let Some(content) = files.kept(path).filter(|content| content.len() <= left) {
            left -= content.len();
            kept.push((path, content));
        }
    }
    if kept.iter().all(|(path, kept)| RunFiles::now(path).as_ref() == Some(kept)) {
        return Ok(Vec::new());
    }
    let top = directory.join("sources");
    let copy = |path: &[u8]| top.join(os(plain(path).get(1..).unwrap_or_default()));
    let mut text = Vec::new();
    let mut rule = |from: &[u8]| {
        // A rule is a line of words.
        if !from.contains(&b'\n') {
            let to = copy(from);
            let words =
                [&b"set substitute-path "[..], &word(from), b" ", &word(to.as_os_str().as_bytes()), b"\n"];
            text.extend(words.concat());
        }
    };
    for from in all.directories.iter().filter(|from| plain(from).len() > 1) {
        rule(from);
    }
    for (path, _) in &kept {
        rule(path);
    }
    let make = |path: &[u8], content: Option<&[u8]>| {
        let to = copy(path);
        let folder = if content.is_some() { to.parent().unwrap_or(&top) } else { &to };
        std::fs::create_dir_all(folder)
            .and_then(|()| content.map_or(Ok(()), |content| write_old(&to, content)))
            .with_context(|| format!("cannot write {}", to.display()))
    };
    // A name that cannot be made here (a program may say anything) costs that source, not the session.
    let mut failed = None;
    for (path, content) in &kept {
        failed = make(path, Some(content)).err().or(failed);
    }
    for directory in &all.directories {
        failed = make(directory, None).err().or(failed);
    }
    if let Some(error) = failed {
        context::notice(&format!("gdb may show a source as it is now: {error:#}"));
    }
    Ok(text)
}

/// Writes a source with an old time: gdb warns of those that are newer than their program.
fn write_old(to: &Path, content: &[u8]) -> std::io::Result<()> {
    std::fs::write(to, content)?;
    std::fs::File::options().write(true).open(to)?.set_modified(std::time::SystemTime::UNIX_EPOCH)
}

/// A word of a gdb command.
fn word(bytes: &[u8]) -> Vec<u8> {
    let safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(byte) || !byte.is_ascii();
    bytes.iter().flat_map(|byte| if safe(byte) { vec![*byte] } else { vec![b'\\', *byte] }).collect()
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// As `rust-gdb` does.
fn rust_printers(text: &mut String) {
    let Ok(found) = Command::new("rustc").args(["--print", "sysroot"]).output() else { return };
    let directory = Path::new(String::from_utf8_lossy(&found.stdout).trim()).join("lib/rustlib/etc");
    if directory.is_dir() {
        let directory = directory.display();
        let _ = writeln!(text, "directory {directory}\nadd-auto-load-safe-path {directory}");
    }
}

/// libstdc++'s printers, which gdb loads itself only for libraries of this machine's own root.
fn cpp_printers(text: &mut String) {
    text.push_str(
        "python\nimport glob, sys\nfor place in sorted(glob.glob('/usr/share/gcc*/python')):\n    try:\n        \
         sys.path.insert(0, place)\n        from libstdcxx.v6 import register_libstdcxx_printers\n        \
         register_libstdcxx_printers(None)\n        break\n    except (ImportError, RuntimeError):\n        pass\nend\n",
    );
}
