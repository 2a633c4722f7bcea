//! Giving space back: what no run names any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use crate::{
    boot,
    durable::{self, WriteError},
    envelope::ReadError,
    error::StageError,
    home::{Home, HomeError, RunDir, RunError},
    id,
    keyframe::{self, Base, KeyframeError},
    seek::is_view,
    spec::Content,
    store::{Compacted, PageError, PageHash},
};

/// What [`collect`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    /// What became of the pages.
    pub pages: Compacted,
    /// Recordings whose recorder died, removed.
    pub died: u64,
    /// Boot keyframes, kernels and other files nothing names, removed.
    pub files: u64,
    /// Bytes given back besides the pages'.
    pub freed: u64,
    /// Runs with a damaged file, which pages only it names are gone with, or without a page they name; and boot keyframes that
    /// cannot be used, removed.
    pub damaged: Vec<String>,
}

/// Why space could not be given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GcError {
    /// The home could not be had alone.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// A run could not be read, and not because it is damaged: its pages might be needed.
    #[error("nothing was removed: {0}")]
    Run(#[from] RunError),
    /// A keyframe likewise.
    #[error("nothing was removed: {0}")]
    Keyframe(#[from] KeyframeError),
    /// A boot keyframe likewise.
    #[error("nothing was removed: {0}")]
    Boot(#[from] Box<StageError>),
    /// The page store.
    #[error(transparent)]
    Pages(#[from] PageError),
    /// Writing failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Everything the runs of a home name.
#[derive(Default)]
struct Named {
    pages: BTreeSet<PageHash>,
    boots: BTreeSet<Content>,
    blobs: BTreeSet<Content>,
    damaged: Vec<String>,
}

/// Removes everything no run names. Takes the home for itself; `verify` also reads and checks every page.
/// With `boots`, boot keyframes no run builds on go too (the next run boots again).
pub fn collect(home: &Home, verify: bool, boots: bool) -> Result<Collected, GcError> {
    home.alone(|| {
        let mut done = Collected::default();
        let mut named = Named::default();
        // All are read before anything goes.
        for id in home.runs() {
            named.add_run(&home.run(id)?)?;
        }
        let bad_boots = bad_boots(home)?;
        let mut all_boots = list(&home.path().join("boot"));
        all_boots.retain(|key| !bad_boots.contains_key(key));
        for key in &all_boots {
            if !boots || named.boots.contains(key) {
                named.add_boot(home, *key)?;
            }
        }
        // With the home to ourselves, an open run has no recorder.
        for id in home.open_runs() {
            done.freed += remove_dir(&home.path().join("open").join(id.to_string()))?;
            done.died += 1;
        }
        done.freed += remove_boots(home, bad_boots, &mut named.damaged)?;
        for key in all_boots.into_iter().filter(|key| boots && !named.boots.contains(key)) {
            done.freed += remove_dir(&home.boot_dir(key))?;
            done.files += 1;
        }
        for blob in list(&home.path().join("blobs")) {
            if !named.blobs.contains(&blob) {
                done.freed += remove_file(&home.blob_path(blob))?;
                done.files += 1;
            }
        }
        let kept_boots: BTreeSet<String> =
            list(&home.path().join("boot")).iter().map(Content::to_string).collect();
        for entry in entries(&home.cache("ram")) {
            let name = entry.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if !kept_boots.contains(&name) {
                done.freed += remove_file(&entry)?;
                done.files += 1;
            }
        }
        remove_stale_entries(home)?;
        let mut dirs = ["", "runs", "open", "boot", "blobs", "pages", "cache", "cache/images"]
            .map(|dir| home.path().join(dir))
            .to_vec();
        // Folders of hashes, packed roots, unpacked tars.
        dirs.extend(entries(&home.cache("images")));
        for dir in dirs {
            for entry in entries(&dir) {
                let name = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let removed = name.starts_with('.') && name.ends_with(".removed");
                if removed || durable::is_temporary(&name) {
                    // A boot keyframe is made in a whole folder.
                    let folder = std::fs::symlink_metadata(&entry).is_ok_and(|meta| meta.is_dir());
                    done.freed += if folder { remove_dir(&entry)? } else { remove_file(&entry)? };
                }
            }
        }
        // Last: it needs room, which all of the above has made.
        done.pages = home.pages().compact(&|hash| named.pages.contains(&hash), verify)?;
        done.freed += say_what_lacks_pages(home, &mut named)?;
        done.damaged = named.damaged;
        Ok(done)
    })?
}

/// Boot keyframes that cannot be used, and why.
fn bad_boots(home: &Home) -> Result<BTreeMap<Content, String>, GcError> {
    let mut bad = BTreeMap::new();
    for key in list(&home.path().join("boot")) {
        if let Some(why) = boot::unusable(home, key).map_err(Box::new)? {
            bad.insert(key, why);
        }
    }
    Ok(bad)
}

/// Removes boot keyframes that cannot be used: they are made again, and what was built on them goes on.
fn remove_boots(
    home: &Home,
    bad: BTreeMap<Content, String>,
    damaged: &mut Vec<String>,
) -> Result<u64, GcError> {
    let mut freed = 0;
    for (key, why) in bad {
        freed += remove_dir(&home.boot_dir(key))?;
        for name in [format!("{key}.ram"), format!("{key}.stamp")] {
            freed += remove_file(&home.cache("ram").join(name))?;
        }
        damaged.push(format!("{why}; removed: the next run boots the guest again, which gives the same"));
    }
    Ok(freed)
}

/// After the pages that are corrupt are gone: who names a page that is not there? Every time, since nothing else says it
/// before the run is replayed.
fn say_what_lacks_pages(home: &Home, named: &mut Named) -> Result<u64, GcError> {
    let mut missing = BTreeSet::new();
    for &hash in &named.pages {
        if !home.pages().seems_known(hash)? {
            missing.insert(hash);
        }
    }
    if missing.is_empty() {
        return Ok(0);
    }
    for id in home.runs() {
        let Ok(run) = home.run(id) else { continue };
        // One that can only be looked at came without its pages.
        if is_view(&run) {
            continue;
        }
        let mut of_run = Named::default();
        of_run.add_run(&run)?;
        let lacks = of_run.pages.intersection(&missing).count();
        if lacks > 0 {
            let remedy = if run.is_imported() { "import it" } else { "record it" };
            let how = if run.is_imported() { "" } else { " with `rewind run --again`" };
            named.damaged.push(format!(
                "run {id} lacks {lacks} pages: {remedy} again{how}, or remove it with `rewind rm {id}`"
            ));
        }
    }
    remove_boots(home, bad_boots(home)?, &mut named.damaged)
}

/// The list of runs with outside input loses the runs that are gone.
fn remove_stale_entries(home: &Home) -> Result<(), WriteError> {
    for closed in entries(&home.path().join("closed")) {
        for entry in entries(&closed) {
            let name = entry.file_name().unwrap_or_default();
            if !home.path().join("runs").join(name).is_dir() {
                durable::remove_file(&entry)?;
            }
        }
        if entries(&closed).is_empty() {
            durable::remove_dir(&closed)?;
        }
    }
    Ok(())
}

/// Drops the keyframes of a run; `replay` and everything that seeks makes its way from the boot keyframe then.
/// Returns the bytes of the files removed; their pages go with the next gc. Refused while another process has the run: its
/// recorder builds on them, and who goes about in it may be on the way to one.
pub fn prune(run: &RunDir) -> Result<u64, RunError> {
    run.alone()?;
    let dir = run.keyframes();
    let mut freed = 0;
    // Latest first: what is left is always a whole chain.
    for step in keyframe::list(&dir).into_iter().rev() {
        freed += remove_file(&dir.join(keyframe::file_name(step)))?;
    }
    Ok(freed)
}

impl Named {
    fn add_run(&mut self, run: &RunDir) -> Result<(), GcError> {
        let spec = match run.spec() {
            Ok(spec) => spec,
            Err(error) => return self.excuse(error),
        };
        self.blobs.extend([spec.kernel, spec.initramfs]);
        self.blobs.extend(spec.images.iter().map(|image| image.content));
        match run.inputs() {
            Ok(inputs) => self.pages.extend(inputs.pages()),
            Err(error) => self.excuse(error)?,
        }
        match run.recording() {
            Ok(recording) => self.boots.extend(recording.and_then(|recording| recording.boot)),
            Err(error) => self.excuse(error)?,
        }
        match run.kept() {
            Ok(kept) => self.pages.extend(kept.iter().flat_map(|kept| kept.pages())),
            Err(error) => self.excuse(error)?,
        }
        let id = run.id().to_string();
        self.add_keyframes(&run.own_boot(), &id)?;
        self.add_keyframes(&run.keyframes(), &id)
    }

    fn add_boot(&mut self, home: &Home, key: Content) -> Result<(), GcError> {
        self.add_keyframes(&home.boot_dir(key), &format!("boot {key}"))
    }

    fn add_keyframes(&mut self, dir: &Path, run: &str) -> Result<(), GcError> {
        for step in keyframe::list(dir) {
            match keyframe::read(&dir.join(keyframe::file_name(step)), run, step) {
                Ok(keyframe) => {
                    self.pages.extend(keyframe.pages.iter().map(|at| at.hash));
                    if let Base::Boot(key) = keyframe.base {
                        self.boots.insert(key);
                    }
                }
                Err(
                    error @ (KeyframeError::Nonsense { .. }
                    | KeyframeError::File {
                        source: ReadError::Damaged { .. } | ReadError::Foreign { .. },
                        ..
                    }),
                ) => self.damaged.push(error.to_string()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A damaged file costs its run, not the whole collection; anything else stops it.
    fn excuse(&mut self, error: RunError) -> Result<(), GcError> {
        match error {
            RunError::File { source: ReadError::Damaged { .. } | ReadError::Foreign { .. }, .. }
            | RunError::Mismatch { .. } => {
                self.damaged.push(error.to_string());
                Ok(())
            }
            other => Err(other.into()),
        }
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// Names in `dir` that are hashes.
fn list(dir: &Path) -> Vec<Content> {
    let name = |path: PathBuf| id::from_hex(path.file_name()?.to_str()?).map(Content);
    let mut found: Vec<Content> = entries(dir).into_iter().filter_map(name).collect();
    found.sort_unstable();
    found
}

fn remove_file(path: &Path) -> Result<u64, WriteError> {
    // Holes were never taken, and what another name holds is not given back.
    let bytes = std::fs::symlink_metadata(path)
        .map_or(0, |meta| if meta.nlink() > 1 { 0 } else { meta.blocks() * 512 });
    durable::remove_file(path)?;
    Ok(bytes)
}

fn remove_dir(path: &Path) -> Result<u64, WriteError> {
    let len = disk_bytes(path);
    durable::remove_dir(path)?;
    Ok(len)
}

/// Bytes all files under `dir` take on the disk: holes do not count.
pub fn disk_bytes(dir: &Path) -> u64 {
    entries(dir)
        .into_iter()
        .map(|path| match std::fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_dir() => disk_bytes(&path),
            Ok(meta) => meta.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests;
