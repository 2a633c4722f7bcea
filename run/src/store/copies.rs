//! Pages stored more than once: one whose copy is corrupt is stored anew by whoever has its content, beside the bad copy,
//! which goes with the next gc.

use std::{collections::BTreeSet, sync::PoisonError};

use super::{PAGE_SIZE, PageError, PageHash, PageStore, index::Location, packs};

/// Pages that were checked since the store is doubted.
pub(super) type Doubted = BTreeSet<PageHash>;

impl PageStore {
    /// As [`PageStore::put`], but a copy that is there is read and checked, and one that is corrupt is stored anew.
    pub fn put_checked(&self, page: &[u8; PAGE_SIZE]) -> Result<PageHash, PageError> {
        let hash = self.put(page)?;
        self.mend(hash, page)?;
        Ok(hash)
    }

    /// From now on every page that is put here is checked, once, as [`PageStore::put_checked`] does.
    pub fn doubt(&self) {
        self.doubted().get_or_insert_default();
    }

    fn doubted(&self) -> std::sync::MutexGuard<'_, Option<Doubted>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn mend_if_doubted(&self, hash: PageHash, page: &[u8; PAGE_SIZE]) -> Result<(), PageError> {
        let new = self.doubted().as_mut().is_some_and(|checked| checked.insert(hash));
        if new { self.mend(hash, page) } else { Ok(()) }
    }

    fn mend(&self, hash: PageHash, page: &[u8; PAGE_SIZE]) -> Result<(), PageError> {
        match self.get(hash, &mut [0; PAGE_SIZE]) {
            Err(PageError::Corrupt { .. }) => self.lock().append(hash, page),
            other => other,
        }
    }

    /// Reads a page whose copy at `bad` is corrupt, if there is another one.
    pub(super) fn read_other_copy(
        &self,
        hash: PageHash,
        bad: Location,
        out: &mut [u8; PAGE_SIZE],
    ) -> Result<(), PageError> {
        for number in packs::list(&self.dir) {
            let Some(scan) = packs::scan_index(&self.dir, number, 0)? else { continue };
            let others = scan.entries.into_iter().filter(|(found, at)| *found == hash && *at != bad);
            for (_, at) in others {
                if self.read(hash, at, out).is_ok() {
                    self.lock().prefer(hash, at);
                    return Ok(());
                }
            }
        }
        Err(self.corrupt(hash, bad))
    }
}
