//! `--root`: opening what it names, with progress.

use std::{io, path::Path, sync::Arc};

use anyhow::Result;
use image::{OpenOptions, Phase, Progress};
use indicatif::{ProgressBar, ProgressStyle};
use run::{
    home::Home,
    root::Root,
    spec::{Content, ImageSpec},
};

/// An image as the machine wants it.
struct Adapter(Box<dyn image::BlockImage>);

impl vmm::BlockImage for Adapter {
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read(&mut self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
}

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
    let source = path.canonicalize()?.to_string_lossy().into_owned();
    let opened = Arc::new(opened);
    let open = Arc::new(move || Ok(Box::new(Adapter(opened.image())) as Box<dyn vmm::BlockImage>));
    Ok(Root { spec, source, open, logged: false })
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
