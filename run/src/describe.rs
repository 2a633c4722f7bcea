//! Records in words and as JSON. What is in a record is the guest's: text is escaped, lengths are checked.

use rewind_platform::{
    job::{JobEnd, OutputHash},
    record::*,
};
use serde_json::{Map, Value, json};

use crate::trace::Record;

/// Kinds and their stable names.
pub const KINDS: [(u16, &str); 21] = [
    (REC_CONSOLE, "console"),
    (REC_OUTPUT, "output"),
    (REC_EXEC, "exec"),
    (REC_FORK, "fork"),
    (REC_EXIT, "exit"),
    (REC_SIGNAL, "signal"),
    (REC_OPEN, "open"),
    (REC_RENAME, "rename"),
    (REC_UNLINK, "unlink"),
    (REC_SWITCH, "switch"),
    (REC_MARK, "mark"),
    (REC_PROPERTY, "property"),
    (REC_DECISION, "decision"),
    (REC_REPORT, "report"),
    (REC_WAITER, "waiter"),
    (REC_SYSCALL_ENTER, "syscall-enter"),
    (REC_SYSCALL_EXIT, "syscall-exit"),
    (REC_FUTEX_WAIT, "futex-wait"),
    (REC_FUTEX_WAKE, "futex-wake"),
    (REC_FAULT, "fault"),
    (REC_MMAP, "mmap"),
];

/// The kind's stable name.
pub fn kind_name(kind: u16) -> &'static str {
    KINDS.iter().find(|(number, _)| *number == kind).map_or("unknown", |(_, name)| name)
}

/// The `n`-th little-endian u64 of a payload; 0 if it is not there.
pub fn long(payload: &[u8], n: usize) -> u64 {
    payload.get(n * 8..n * 8 + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")))
}

fn word(payload: &[u8], at: usize) -> u32 {
    payload.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().expect("4 bytes")))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Strings of an exec record: the path, then the arguments.
pub fn strings(payload: &[u8]) -> Vec<String> {
    let payload = payload.strip_suffix(b"\0").unwrap_or(payload);
    payload.split(|byte| *byte == 0).map(text).collect()
}

/// What the record says beyond its header, by stable names.
pub fn details(record: &Record) -> Map<String, Value> {
    let (header, payload) = (&record.header, &record.payload[..]);
    let value = match header.kind {
        REC_OUTPUT => json!({ "fd": header.aux, "text": text(payload) }),
        REC_CONSOLE => json!({ "text": text(payload) }),
        REC_EXEC => {
            let mut strings = strings(payload);
            let path = strings.remove(0);
            json!({ "path": path, "argv": strings })
        }
        REC_FORK => json!({
            "child": format!("{:016x}", long(payload, 0)), "n": long(payload, 1),
            "child_tid": word(payload, 16), "child_pid": word(payload, 20), "flags": long(payload, 3),
        }),
        REC_EXIT => json!({ "status": header.aux, "comm": text(payload).trim_end_matches('\0') }),
        REC_SIGNAL => json!({
            "signal": header.aux, "code": word(payload, 0) as i32, "address": long(payload, 1),
            "ip": long(payload, 2), "handled": long(payload, 3) != 0,
        }),
        REC_OPEN => json!({ "flags": header.aux, "path": strings(payload)[0] }),
        REC_UNLINK => json!({ "path": strings(payload)[0] }),
        REC_RENAME => {
            let strings = strings(payload);
            json!({ "from": strings[0], "to": strings.get(1) })
        }
        REC_SWITCH => json!({
            "previous_tid": header.aux, "previous": format!("{:016x}", long(payload, 0)),
            "previous_state": long(payload, 1),
        }),
        REC_MARK | REC_PROPERTY => match serde_json::from_slice::<Value>(payload) {
            Ok(line) => json!({ "line": line }),
            Err(_) => json!({ "text": text(payload) }),
        },
        REC_DECISION => json!({
            "decision": header.aux, "syscall": long(payload, 0), "returns": long(payload, 1),
            "arg": long(payload, 2),
        }),
        REC_REPORT => report(header.flags & !FLAG_CUT, payload),
        REC_WAITER => json!({ "state": long(payload, 0), "syscall": long(payload, 1) as i64 }),
        REC_SYSCALL_ENTER => {
            json!({ "number": header.aux, "args": (0..6).map(|n| long(payload, n)).collect::<Vec<_>>() })
        }
        REC_SYSCALL_EXIT => json!({ "number": header.aux, "result": long(payload, 0) as i64 }),
        REC_FUTEX_WAIT => json!({ "address": long(payload, 0), "value": long(payload, 1) }),
        REC_FUTEX_WAKE => json!({ "address": long(payload, 0), "woken": long(payload, 1) }),
        REC_FAULT => {
            json!({ "error": header.aux, "address": long(payload, 0), "ip": long(payload, 1) })
        }
        REC_MMAP => json!({
            "number": header.aux, "address": long(payload, 0), "length": long(payload, 1),
            "protection": long(payload, 2), "flags": long(payload, 3), "result": long(payload, 4) as i64,
        }),
        other => json!({ "number": other }),
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn report(what: u16, payload: &[u8]) -> Value {
    match what {
        REPORT_STARTED => json!({ "report": "started" }),
        REPORT_ENDED => {
            json!({ "report": "ended", "status": postcard::from_bytes::<JobEnd>(payload).ok().map(|e| e.status) })
        }
        REPORT_OUTPUT => match postcard::from_bytes::<OutputHash>(payload) {
            Ok(output) => json!({
                "report": "output", "path": text(&output.path),
                "hash": output.hash.map(|hash| crate::id::hex(&hash)),
            }),
            Err(_) => json!({ "report": "output" }),
        },
        REPORT_FAILED => json!({ "report": "failed", "text": text(payload) }),
        other => json!({ "report": other }),
    }
}

/// One JSON object.
pub fn to_json(record: &Record) -> Value {
    let header = &record.header;
    let mut map = Map::new();
    map.insert("step".into(), header.step.into());
    map.insert("now".into(), header.now.into());
    map.insert("kind".into(), kind_name(header.kind).into());
    map.insert("thread".into(), format!("{:016x}", header.thread).into());
    map.insert("tid".into(), header.tid.into());
    map.insert("pid".into(), header.pid.into());
    if header.flags & FLAG_CUT != 0 {
        map.insert("cut".into(), true.into());
    }
    map.extend(details(record));
    Value::Object(map)
}

/// One line for people: `step 3291 thread 141: output fd=1 text="x"`.
pub fn line(record: &Record) -> String {
    use std::fmt::Write;
    let header = &record.header;
    let mut out = format!("step {} thread {}: {}", header.step, header.tid, kind_name(header.kind));
    for (name, value) in details(record) {
        // Values print as JSON: quoted and escaped.
        let _ = write!(out, " {name}={value}");
    }
    out
}
