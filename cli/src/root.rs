//! `--root`: opening what it names, with progress.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail};
use image::{
    OpenOptions, Phase, Progress,
    root::{HostRoot, Origin, RootOptions},
};
use indicatif::{ProgressBar, ProgressStyle};
use run::{
    home::{Home, RunDir},
    root::{Blocks, FilesAt, Replayed, Root},
    spec::{Content, ImageSpec, Spec},
};

/// Opens a directory, tar, container image or erofs file.
pub(crate) fn open(home: &Home, path: &Path, progress: Option<&ProgressBar>) -> Result<Root> {
    let cache = home.cache("images");
    std::fs::create_dir_all(&cache)?;
    let told = |done: Progress| {
        if let Some(bar) = progress {
            bar.set_message(match done.phase {
                Phase::Scan => "reading the root",
                Phase::Unpack => "unpacking",
                Phase::Hash => "hashing",
            });
            bar.set_length(done.total.unwrap_or(done.done));
            bar.set_position(done.done);
        }
    };
    let options = OpenOptions { cache: &cache, directory: Default::default(), progress: &told };
    let opened = image::open(path, &options)?;
    for left_out in &opened.left_out {
        let path = String::from_utf8_lossy(&left_out.path).into_owned();
        crate::context::notice(&format!(
            "{} is left out: {}",
            crate::output::printable(&path),
            left_out.what
        ));
    }
    let spec = ImageSpec { content: Content(opened.id.0), len: opened.image().len() };
    // Where it is found again, whatever the directory we are in then.
    let source = written(&path.canonicalize()?);
    let opened = Arc::new(opened);
    let of_blocks = opened.clone();
    let files: FilesAt = Arc::new(move |blocks| of_blocks.files_at(blocks));
    let open = Arc::new(move || Ok(opened.image()));
    Ok(Root { spec, source, open, logged: false, origin: None, same: None, files: Some(files) })
}

/// An absolute path as text, from which [`read`] has it again. One that is not UTF-8 is written as a shell would take it:
/// `$'/a\xff'`.
fn written(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => {
            let mut out = String::from("$'");
            for &byte in path.as_os_str().as_bytes() {
                match byte {
                    b' '..=b'~' if byte != b'\'' && byte != b'\\' => out.push(char::from(byte)),
                    _ => out.push_str(&format!("\\x{byte:02x}")),
                }
            }
            out + "'"
        }
    }
}

/// The path that [`written`] wrote.
pub(crate) fn read(text: &str) -> PathBuf {
    let Some(inner) = text.strip_prefix("$'").and_then(|rest| rest.strip_suffix('\'')) else {
        return text.into();
    };
    let mut bytes = Vec::new();
    let mut rest = inner;
    while let Some(at) = rest.find("\\x") {
        let byte = rest.get(at + 2..at + 4).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.extend(rest[..at].bytes());
        bytes.extend(byte);
        rest = rest.get(at + 4..).unwrap_or_default();
    }
    bytes.extend(rest.bytes());
    OsString::from_vec(bytes).into()
}

/// What the source of a run over the host's own root is called.
const HOST: &str = "the host's root, from ";

/// Is this the source of a run over the host's own root?
pub(crate) fn is_host(source: &str) -> bool {
    source.starts_with(HOST)
}

/// Which host root.
#[derive(Clone, Copy)]
pub(crate) enum Moment<'a> {
    /// As it is when each file is first looked at: for one run.
    Moving,
    /// As it is now: for runs that are compared.
    Now,
    /// As an earlier run of the same family saw it, by the note that run left.
    Of(&'a [u8]),
    /// Where that run looked: as it saw it; elsewhere as it is now.
    Beyond(&'a [u8]),
}

/// The host's own root, seen read-only.
pub(crate) fn host(home: &Home, cwd: &Path, moment: Moment<'_>) -> Result<Root> {
    let hidden = home.path().canonicalize().context("where is the home?")?;
    let options = RootOptions {
        top: "/".into(),
        cwd: cwd.to_owned(),
        home: std::env::var_os("HOME").map(Into::into),
        hidden: vec![hidden],
    };
    let origin = |bytes: &[u8]| -> Result<Origin> {
        serde_json::from_slice(bytes).context("the run's note on the host's root")
    };
    let root = match moment {
        Moment::Moving => HostRoot::moving(&options)?,
        Moment::Now => HostRoot::new(&options)?,
        Moment::Of(bytes) => HostRoot::resume(&options, &origin(bytes)?)?,
        Moment::Beyond(bytes) => HostRoot::resume_now(&options, &origin(bytes)?)?,
    };
    let image = root.image();
    // What it holds is in the log, by content; this names only the kind.
    let content = Content(blake3::derive_key("rewind host root 1", b""));
    let spec = ImageSpec { content, len: vmm::BlockImage::len(&image) };
    let (noted, looked) = (image.clone(), image.clone());
    let same = move |origin: &[u8], blocks: &Blocks| {
        let blocks = blocks.iter().map(|(block, hash)| (*block, hash.0)).collect();
        serde_json::from_slice(origin).is_ok_and(|origin| root.still_gives(&origin, &blocks))
    };
    Ok(Root {
        spec,
        source: format!("{HOST}{}", written(cwd)),
        open: Arc::new(move || {
            image.begin();
            Ok(Box::new(image.clone()))
        }),
        logged: true,
        origin: Some(Arc::new(move || serde_json::to_vec(&noted.origin()).expect("plain data encodes"))),
        same: Some(Arc::new(same)),
        files: Some(Arc::new(move |blocks| {
            // Asked when the run has ended. What is read after that is for whoever wants to know how it was.
            looked.hold();
            looked.files_at(blocks)
        })),
    })
}

/// The image of a recorded run again, for going on with it.
pub(crate) fn again(home: &Home, source: &str, origin: Option<&[u8]>) -> Result<Root> {
    match source.strip_prefix(HOST) {
        Some(cwd) => {
            let origin = origin.context(
                "the run was recorded over another host's root: it replays, but cannot go on differently here",
            )?;
            host(home, &read(cwd), Moment::Of(origin))
        }
        None => open(home, &read(source), None),
    }
}

/// The roots of a recorded run, for going on with it otherwise. What an imported run calls its source is a path of another
/// machine, and is never opened: such a run has what came with it.
pub(crate) fn of_run(home: &Home, run: &RunDir, spec: &Spec) -> Result<Vec<Root>> {
    let source = run.recording()?.map(|recording| recording.source).unwrap_or_default();
    let (mut logged, origins, kept) = (run.inputs()?.blocks, run.origins()?, run.kept()?.unwrap_or_default());
    let mut roots = Vec::new();
    for (number, image) in spec.images.iter().enumerate() {
        let logged = logged.remove(&(number as u32));
        let own = kept.root(home, run, number, image).filter(|_| logged.is_none());
        if run.is_imported() {
            let remedy = match logged {
                Some(_) => "it was recorded over another machine's own root, which no export can hold whole",
                None => "`rewind export --whole` takes the root along",
            };
            roots.push(own.with_context(|| {
                format!(
                    "run {} came from elsewhere without its root, so it can only be replayed: {remedy}",
                    run.id()
                )
            })?);
            continue;
        }
        if let Some(own) = own.as_ref().filter(|_| kept.whole) {
            roots.push(own.clone());
            continue;
        }
        let here = again(home, &source, origins.get(number).map(Vec::as_slice)).and_then(|root| {
            match root.spec == *image {
                true => Ok(root),
                false => bail!("{} is not the root run {} was recorded with", root.source, run.id()),
            }
        });
        roots.push(match (here, own) {
            (Ok(root), _) => match logged {
                Some(blocks) => beyond(home, root, kept.beside(number as u32, blocks)),
                None => root,
            },
            (Err(error), Some(own)) => {
                crate::context::notice(&format!("only files the run has read can be read ({error:#})"));
                own
            }
            (Err(error), None) => return Err(error),
        });
    }
    Ok(roots)
}

/// A logged root for going on with a run: what the run read is as it was, the rest comes from `root`.
fn beyond(home: &Home, root: Root, blocks: Blocks) -> Root {
    let (store, blocks, inner) = (home.pages().clone(), Arc::new(blocks), root.open.clone());
    let (len, source) = (root.spec.len, root.source.clone());
    let open = move || {
        let read = Replayed::new(len, blocks.clone(), store.clone(), source.clone());
        Ok(Box::new(read.beyond(inner()?)) as Box<dyn vmm::BlockImage>)
    };
    Root { open: Arc::new(open), ..root }
}

/// What a recorded run over the host's root did not read, for a throw-away fork. None elsewhere.
pub(crate) fn rest(home: &Home, source: &str, origin: &[u8]) -> Option<Root> {
    let cwd = source.strip_prefix(HOST)?;
    match host(home, &read(cwd), Moment::Beyond(origin)) {
        Ok(root) => Some(root),
        Err(error) => {
            crate::context::notice(&format!("only files the run has read can be read ({error:#})"));
            None
        }
    }
}

/// A bar on standard error; silent when that is no terminal.
pub(crate) fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed}");
    let bar = ProgressBar::new(0);
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_is_written_and_read() {
        for path in [&b"/a b/\xc3\xa4"[..], b"/\xff", b"/it's\\x41\n\xfe/x", b"/$'x'", b"/x\xff\\"] {
            let path = PathBuf::from(OsString::from_vec(path.to_vec()));
            assert_eq!(read(&written(&path)), path, "{}", written(&path));
        }
        assert_eq!(written(Path::new("/plain")), "/plain");
        // What a run from elsewhere says is looked at with as much care.
        for odd in ["$'", "$''", "$'\\x'", "$'\\xz\u{e4}'", "$'\\x4"] {
            read(odd);
        }
    }
}
