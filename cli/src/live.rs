//! Passing a run's output through while it is recorded.

use std::cell::RefCell;

use rewind_platform::record::{REC_OUTPUT, RecordHeader};
use run::trace::Record;
use serde_json::{Value, json};

use crate::output::{self, Stream};

/// Shows the job's output, or every event as JSON.
pub(crate) struct Live {
    json: bool,
    streams: RefCell<[Shown; 2]>,
}

/// What was shown of one of the job's outputs.
#[derive(Default)]
struct Shown {
    shown: Vec<u8>,
    /// Longer than what is kept of it.
    long: bool,
    /// Bytes of the present recording that were shown before, if it is not the first.
    repeated: usize,
}

/// Output kept to compare a recording that begins anew with.
const KEPT: usize = 4 << 20;

impl Live {
    pub(crate) fn new(json: bool) -> Self {
        Live { json, streams: RefCell::default() }
    }

    /// Shows a record. That it cannot be written does not stop the recording: `main` says so when it is done.
    pub(crate) fn show(&self, header: &RecordHeader, payload: &[u8]) {
        if self.json {
            object(&run::describe::to_json(&Record::new(header, payload)));
        } else if header.kind == REC_OUTPUT {
            self.pass(usize::from(header.aux == 2), payload);
        }
    }

    /// The recording begins anew: what it says again is not shown again.
    pub(crate) fn begin_anew(&self, why: &str) {
        if self.json {
            object(&json!({ "kind": "again", "why": why }));
        }
        crate::context::notice(why);
        for stream in self.streams.borrow_mut().iter_mut() {
            // The part of an earlier repetition that was not reached is shown, too.
            stream.repeated = stream.shown.len();
            if std::mem::take(&mut stream.long) {
                stream.shown.clear();
                stream.repeated = 0;
            }
        }
    }

    fn pass(&self, number: usize, payload: &[u8]) {
        let stream = &mut self.streams.borrow_mut()[number];
        let mut new = payload;
        if stream.repeated > 0 {
            let from = stream.shown.len() - stream.repeated;
            let part = stream.repeated.min(payload.len());
            if stream.shown[from..from + part] == payload[..part] {
                stream.repeated -= part;
                new = &payload[part..];
            } else {
                stream.repeated = 0;
                stream.shown.truncate(from);
                crate::context::notice("from here on it is not what was shown before");
            }
        }
        if stream.shown.len() + new.len() <= KEPT {
            stream.shown.extend_from_slice(new);
        } else {
            stream.long = true;
        }
        output::pass(if number == 1 { Stream::Err } else { Stream::Out }, new);
    }
}

fn object(value: &Value) {
    output::pass(Stream::Out, format!("{value}\n").as_bytes());
}
