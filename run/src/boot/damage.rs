//! Boot keyframes that cannot be used. A boot gives the same every time, so one that is damaged is made again, and what
//! was built on it goes on.

use std::{fs::File, io, path::Path};

use super::{name, open_in, read_in};
use crate::{
    durable,
    envelope::ReadError,
    error::StageError,
    home::{Home, HomeError},
    keyframe::{KeyframeError, Whole},
    spec::Content,
    store::{PageError, PageStore},
    trace::TraceError,
};

/// Is the boot keyframe itself bad, so that booting again mends it? (The key names the format: a file of another version
/// under it is damaged.) What the host refuses is not.
pub(super) fn is_only_damage(error: &StageError) -> bool {
    let gone = |source: &io::Error| source.kind() == io::ErrorKind::NotFound;
    match error {
        StageError::Keyframe(error) => match error {
            KeyframeError::Nonsense { .. } => true,
            KeyframeError::File { source: ReadError::Io { source, .. }, .. } => gone(source),
            KeyframeError::File { .. } => true,
            KeyframeError::Page { source, .. } => {
                matches!(source, PageError::Missing { .. } | PageError::Corrupt { .. })
            }
        },
        StageError::Trace(TraceError::Io { source, .. }) => gone(source),
        StageError::Trace(_) => true,
        _ => false,
    }
}

/// What is wrong, without what to do about a run.
pub(super) fn told(error: &StageError) -> String {
    match error {
        StageError::Keyframe(KeyframeError::File { source: ReadError::Damaged { path, what }, .. })
        | StageError::Trace(TraceError::Damaged { path, what, .. }) => {
            format!("{} is damaged: {what}", path.display())
        }
        StageError::Keyframe(KeyframeError::Page {
            source: PageError::Corrupt { hash, pack, offset },
            ..
        }) => {
            format!("page {hash} is corrupt in {} at byte {offset}", pack.display())
        }
        other => other.to_string(),
    }
}

/// Does the store list every page of it?
pub(super) fn all_there(whole: &Whole, run: &str, store: &PageStore) -> Result<(), KeyframeError> {
    for (&page, &hash) in &whole.pages {
        let source = match store.contains(hash) {
            Ok(true) => continue,
            Ok(false) => PageError::Missing { hash, store: store.dir().to_owned() },
            Err(source) => source,
        };
        return Err(KeyframeError::Page { run: run.into(), step: whole.keyframe.step, page, source });
    }
    Ok(())
}

/// What is wrong with the boot keyframe of this key, if booting again is all that helps. The caller has the home alone.
pub(crate) fn unusable(home: &Home, key: Content) -> Result<Option<String>, StageError> {
    let whole = match read_in(&home.boot_dir(key), key) {
        Ok(Some((whole, ..))) => whole,
        Ok(None) => return Ok(Some(format!("{} has no keyframe", name(key)))),
        // A newer program may use this home too.
        Err(StageError::Keyframe(KeyframeError::File {
            source: ReadError::Version { found, known, .. },
            ..
        })) if found > known => {
            return Ok(None);
        }
        Err(error) if is_only_damage(&error) => return Ok(Some(told(&error))),
        Err(error) => return Err(error),
    };
    let store = home.pages();
    let mut lacks = 0;
    for hash in whole.pages.values() {
        lacks += u64::from(!store.seems_known(*hash)?);
    }
    Ok((lacks > 0).then(|| format!("{} lacks {lacks} pages", name(key))))
}

/// Moves a boot keyframe made in `dir` to its place, unless one that can be used came there meanwhile: either is the same.
/// One that cannot be used is moved out of sight first; whoever dies in between leaves no boot keyframe, and a folder that
/// gc removes.
pub(super) fn put_in_place(home: &Home, dir: &Path, key: Content) -> Result<(), StageError> {
    let target = home.boot_dir(key);
    let path = target.with_file_name("lock");
    // Two processes that mend the same would take each other's away.
    let locked = File::create(&path).and_then(|lock| lock.lock().map(|()| lock));
    let _lock = locked.map_err(|source| {
        StageError::Boot(format!("its keyframe cannot be kept: {}", HomeError::Io { path, source }))
    })?;
    if target.exists() {
        if matches!(open_in(home, target.clone(), key, key), Ok(Some(_))) {
            return Ok(durable::remove_dir(dir)?);
        }
        let gone = durable::temporary_beside(&target);
        durable::rename(&target, &gone)?;
        durable::rename(dir, &target)?;
        return Ok(durable::remove_dir(&gone)?);
    }
    Ok(durable::rename(dir, &target)?)
}
