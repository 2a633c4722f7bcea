//! The contract's two sides, this crate and `guest-kernel/abi/rewind_abi.h`, say the same: the C compiler is asked for
//! every value, size and offset, and both texts for their names, so that neither side can have one the other lacks.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    mem::{offset_of, size_of},
    path::{Path, PathBuf},
    process::Command,
};

use rewind_platform::{
    PLATFORM_VERSION, control, device, layout, port, record,
    state::{self, Fact},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn header() -> String {
    fs::read_to_string(root().join("guest-kernel/abi/rewind_abi.h")).expect("the C side of the contract")
}

/// Every constant of the crate that is a number, by its C name.
fn rust_values() -> BTreeMap<String, u64> {
    macro_rules! values {
        ($($($part:ident)::+),* $(,)?) => {
            [$((format!("RW_{}", stringify!($($part)::+).rsplit([':', ' ']).next().expect("a name")), u64::from($($part)::+))),*]
        };
    }
    let mut all: BTreeMap<String, u64> = values![
        PLATFORM_VERSION,
        layout::RAM_BASE,
        layout::LOW_RAM_LIMIT,
        layout::HIGH_RAM_BASE,
        layout::CONTROL_BASE,
        layout::CONTROL_SIZE,
        layout::DECISIONS_OFFSET,
        layout::DECISIONS_CAPACITY,
        layout::INPUT_OFFSET,
        layout::INPUT_MAX,
        layout::JOB_OFFSET,
        layout::JOB_CAPACITY,
        layout::RING_OFFSET,
        layout::RING_CAPACITY,
        layout::RING_HIGH_WATER,
        port::PLATFORM,
        port::STOP,
        port::RING,
        port::BLOCK,
        port::JOB,
        port::END,
        port::CONSOLE,
        port::DEVICE,
        port::END_POWER_OFF,
        port::END_RESTART,
        port::END_PANIC,
        port::END_STALLED,
        port::END_IDLING,
        port::INJECT_VECTOR,
        control::CTL_VERSION,
        control::CTL_TRACE,
        control::CTL_STOP_STEP,
        control::CTL_STOP_NOW,
        control::CTL_DECISIONS,
        control::CTL_RING_HEAD,
        control::CTL_RING_TAIL,
        control::CTL_INJECT_KIND,
        control::CTL_INJECT_ARG,
        control::CTL_JOB_LEN,
        control::CTL_INPUT_POLL,
        control::CTL_INPUT_LEN,
        control::CTL_NO_RECORDS,
        control::INPUT_CLOSED,
        control::TRACE_SYSCALL,
        control::TRACE_FUTEX,
        control::TRACE_FAULT,
        control::TRACE_MMAP,
        control::SLOT_EMPTY,
        control::SLOT_ARMED,
        control::SLOT_DONE,
        control::DECISION_PREEMPT,
        control::DECISION_STALL,
        control::DECISION_LATE_TIMER,
        control::DECISION_RANK,
        control::DECISION_STOP,
        control::THREAD_ROOT,
        state::ST_MAGIC,
        state::ST_VERSION,
        state::ST_STEP,
        state::ST_BASE,
        state::ST_BASE_STEP,
        state::ST_QUANTUM,
        state::ST_DEADLINE,
        state::ST_POLLS,
        state::ST_HORIZON,
        state::ST_IDLING,
        state::ST_THREAD,
        state::ST_SYSCALL,
        state::ST_RETURNS,
        state::ST_TID,
        state::ST_POLL_COST,
        state::ST_PAGE_COST,
        state::ST_INPUT_OPEN,
        state::ST_LATE,
        state::ST_CORES,
        state::ST_CHARGE_REST,
        state::ST_PROGRESS,
        state::ST_RANKS,
        state::ST_FACTS,
        state::ST_FACTS_MAX,
        state::STATE_MAGIC_VALUE,
        record::RECORD_MAX,
        record::FLAG_CUT,
        record::FLAG_NOT_RESIDENT,
        record::REC_CONSOLE,
        record::REC_OUTPUT,
        record::REC_EXEC,
        record::REC_FORK,
        record::REC_EXIT,
        record::REC_SIGNAL,
        record::REC_OPEN,
        record::REC_RENAME,
        record::REC_UNLINK,
        record::REC_SWITCH,
        record::REC_MARK,
        record::REC_PROPERTY,
        record::REC_DECISION,
        record::REC_REPORT,
        record::REC_WAITER,
        record::REC_SYSCALL_ENTER,
        record::REC_SYSCALL_EXIT,
        record::REC_FUTEX_WAIT,
        record::REC_FUTEX_WAKE,
        record::REC_FAULT,
        record::REC_MMAP,
        record::REC_RICH_FIRST,
        record::REPORT_STARTED,
        record::REPORT_ENDED,
        record::REPORT_OUTPUT,
        record::REPORT_FAILED,
        device::BLOCK_IMAGES,
        device::CORES_MAX,
        device::BLOCK_INFO,
        device::BLOCK_READ,
        device::BLOCK_OK,
        device::BLOCK_ABSENT,
        device::BLOCK_EIO,
        device::IOCTL_JOB,
        device::IOCTL_ATTACH,
        device::IOCTL_ROOT,
        device::IOCTL_CORES,
        device::IOCTL_REPORT,
    ]
    .into_iter()
    .collect();
    all.insert("RW_BLOCK_SEGMENTS".into(), device::BLOCK_SEGMENTS as u64);
    for (name, value) in facts() {
        assert!(value < state::ST_FACTS_MAX, "{name} is outside the table");
        all.insert(name, value);
    }
    all
}

/// `Fact`'s members from the source text (an enum cannot be listed): C name and value.
fn facts() -> Vec<(String, u64)> {
    let source = fs::read_to_string(root().join("platform/src/state.rs")).expect("state.rs");
    let mut facts = Vec::new();
    for line in source.lines() {
        let Some((name, value)) = line.trim().trim_end_matches(',').split_once(" = ") else { continue };
        let Ok(value) = value.parse::<u64>() else { continue };
        if !name.chars().all(|c| c.is_ascii_alphanumeric()) {
            continue;
        }
        let mut c_name = String::from("RW_FACT");
        for c in name.chars() {
            if c.is_ascii_uppercase() {
                c_name.push('_');
            }
            c_name.push(c.to_ascii_uppercase());
        }
        facts.push((c_name, value));
    }
    // The text was read rightly: three members, asked of the compiler.
    for (fact, name) in [
        (Fact::InitTask, "RW_FACT_INIT_TASK"),
        (Fact::TaskRewindName, "RW_FACT_TASK_REWIND_NAME"),
        (Fact::InodeRdev, "RW_FACT_INODE_RDEV"),
    ] {
        assert!(facts.contains(&(name.to_owned(), fact as u64)), "{name}");
    }
    facts
}

/// Sizes and offsets by their C spelling.
fn rust_layouts() -> BTreeMap<String, u64> {
    macro_rules! layouts {
        ($($rust:ty, $c:literal: $($field:ident)*;)*) => {
            [$((format!("sizeof(struct {})", $c), size_of::<$rust>() as u64),
               $((format!("offsetof(struct {}, {})", $c, stringify!($field)), offset_of!($rust, $field) as u64),)*)*]
        };
    }
    layouts![
        control::DecisionEntry, "rw_decision": thread syscall returns kind state arg;
        record::RecordHeader, "rw_record": len kind flags step now thread tid pid payload_len aux;
        device::BlockSegment, "rw_segment": gpa len;
        device::BlockRequest, "rw_block_request": op image sector segments status reserved segment;
        device::JobBuffer, "rw_job_buffer": ptr len;
        device::ReportBuffer, "rw_report_buffer": ptr len kind;
    ]
    .into_iter()
    .collect()
}

/// What the C compiler makes of `expressions`.
fn ask_c(expressions: &[&String]) -> BTreeMap<String, u64> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (directory.join("abi.c"), directory.join("abi"));
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"rewind_abi.h\"\nint main(void)\n{\n",
    );
    for expression in expressions {
        text += &format!("\tprintf(\"{expression}\\t%llu\\n\", (unsigned long long)({expression}));\n");
    }
    text += "\treturn 0;\n}\n";
    fs::write(&source, text).expect("write abi.c");
    let compiled = Command::new("cc")
        .arg("-I")
        .arg(root().join("guest-kernel/abi"))
        .args([&source, Path::new("-o"), &program])
        .output()
        .expect("run cc");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("run what cc made");
    String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .map(|line| {
            let (name, value) = line.split_once('\t').expect("name and value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn values_and_layouts_agree() {
    let mut rust = rust_values();
    rust.extend(rust_layouts());
    let c = ask_c(&rust.keys().collect::<Vec<_>>());
    let differing: Vec<_> = rust.iter().filter(|(name, value)| c.get(*name) != Some(value)).collect();
    assert!(differing.is_empty(), "the Rust side has {differing:?}; C differs");
}

#[test]
fn neither_side_has_a_name_of_its_own() {
    let c: BTreeSet<String> = header()
        .lines()
        .filter_map(|line| {
            line.strip_prefix("#define RW_")?.split_whitespace().next().map(|name| format!("RW_{name}"))
        })
        .collect();
    let rust: BTreeSet<String> = rust_values().into_keys().collect();
    assert_eq!(c, rust);

    // rust_values() lists names by hand: the sources must not have more.
    for file in ["lib", "layout", "port", "control", "state", "record", "device"] {
        let source = fs::read_to_string(root().join(format!("platform/src/{file}.rs"))).expect("a module");
        for line in source.lines() {
            let Some((name, kind)) = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(": "))
            else {
                continue;
            };
            if kind.starts_with("&str") || name.contains("fn ") {
                continue;
            }
            assert!(rust.contains(&format!("RW_{name}")), "{name} of {file}.rs is not compared");
        }
    }
}
