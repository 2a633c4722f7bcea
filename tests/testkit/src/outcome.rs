//! What a run did.

use rewind_platform::{
    job::JobEnd,
    record::{
        REC_CONSOLE, REC_OUTPUT, REC_REPORT, REC_RICH_FIRST, REC_WAITER, REPORT_ENDED, REPORT_FAILED,
        RecordHeader,
    },
};
use run::trace::TraceHasher;
use vmm::{Machine, RecordSink, Stop};

/// One record.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its header.
    pub header: RecordHeader,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Gathers the default records.
#[derive(Default)]
pub struct Gatherer {
    hasher: TraceHasher,
    events: Vec<Event>,
    console: Vec<u8>,
}

impl RecordSink for Gatherer {
    fn record(&mut self, header: &RecordHeader, payload: &[u8]) {
        if header.kind >= REC_RICH_FIRST {
            return;
        }
        self.hasher.add(header, payload);
        if header.kind == REC_CONSOLE {
            self.console.extend_from_slice(payload);
        }
        self.events.push(Event { header: *header, payload: payload.to_vec() });
    }

    fn console(&mut self, text: &[u8]) {
        self.console.extend_from_slice(text);
    }
}

impl Gatherer {
    /// What was gathered until `stop`.
    pub fn finish(self, machine: &Machine, stop: &Stop) -> Outcome {
        let output =
            self.events.iter().filter(|e| e.header.kind == REC_OUTPUT).flat_map(|e| e.payload.clone());
        let report = |kind: u16| {
            self.events
                .iter()
                .find(|e| e.header.kind == REC_REPORT && e.header.flags == kind)
                .map(|e| &e.payload)
        };
        Outcome {
            hash: self.hasher.finish().0.iter().take(8).map(|b| format!("{b:02x}")).collect(),
            output: String::from_utf8_lossy(&output.collect::<Vec<_>>()).into_owned(),
            console: String::from_utf8_lossy(&self.console).into_owned(),
            status: report(REPORT_ENDED).map(|p| postcard::from_bytes::<JobEnd>(p).unwrap().status),
            failed: report(REPORT_FAILED).map(|p| String::from_utf8_lossy(p).into_owned()),
            stop: stop.clone(),
            steps: machine.step().0,
            now: machine.now().0,
            exits: 0,
            events: self.events,
        }
    }
}

/// What a run did.
#[derive(Debug)]
pub struct Outcome {
    /// First 16 hex digits of the trace hash.
    pub hash: String,
    /// What the job wrote to both of its outputs.
    pub output: String,
    /// Console text.
    pub console: String,
    /// Wait status of the job's first process, if it ended.
    pub status: Option<i32>,
    /// Why init could not do the job.
    pub failed: Option<String>,
    /// Why the machine stopped.
    pub stop: Stop,
    /// Steps at the end.
    pub steps: u64,
    /// Virtual nanoseconds at the end.
    pub now: u64,
    /// Exits of the engine (only from [`crate::Kit::run`]).
    pub exits: u64,
    /// All default records.
    pub events: Vec<Event>,
}

impl Outcome {
    /// First 16 hex digits of a hash over all default records but the console's: what engines have in common. Kernel
    /// texts (of an OOM kill, say) show a program's registers with flags that the architecture leaves undefined.
    pub fn hash_without_console(&self) -> String {
        let mut hasher = TraceHasher::default();
        for event in self.events.iter().filter(|event| event.header.kind != REC_CONSOLE) {
            hasher.add(&event.header, &event.payload);
        }
        hasher.finish().0.iter().take(8).map(|b| format!("{b:02x}")).collect()
    }

    /// Who waits for what, of a stalled run: `comm (tid) in channel`.
    pub fn waiters(&self) -> Vec<String> {
        self.events
            .iter()
            .filter(|e| e.header.kind == REC_WAITER)
            .map(|e| {
                let texts = e.payload.get(40..).unwrap_or_default();
                let mut parts = texts.split(|b| *b == 0).map(|t| String::from_utf8_lossy(t).into_owned());
                let (channel, comm) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!("{comm} ({}) in {channel}", e.header.tid)
            })
            .collect()
    }
}
