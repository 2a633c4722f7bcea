//! The images of a run that is exported.

use std::collections::BTreeMap;

use vmm::BlockImage;

use super::{ArchiveError, PAGES_LIMIT, write::Kind, write::WriteFailed};
use crate::{
    error::StageError,
    home::{Home, RunDir},
    kept::{Kept, Used},
    seek::{FindImage, open_images},
    spec::Spec,
    store::{PAGE_SIZE, PageHash},
};

/// Where a page's content is: image and block.
pub(super) type Place = (u32, u64);

/// Images known by content, open.
pub(super) struct Images<'r> {
    run: &'r RunDir,
    used: Used,
    open: BTreeMap<u32, Box<dyn BlockImage>>,
}

impl<'r> Images<'r> {
    pub(super) fn open(
        home: &Home,
        run: &'r RunDir,
        spec: &Spec,
        source: &str,
        kind: Kind,
        find: FindImage<'_>,
    ) -> Result<Images<'r>, WriteFailed> {
        let logged = run.inputs().map_err(StageError::from)?.blocks;
        let known: Vec<u32> = (0..spec.images.len() as u32).filter(|n| !logged.contains_key(n)).collect();
        if known.is_empty() {
            return Ok(Images { run, used: Used::default(), open: BTreeMap::new() });
        }
        let kept = run.kept().map_err(StageError::from)?;
        let used = match (run.used().map_err(StageError::from)?, kept) {
            (Some(used), _) => used,
            (None, Some(kept)) => {
                let mut used = Used::default();
                for (image, blocks) in &kept.images {
                    used.add(*image, &blocks.keys().copied().collect());
                }
                used
            }
            (None, None) if kind == Kind::Whole && !run.is_imported() => Used::default(),
            (None, None) => return Err(WriteFailed::Archive(ArchiveError::NoImages(run.id()))),
        };
        let images = open_images(home, run, spec, source, find)?;
        let open = (0u32..).zip(images).filter(|(n, _)| known.contains(n)).collect();
        Ok(Images { run, used, open })
    }

    /// The blocks to put in, and where each different one can be read.
    pub(super) fn list(&mut self, whole: bool) -> Result<(Kept, BTreeMap<PageHash, Place>), WriteFailed> {
        let mut kept = Kept { whole, ..Kept::default() };
        let mut places = BTreeMap::new();
        let mut content = [0; PAGE_SIZE];
        for image in self.open.keys().copied().collect::<Vec<_>>() {
            let all = self.open[&image].len().div_ceil(PAGE_SIZE as u64);
            if whole && all > PAGES_LIMIT as u64 {
                let what = "its root is larger than 16 GiB; export what it used, without --whole";
                return Err(WriteFailed::Archive(ArchiveError::TooLarge { id: self.run.id(), what }));
            }
            let numbers: Vec<u64> = if whole {
                (0..all).collect()
            } else {
                self.used.blocks(image).take_while(|n| *n < all).collect()
            };
            let blocks = kept.images.entry(image).or_default();
            for number in numbers {
                read(&mut self.open, (image, number), &mut content)?;
                let hash = PageHash::of(&content);
                if !(whole && hash.is_zero()) {
                    blocks.insert(number, hash);
                    places.entry(hash).or_insert((image, number));
                }
            }
        }
        Ok((kept, places))
    }

    /// One block.
    pub(super) fn read(&mut self, place: Place, out: &mut [u8; PAGE_SIZE]) -> Result<(), WriteFailed> {
        read(&mut self.open, place, out)
    }
}

fn read(
    open: &mut BTreeMap<u32, Box<dyn BlockImage>>,
    (image, number): Place,
    out: &mut [u8; PAGE_SIZE],
) -> Result<(), WriteFailed> {
    let failed = |source| StageError::Image { image: image as usize, of: "the run's root".into(), source };
    let Some(opened) = open.get_mut(&image) else { return Ok(()) };
    let at = number * PAGE_SIZE as u64;
    let inside = opened.len().saturating_sub(at).min(PAGE_SIZE as u64) as usize;
    out.fill(0);
    opened.read(at, &mut out[..inside]).map_err(failed)?;
    Ok(())
}
