//! Comparing what a machine does with what was recorded, event by event.

use rewind_platform::record::RecordHeader;
use vmm::{Interrupter, RecordSink};

use crate::trace::{Record, Records, TraceError};

/// The first event that is not the recorded one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Number of the record in the trace, from 0.
    pub number: u64,
    /// What was recorded; none past the end of the trace.
    pub recorded: Option<Record>,
    /// What happened now; none if nothing did.
    pub happened: Option<Record>,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let say = |record: &Option<Record>, none: &str| match record {
            Some(record) => crate::describe::line(record),
            None => none.into(),
        };
        write!(
            f,
            "event {}: recorded {}; now {}",
            self.number,
            say(&self.recorded, "nothing more"),
            say(&self.happened, "nothing")
        )
    }
}

/// Takes records of any level.
pub type OnRecord<'a> = &'a mut dyn FnMut(&RecordHeader, &[u8]);

/// A sink that compares. At the first difference it stops the machine.
pub struct Verifier<'a> {
    expected: Records<'a>,
    number: u64,
    stop: Option<Interrupter>,
    on_record: Option<OnRecord<'a>>,
    difference: Option<Difference>,
    error: Option<TraceError>,
}

impl<'a> Verifier<'a> {
    /// Compares with `expected`, whose first record has this number.
    pub fn new(expected: Records<'a>, number: u64) -> Self {
        Verifier { expected, number, stop: None, on_record: None, difference: None, error: None }
    }

    /// Stops this machine at the first difference.
    pub fn stopping(mut self, stop: Interrupter) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Hands every record, rich ones too, to `on_record`.
    pub fn showing(mut self, on_record: OnRecord<'a>) -> Self {
        self.on_record = Some(on_record);
        self
    }

    /// Default records seen, counted from the beginning of the trace.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The first difference so far.
    pub fn check(&mut self) -> Result<Option<Difference>, TraceError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.difference.clone()),
        }
    }

    /// At the end: everything recorded must have happened.
    pub fn finish(mut self) -> Result<Option<Difference>, TraceError> {
        if let Some(difference) = self.check()? {
            return Ok(Some(difference));
        }
        let recorded = self.expected.next().transpose()?;
        Ok(recorded.map(|recorded| Difference {
            number: self.number,
            recorded: Some(recorded),
            happened: None,
        }))
    }
}

impl RecordSink for Verifier<'_> {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        if self.difference.is_some() || self.error.is_some() {
            return;
        }
        let happened = Record::new(header, payload);
        if happened.is_default() {
            match self.expected.next() {
                Some(Ok(recorded)) if recorded == happened => self.number += 1,
                Some(Err(error)) => self.error = Some(error),
                other => {
                    let recorded = other.and_then(Result::ok);
                    self.difference =
                        Some(Difference { number: self.number, recorded, happened: Some(happened) });
                }
            }
        }
        if self.difference.is_some() || self.error.is_some() {
            if let Some(stop) = &self.stop {
                stop.stop_soon();
                stop.stop_now();
            }
        } else if let Some(on_record) = &mut self.on_record {
            on_record(header, payload);
        }
    }
}
