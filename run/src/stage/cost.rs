//! What a snapshot would cost.

use std::collections::BTreeSet;

use super::Stage;
use crate::{
    error::StageError,
    store::{PAGE_SIZE, PageHash},
};

/// Pages looked at, of all that were written: a millisecond's work.
const SAMPLE: usize = 64;
/// Bytes of a page's entry in a keyframe and in the store's index.
const ENTRY: u64 = 34;
const INDEXED: u64 = 48;

impl Stage {
    /// About how many bytes a snapshot taken now would add to the home, judged by a sample of its pages. `inputs`: pages
    /// read from an image, which the home keeps once for all runs.
    pub fn snapshot_cost(&mut self, inputs: &BTreeSet<PageHash>) -> Result<u64, StageError> {
        self.collect_dirty()?;
        let pages: Vec<u64> = self.changed.iter().collect();
        let looked = pages.len().min(SAMPLE);
        let io = |source| vmm::memory::MemoryError::Map { bytes: PAGE_SIZE as u64, source };
        let mut compressor = zstd::bulk::Compressor::new(1).map_err(io)?;
        let (mut content, mut stored) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        let memory = self.machine.memory();
        let mut sum = 0;
        for n in 0..looked {
            let page = pages[n * pages.len() / looked];
            memory.read(memory.address_of(page), &mut content)?;
            let hash = PageHash::of(&content);
            if !inputs.contains(&hash) && !self.store.seems_known(hash)? {
                let len = compressor.compress_to_buffer(&content, &mut stored[..PAGE_SIZE - 1]);
                sum += INDEXED + len.unwrap_or(PAGE_SIZE) as u64;
            }
        }
        let count = pages.len() as u64;
        Ok(count * ENTRY + (sum * count).checked_div(looked as u64).unwrap_or(0))
    }
}
