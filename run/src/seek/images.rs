//! The images of a recorded run, had again.

use std::sync::Arc;

use crate::{
    error::StageError,
    home::{Home, RunDir},
    root::{Replayed, Root},
    spec::{ImageSpec, Spec},
};

/// How the images of a recorded run are had again: asked for each image known by content of which nothing was kept, or more
/// than was kept is wanted.
pub type FindImage<'a> = &'a dyn Fn(&ImageSpec, &str) -> std::io::Result<Root>;

/// As [`FindImage`], for an image whose data the run did log: what the run did not read, for a throw-away fork that may.
/// Given the run's `origin` of the image. `None` where that is nowhere to be had.
pub type FindRest<'a> = &'a dyn Fn(&str, &[u8]) -> Option<Root>;

/// Where a throw-away fork has from what the run did not read.
#[derive(Clone, Copy)]
pub(super) struct Beyond<'a> {
    pub(super) rest: FindRest<'a>,
    /// Told why that is not to be had.
    pub(super) notice: &'a dyn Fn(&str),
}

/// The images of a recorded run: logged and kept blocks from the store, images of which nothing was kept from where they
/// were, checked by content.
pub fn open_images(
    home: &Home,
    run: &RunDir,
    spec: &Spec,
    source: &str,
    find: FindImage<'_>,
) -> Result<Vec<Box<dyn vmm::BlockImage>>, StageError> {
    open_images_beyond(home, run, spec, source, find, None)
}

/// As [`open_images`]; what the run did not read comes from `beyond`, if that is given: the rest of a logged image from
/// there, an image known by content from where it was, if it is there still.
pub(super) fn open_images_beyond(
    home: &Home,
    run: &RunDir,
    spec: &Spec,
    source: &str,
    find: FindImage<'_>,
    beyond: Option<Beyond<'_>>,
) -> Result<Vec<Box<dyn vmm::BlockImage>>, StageError> {
    let mut inputs = run.inputs()?;
    let (origins, kept) = (run.origins()?, run.kept()?);
    let whole = kept.as_ref().is_some_and(|kept| kept.whole);
    let mut origins = origins.iter();
    let mut images: Vec<Box<dyn vmm::BlockImage>> = Vec::new();
    for (number, image) in spec.images.iter().enumerate() {
        let failed = |error| StageError::Image { image: number, of: source.to_owned(), source: error };
        if let Some(logged) = inputs.blocks.remove(&(number as u32)) {
            let blocks = kept.as_ref().map_or(logged.clone(), |kept| kept.beside(number as u32, logged));
            let replayed = Replayed::new(image.len, Arc::new(blocks), home.pages().clone(), source.into());
            let rest = beyond.and_then(|beyond| (beyond.rest)(source, origins.next()?));
            images.push(match rest {
                Some(root) => Box::new(replayed.beyond((root.open)().map_err(failed)?)),
                None => Box::new(replayed),
            });
            continue;
        }
        let own = kept.as_ref().and_then(|kept| kept.root(home, run, number, image));
        // An imported run's source is a path of another host.
        let here = || match run.is_imported() {
            true => Err(failed(std::io::Error::other(
                "the run was exported to look at only, without it: export it again, to be replayed",
            ))),
            false => find(image, source).map_err(failed).and_then(|root| unchanged(run, root, image)),
        };
        let root = match (own, beyond) {
            (Some(own), None) => own,
            (Some(own), Some(_)) if run.is_imported() || whole => own,
            (own, beyond) => best(own, here, beyond.map_or(&|_| {}, |beyond| beyond.notice))?,
        };
        images.push((root.open)().map_err(failed)?);
    }
    Ok(images)
}

/// The root to go on with otherwise than the run did: the one that is `here`, else what is kept of it with the run, of which
/// `notice` is told.
pub fn best<E: std::fmt::Display>(
    kept: Option<Root>,
    here: impl FnOnce() -> Result<Root, E>,
    notice: &dyn Fn(&str),
) -> Result<Root, E> {
    match (here(), kept) {
        (Err(error), Some(kept)) => {
            notice(&format!("only files the run has read can be read ({error:#})"));
            Ok(kept)
        }
        (here, _) => here,
    }
}

/// Refuses an image that is another than the run's.
pub fn unchanged(run: &RunDir, root: Root, image: &ImageSpec) -> Result<Root, StageError> {
    if root.spec == *image {
        return Ok(root);
    }
    Err(StageError::ImageChanged {
        id: run.id(),
        of: root.source,
        found: root.spec.content.to_string(),
        wanted: image.content.to_string(),
    })
}
