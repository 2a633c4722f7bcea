//! Records in words and as JSON. What is in a record is the guest's: text is escaped, lengths are checked. Text that is not
//! UTF-8 cannot be in JSON; it is there with U+FFFD for what is not, and all of its bytes beside it in hex.

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

/// Strings of a record that holds some, each ended by a zero: of an exec the path, then the arguments.
fn parts(payload: &[u8]) -> Vec<&[u8]> {
    let payload = payload.strip_suffix(b"\0").unwrap_or(payload);
    payload.split(|byte| *byte == 0).collect()
}

/// Strings of an exec record: the path, then the arguments.
pub fn strings(payload: &[u8]) -> Vec<String> {
    parts(payload).into_iter().map(text).collect()
}

/// The field in which the bytes of the field `name` are that are not UTF-8.
fn hex_name(name: &str) -> String {
    if name == "text" { "hex".into() } else { format!("{name}_hex") }
}

/// Puts bytes that are text as a rule into a JSON object: as text in the field `name` and, if they are not UTF-8, in hex in
/// `NAME_hex` too (`hex` beside `text`).
pub fn put_text(object: &mut Map<String, Value>, name: &str, bytes: &[u8]) {
    object.insert(name.into(), text(bytes).into());
    if std::str::from_utf8(bytes).is_err() {
        object.insert(hex_name(name), crate::id::hex(bytes).into());
    }
}

/// As [`put_text`], of a list; the list in hex has all of them.
pub fn put_texts<'a>(
    object: &mut Map<String, Value>,
    name: &str,
    list: impl Iterator<Item = &'a [u8]> + Clone,
) {
    object.insert(name.into(), list.clone().map(text).collect());
    put_texts_hex(object, name, list);
}

/// Of [`put_texts`] only what is put if one of them is not UTF-8.
pub fn put_texts_hex<'a>(
    object: &mut Map<String, Value>,
    name: &str,
    list: impl Iterator<Item = &'a [u8]> + Clone,
) {
    if list.clone().any(|bytes| std::str::from_utf8(bytes).is_err()) {
        object.insert(hex_name(name), list.map(crate::id::hex).collect());
    }
}

/// A JSON value's fields, with bytes that are text as a rule.
fn with_texts(value: Value, texts: &[(&str, &[u8])]) -> Value {
    let mut object = match value {
        Value::Object(object) => object,
        _ => Map::new(),
    };
    for (name, bytes) in texts {
        put_text(&mut object, name, bytes);
    }
    Value::Object(object)
}

/// What the record says beyond its header, by stable names.
pub fn details(record: &Record) -> Map<String, Value> {
    let (header, payload) = (&record.header, &record.payload[..]);
    let value = match header.kind {
        REC_OUTPUT => with_texts(json!({ "fd": header.aux }), &[("text", payload)]),
        REC_CONSOLE => with_texts(json!({}), &[("text", payload)]),
        REC_EXEC => {
            let parts = parts(payload);
            let mut object = Map::new();
            put_text(&mut object, "path", parts[0]);
            put_texts(&mut object, "argv", parts[1..].iter().copied());
            Value::Object(object)
        }
        REC_FORK => json!({
            "child": format!("{:016x}", long(payload, 0)), "n": long(payload, 1),
            "child_tid": word(payload, 16), "child_pid": word(payload, 20), "flags": long(payload, 3),
        }),
        REC_EXIT => {
            let zeros = payload.iter().rev().take_while(|byte| **byte == 0).count();
            let comm = &payload[..payload.len() - zeros];
            with_texts(json!({ "status": header.aux }), &[("comm", comm)])
        }
        REC_SIGNAL => json!({
            "signal": header.aux, "code": word(payload, 0) as i32, "address": long(payload, 1),
            "ip": long(payload, 2), "handled": long(payload, 3) != 0,
        }),
        REC_OPEN => with_texts(json!({ "flags": header.aux }), &[("path", parts(payload)[0])]),
        REC_UNLINK => with_texts(json!({}), &[("path", parts(payload)[0])]),
        REC_RENAME => match parts(payload)[..] {
            [from, to, ..] => with_texts(json!({}), &[("from", from), ("to", to)]),
            [from] => with_texts(json!({ "to": null }), &[("from", from)]),
            [] => json!({}),
        },
        REC_SWITCH => json!({
            "previous_tid": header.aux, "previous": format!("{:016x}", long(payload, 0)),
            "previous_state": long(payload, 1),
        }),
        REC_MARK | REC_PROPERTY => match serde_json::from_slice::<Value>(payload) {
            Ok(line) => json!({ "line": line }),
            Err(_) => with_texts(json!({}), &[("text", payload)]),
        },
        REC_DECISION => json!({
            "decision": header.aux, "syscall": long(payload, 0), "returns": long(payload, 1),
            "arg": long(payload, 2),
        }),
        REC_REPORT => report(header.flags & !FLAG_CUT, payload),
        REC_WAITER => {
            named(long(payload, 1), json!({ "state": long(payload, 0), "syscall": long(payload, 1) as i64 }))
        }
        REC_SYSCALL_ENTER => named(
            header.aux.into(),
            json!({ "number": header.aux, "args": (0..6).map(|n| long(payload, n)).collect::<Vec<_>>() }),
        ),
        REC_SYSCALL_EXIT => {
            named(header.aux.into(), json!({ "number": header.aux, "result": long(payload, 0) as i64 }))
        }
        REC_FUTEX_WAIT => json!({ "address": long(payload, 0), "value": long(payload, 1) }),
        REC_FUTEX_WAKE => json!({ "address": long(payload, 0), "woken": long(payload, 1) }),
        REC_FAULT => {
            json!({ "error": header.aux, "address": long(payload, 0), "ip": long(payload, 1) })
        }
        REC_MMAP => named(
            header.aux.into(),
            json!({
                "number": header.aux, "address": long(payload, 0), "length": long(payload, 1),
                "protection": long(payload, 2), "flags": long(payload, 3), "result": long(payload, 4) as i64,
            }),
        ),
        other => json!({ "number": other }),
    };
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// With the name of the system call of this number, if there is one.
fn named(number: u64, mut value: Value) -> Value {
    let name = usize::try_from(number).ok().and_then(syscalls::Sysno::new).map(|call| call.name());
    if let (Some(name), Value::Object(object)) = (name, &mut value) {
        object.insert("call".into(), name.into());
    }
    value
}

fn report(what: u16, payload: &[u8]) -> Value {
    match what {
        REPORT_STARTED => json!({ "report": "started" }),
        REPORT_ENDED => {
            json!({ "report": "ended", "status": postcard::from_bytes::<JobEnd>(payload).ok().map(|e| e.status) })
        }
        REPORT_OUTPUT => match postcard::from_bytes::<OutputHash>(payload) {
            Ok(output) => {
                let hash = output.hash.map(|hash| crate::id::hex(&hash));
                with_texts(json!({ "report": "output", "hash": hash }), &[("path", &output.path)])
            }
            Err(_) => json!({ "report": "output" }),
        },
        REPORT_FAILED => with_texts(json!({ "report": "failed" }), &[("text", payload)]),
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
    let details = details(record);
    let in_hex = |name: &str| name == "hex" || name.ends_with("_hex");
    for (name, value) in details.iter().filter(|(name, _)| !in_hex(name)) {
        // Values print as JSON: quoted and escaped.
        let _ = write!(out, " {name}={value}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u16, payload: &[u8]) -> Record {
        let header = RecordHeader {
            len: 0,
            kind,
            flags: 0,
            step: 1,
            now: 1,
            thread: 1,
            tid: 1,
            pid: 1,
            payload_len: payload.len() as u32,
            aux: 1,
        };
        Record { header, payload: payload.to_vec() }
    }

    #[test]
    fn bytes_that_are_not_utf_8_are_in_the_json_all_the_same() {
        let output = to_json(&record(REC_OUTPUT, b"a\xffb"));
        assert_eq!((&output["text"], &output["hex"]), (&"a\u{fffd}b".into(), &"61ff62".into()));
        assert!(to_json(&record(REC_OUTPUT, b"plain")).get("hex").is_none());
        let exec = to_json(&record(REC_EXEC, b"/bin/\xfe\0x\0\xff\0"));
        assert_eq!(exec["path_hex"], "2f62696e2ffe");
        assert_eq!(exec["argv_hex"], json!(["78", "ff"]));
        let open = to_json(&record(REC_OPEN, b"\xff\0"));
        assert_eq!(open["path_hex"], "ff");
        let rename = to_json(&record(REC_RENAME, b"a\0\xff\0"));
        assert_eq!((&rename["from"], &rename["to_hex"]), (&"a".into(), &"ff".into()));
        // For people the text is enough.
        assert!(!line(&record(REC_OUTPUT, b"a\xffb")).contains("hex"));
        // Numbers are for programs.
        let mut enter = record(REC_SYSCALL_ENTER, &[0; 48]);
        enter.header.aux = 257;
        assert!(line(&enter).contains("call=\"openat\""), "{}", line(&enter));
        enter.header.aux = 99_999;
        assert!(to_json(&enter).get("call").is_none());
        for kind in KINDS.map(|(kind, _)| kind) {
            to_json(&record(kind, b""));
        }
    }
}
