//! `--root`: opening what it names, with progress.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result};
use image::{
    OpenOptions, Phase, Progress,
    root::{HostRoot, Origin, RootOptions},
};
use indicatif::{ProgressBar, ProgressStyle};
use run::{
    home::{Home, RunDir},
    root::{Blocks, FilesAt, Replayed, Root},
    seek,
    spec::{Content, ImageSpec, Spec},
};

use crate::path_text;

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
    let source = path_text::write(&path.canonicalize()?);
    let opened = Arc::new(opened);
    let of_blocks = opened.clone();
    let files: FilesAt = Arc::new(move |blocks| of_blocks.files_at(blocks));
    let open = Arc::new(move || Ok(opened.image()));
    Ok(Root { spec, source, open, logged: false, origin: None, same: None, files: Some(files) })
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
    /// Where that run looked: as it saw it; elsewhere files as they were then, directories as they are now.
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
        source: format!("{HOST}{}", path_text::write(cwd)),
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
            host(home, &path_text::read(cwd), Moment::Of(origin))
        }
        None => open(home, &path_text::read(source), None),
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
        let here = || -> Result<Root> {
            let root = again(home, &source, origins.get(number).map(Vec::as_slice))?;
            Ok(seek::unchanged(run, root, image)?)
        };
        let root = match own {
            Some(own) if kept.whole => own,
            own => seek::best(own, here, &crate::context::notice)?,
        };
        roots.push(match logged {
            Some(blocks) => beyond(home, root, kept.beside(number as u32, blocks)),
            None => root,
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
    match host(home, &path_text::read(cwd), Moment::Beyond(origin)) {
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
