//! What gdb is told about a run's files before it connects.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use debug::{gather, gdb::Session};

use crate::look::RunFiles;

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
const MOST_SOURCES: usize = 1000;

/// Sources that are not on this machine what they were when the run was recorded are written into `directory`, and gdb
/// told so.
pub(crate) fn old_sources(session: &mut Session<'_>, files: &RunFiles, directory: &Path) -> Result<String> {
    let mut paths: Vec<Vec<u8>> =
        session.program().mappings.iter().filter_map(|mapping| mapping.path.clone()).collect();
    paths.push(session.program().executable.clone());
    let mut sources = BTreeSet::new();
    for path in paths.into_iter().collect::<BTreeSet<_>>() {
        sources
            .extend(session.content(&path).and_then(|content| gather::sources(&content)).unwrap_or_default());
    }
    let mut text = String::new();
    let mut written = 0;
    for path in sources {
        let Some(kept) = files.kept(&path).filter(|kept| RunFiles::here(&path).as_ref() != Some(kept)) else {
            continue;
        };
        // gdb takes the rule word by word, and its file line by line.
        let Some(name) = std::str::from_utf8(&path).ok().filter(|name| !name.contains(char::is_whitespace))
        else {
            continue;
        };
        if written == MOST_SOURCES {
            break;
        }
        written += 1;
        let file = Path::new(name).file_name().unwrap_or_default();
        let folder = directory.join(written.to_string());
        let copy = folder.join(file);
        std::fs::create_dir(&folder)
            .and_then(|()| std::fs::write(&copy, kept))
            .with_context(|| format!("cannot write {}", copy.display()))?;
        let _ = writeln!(text, "set substitute-path {name} {}", copy.display());
    }
    Ok(text)
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
