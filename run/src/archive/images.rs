//! The images of a run that is exported.

use std::{collections::BTreeMap, sync::atomic::AtomicBool};

use vmm::BlockImage;

use super::{
    ArchiveError, PAGES_LIMIT,
    write::{Kind, WriteFailed, go_on},
};
use crate::{
    error::StageError,
    home::{Home, RunDir},
    kept::Kept,
    seek::{FindImage, unchanged},
    store::{PAGE_SIZE, PageHash},
};

/// Where a page's content is: image and block.
pub(super) type Place = (u32, u64);

/// What an export holds of images.
pub(super) struct Images<'r> {
    run: &'r RunDir,
    whole: bool,
    /// Blocks in the page store.
    kept: Kept,
    /// Other images, open, and which of their blocks go in.
    open: BTreeMap<u32, (Box<dyn BlockImage>, Vec<u64>)>,
    interrupted: &'r AtomicBool,
}

impl<'r> Images<'r> {
    pub(super) fn open(
        home: &Home,
        run: &'r RunDir,
        kind: Kind,
        find: FindImage<'_>,
        interrupted: &'r AtomicBool,
    ) -> Result<Images<'r>, WriteFailed> {
        let spec = run.spec().map_err(StageError::from)?;
        let recording = run.recording().map_err(StageError::from)?;
        let source = &recording.map(|recording| recording.source).unwrap_or_default();
        let logged = run.inputs().map_err(StageError::from)?.blocks;
        let used = run.used().map_err(StageError::from)?;
        let found = run.kept().map_err(StageError::from)?.unwrap_or_default();
        let whole = kind == Kind::Whole;
        if whole && !logged.is_empty() {
            return Err(WriteFailed::Archive(ArchiveError::OwnRoot(run.id())));
        }
        let mut images = Images {
            run,
            whole,
            kept: Kept { whole, ..Kept::default() },
            open: BTreeMap::new(),
            interrupted,
        };
        for (number, image) in (0u32..).zip(&spec.images) {
            let failed =
                |error| StageError::Image { image: number as usize, of: source.to_owned(), source: error };
            let own = found.images.get(&number);
            if let Some(blocks) = own
                && (logged.contains_key(&number) || !whole)
            {
                images.kept.images.insert(number, blocks.clone());
                continue;
            }
            if logged.contains_key(&number) {
                continue;
            }
            let root = match found.root(home, run, number as usize, image) {
                Some(root) if found.whole || run.is_imported() => root,
                _ if !run.is_imported() => unchanged(run, find(image, source).map_err(failed)?, image)?,
                _ => return Err(WriteFailed::Archive(ArchiveError::NoImages(run.id()))),
            };
            let opened = (root.open)().map_err(failed)?;
            let all = opened.len().div_ceil(PAGE_SIZE as u64);
            if whole && all > PAGES_LIMIT as u64 {
                let what = "its root is larger than 16 GiB; export what it used, without --whole";
                return Err(WriteFailed::Archive(ArchiveError::TooLarge { id: run.id(), what }));
            }
            let blocks = match &used {
                _ if whole => (0..all).collect(),
                Some(used) => used.blocks(number).take_while(|n| *n < all).collect(),
                None => return Err(WriteFailed::Archive(ArchiveError::NoImages(run.id()))),
            };
            images.open.insert(number, (opened, blocks));
        }
        Ok(images)
    }

    /// The blocks to put in, and where each one that is not in the page store can be read.
    pub(super) fn list(&mut self) -> Result<(Kept, BTreeMap<PageHash, Place>), WriteFailed> {
        let mut places = BTreeMap::new();
        let mut content = [0; PAGE_SIZE];
        let mut kept = self.kept.clone();
        for (image, numbers) in
            self.open.iter().map(|(image, (_, numbers))| (*image, numbers.clone())).collect::<Vec<_>>()
        {
            let blocks = kept.images.entry(image).or_default();
            for number in numbers {
                go_on(self.interrupted)?;
                self.read((image, number), &mut content)?;
                let hash = PageHash::of(&content);
                if !(self.whole && hash.is_zero()) {
                    blocks.insert(number, hash);
                    places.entry(hash).or_insert((image, number));
                }
            }
        }
        Ok((kept, places))
    }

    /// One block.
    pub(super) fn read(
        &mut self,
        (image, number): Place,
        out: &mut [u8; PAGE_SIZE],
    ) -> Result<(), WriteFailed> {
        let of = format!("the root of run {}", self.run.id());
        let failed = |source| StageError::Image { image: image as usize, of, source };
        let Some((opened, _)) = self.open.get_mut(&image) else { return Ok(()) };
        crate::root::whole_block(&mut **opened, number, out).map_err(failed)?;
        Ok(())
    }
}
