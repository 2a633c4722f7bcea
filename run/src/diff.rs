//! Where two runs first differ.

use crate::{
    trace::{Record, TraceError, TraceReader},
    verify::Difference,
};

/// How two traces compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Event for event the same.
    Same {
        /// How many.
        events: u64,
    },
    /// The first event that differs (`recorded` is the first run's, `happened` the second's) and the events before.
    Differ {
        /// It.
        difference: Box<Difference>,
        /// The last events both have, oldest first.
        before: Vec<Record>,
    },
}

/// Compares two traces; keeps `context` events before the first difference.
pub fn diff(a: &TraceReader, b: &TraceReader, context: usize) -> Result<Compared, TraceError> {
    let (mut left, mut right) = (a.iter(), b.iter());
    let mut before = std::collections::VecDeque::new();
    let mut number = 0;
    loop {
        match (left.next().transpose()?, right.next().transpose()?) {
            (None, None) => return Ok(Compared::Same { events: number }),
            (Some(x), Some(y)) if x == y => {
                before.push_back(x);
                if before.len() > context {
                    before.pop_front();
                }
                number += 1;
            }
            (recorded, happened) => {
                let difference = Box::new(Difference { number, recorded, happened });
                return Ok(Compared::Differ { difference, before: before.into() });
            }
        }
    }
}
