//! The roots the workloads run in: guest init's initramfs with programs of this host behind it.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::cpio::Archive;

/// Runs a command of the host and gives its standard output.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let out = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(
        out.status.success(),
        "{command:?} failed with {}:\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Collects files under the names they have on the host, with the libraries they load.
#[derive(Debug, Default)]
struct Collector {
    archive: Archive,
    seen: BTreeSet<String>,
}

impl Collector {
    fn parents(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            if self.seen.insert(path[..at].to_owned()) {
                self.archive.folder(&path[..at]);
            }
        }
    }

    fn content(&mut self, name: &str, content: &[u8]) {
        let name = name.trim_start_matches('/');
        if self.seen.insert(name.to_owned()) {
            self.parents(name);
            self.archive.file(name, content);
        }
    }

    /// A program of the host, by its full path, and every library the loader would take.
    fn program(&mut self, path: &Path) -> Result<()> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        self.content(&path.display().to_string(), &read(path)?);
        let Ok(list) = output_of(Command::new("ldd").arg(path)) else {
            return Ok(()); // Not dynamic.
        };
        for library in list.split_whitespace().filter(|word| word.starts_with('/')) {
            self.content(library, &read(Path::new(library))?);
        }
        Ok(())
    }
}

/// Compiles a guest program of this folder, static.
fn compile(source: &Path, work: &Path) -> Result<Vec<u8>> {
    let target = work.join(source.file_stem().unwrap_or_default());
    output_of(Command::new("gcc").args(["-O2", "-static", "-o"]).arg(&target).arg(source))?;
    fs::read(&target).with_context(|| format!("cannot read {}", target.display()))
}

/// Where a program of the host is.
fn which(name: &str) -> Result<PathBuf> {
    for folder in ["/usr/bin", "/bin"] {
        let path = Path::new(folder).join(name);
        if path.exists() {
            return Ok(path);
        }
    }
    bail!("{name} is not installed on this host; run scripts/setup.sh")
}

/// The small root: the benchmark's own programs, a shell and what hashes.
pub(crate) fn small(init: &[u8], guest: &Path, work: &Path) -> Result<Vec<u8>> {
    let mut collector = Collector::default();
    for name in ["hello", "micro", "integer"] {
        let program = compile(&guest.join(format!("{name}.c")), work)?;
        collector.content(&format!("bench/{name}"), &program);
    }
    for name in ["dash", "truncate", "sha256sum"] {
        collector.program(&which(name)?)?;
    }
    Ok([init, &collector.archive.finish()].concat())
}

/// The root with the host's C compiler and the file to compile.
pub(crate) fn compiler(init: &[u8], guest: &Path, work: &Path) -> Result<Vec<u8>> {
    let mut collector = Collector::default();
    collector.content("bench/hello", &compile(&guest.join("hello.c"), work)?);
    let source = output_of(&mut Command::new(guest.join("generate.sh")))? + "\n";
    let lines = source.lines().count();
    ensure!(lines == 2000, "the generated file has {lines} lines, not 2000");
    collector.content("bench/file.c", source.as_bytes());
    for name in ["dash", "sha256sum", "gcc", "as"] {
        collector.program(&which(name)?)?;
    }
    let compiler = output_of(Command::new("gcc").arg("-print-prog-name=cc1"))?;
    collector.program(Path::new(&compiler))?;
    // The compiler wants a folder to look for headers in; the file includes none.
    collector.parents("usr/include/");
    Ok([init, &collector.archive.finish()].concat())
}
