//! The input log: everything that came from outside during a run, kept so that it replays without the outside.
//!
//! Two kinds. Blocks of an image that was read from the host's files on demand: which block held what (pages in
//! the page store). And device input (typed, network): bytes at a place. Blocks are keyed by their number, not by when
//! they were read, because host files are taken as constant for the whole run (and checked to be).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{envelope::Kind, spec::Content, store::PageHash};

/// The file `inputs` of a run.
pub const FILE: Kind = Kind { magic: *b"RWDINPT\0", version: 1, name: "input log", limit: 4 << 30 };

/// Everything from outside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputLog {
    /// For each image whose data is logged, by its number: the 4 KiB blocks the run read.
    pub blocks: BTreeMap<u32, BTreeMap<u64, PageHash>>,
    /// Device input, in order.
    pub devices: Vec<DeviceInput>,
}

/// Bytes that arrived on a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInput {
    /// The step after which they arrived.
    pub step: u64,
    /// Poll points passed by then: orders two arrivals within one idle stretch.
    pub poll: u64,
    /// The channel.
    pub channel: u32,
    /// What arrived.
    pub bytes: Vec<u8>,
}

impl InputLog {
    /// Nothing came from outside?
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty() && self.blocks.values().all(BTreeMap::is_empty)
    }

    /// The log's identity, for the spec.
    pub fn hash(&self) -> Content {
        let encoded = postcard::to_allocvec(self).expect("plain data encodes");
        Content(blake3::derive_key("rewind input log 1", &encoded))
    }

    /// Pages it names.
    pub fn pages(&self) -> impl Iterator<Item = PageHash> + '_ {
        self.blocks.values().flat_map(|blocks| blocks.values().copied())
    }
}
