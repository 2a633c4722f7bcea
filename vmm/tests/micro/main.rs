//! Micro-guests: paging, exceptions, SYSCALL, SYSRET and IRET, segments, MSRs, TF and debug registers, the same
//! programs on any engine. What they must do is in `expected.json`, one entry a program, made by `soft` and held
//! against the manuals and against `kvm`: in the test bench every program runs on both engines and the two are
//! compared. `REWIND_MICRO_WRITE=FILE` writes what came out of the software CPU.

mod guest;
mod programs;

use std::collections::BTreeMap;

use guest::Outcome;
use vmm::EngineKind;

/// How the bench's machine is known to differ from a processor: its KVM runs on a CPU that QEMU emulates (TCG 7.2 with
/// AMD's SVM). Nothing else may differ. That no fault sets RF in the flags it saves is left out of every comparison
/// there (SDM volume 3, 17.3.1.1).
enum Differs {
    /// Bits of the error codes.
    Error(u64),
    /// Bits of RAX.
    Rax(u64),
    /// These records.
    Records(&'static [usize]),
    /// What is in these test pages.
    Pages(&'static [u64]),
    /// A fault that it does not raise, so that everything from this record on is another.
    From(usize),
}

/// Program, how it differs, and why.
const BENCH_DIFFERS: &[(&str, Differs, &str)] = &[
    ("rmw_user", Differs::Error(2), "a read-modify-write faults as a read first"),
    ("rmw_kernel", Differs::Error(2), "a read-modify-write faults as a read first"),
    ("wide", Differs::Error(2), "a read-modify-write faults as a read first"),
    ("wide", Differs::Pages(&[0, 6, 8, 9]), "images of the FPU have other reserved fields"),
    ("calls", Differs::Records(&[10]), "a jump to a non-canonical address faults at its target"),
    ("iret", Differs::Records(&[4]), "a return to a non-canonical address faults at its target"),
    ("strings", Differs::Records(&[4, 5, 14, 15]), "CMPS reads its second operand first"),
    ("clflush", Differs::From(0), "CLFLUSH does not fault"),
    ("mxcsr_reserved", Differs::From(2), "FXRSTOR takes reserved bits of MXCSR"),
    (
        "protection_user",
        Differs::Records(&[2, 8, 9]),
        "a reserved bit has P=0 in its error code; a stack access that is not canonical is #GP; an access into the hole \
         faults in its first page",
    ),
    ("protection_kernel", Differs::Error(1), "a reserved bit has P=0 in its error code"),
    ("no_nxe", Differs::Error(1), "a reserved bit has P=0 in its error code"),
    ("remap_large", Differs::From(0), "INVLPG takes 4 KiB out of a large page"),
    ("exceptions_user", Differs::Records(&[4, 5, 6, 7]), "an IDT error code is 16 times the vector"),
    ("exceptions_kernel", Differs::Records(&[23]), "an IDT error code is 16 times the vector"),
    ("alignment", Differs::From(0), "it checks no alignment"),
    ("float_exceptions", Differs::From(1), "EMMS does not wait; SSE exceptions are never raised"),
    ("reserved_kernel", Differs::From(0), "SS takes a null selector of RPL 3; CR3 takes reserved bits"),
    ("segments", Differs::Rax(0xf_0000), "LAR leaves the limit's bits out"),
    ("segments_kernel", Differs::Rax(0xf_0000), "LAR leaves the limit's bits out"),
    ("bad_base", Differs::From(0), "WRFSBASE takes addresses that are not canonical"),
    ("bad_msrs", Differs::From(0), "WRMSR takes them"),
    ("int1", Differs::From(0), "INT1 is #UD in a guest of its SVM"),
    (
        "double_fault",
        Differs::Records(&[0]),
        "a fault of a delivery that SVM intercepts is not a double fault",
    ),
];

impl Differs {
    /// Takes what differs out of an outcome.
    fn leave_out(&self, outcome: &mut Outcome) {
        for record in &mut outcome.records {
            match self {
                Differs::Error(bits) => record.error &= !bits,
                Differs::Rax(bits) => record.gpr[0] &= !bits,
                Differs::Records(_) | Differs::Pages(_) | Differs::From(_) => {}
            }
        }
        match self {
            Differs::Records(numbers) => {
                let mut n = 0;
                outcome.records.retain(|_| {
                    n += 1;
                    !numbers.contains(&(n - 1))
                });
            }
            Differs::Pages(pages) => outcome.pages.retain(|(page, _)| !pages.contains(page)),
            Differs::From(first) => {
                outcome.records.truncate(*first);
                outcome.entries.clear();
                outcome.pages.clear();
                outcome.end.clear();
            }
            Differs::Error(_) | Differs::Rax(_) => {}
        }
    }
}

fn expected() -> BTreeMap<String, Outcome> {
    serde_json::from_str(include_str!("expected.json")).expect("expected.json is made by this test")
}

/// Every difference, in words.
fn differences(name: &str, expected: &Outcome, got: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    if expected.end != got.end {
        found.push(format!("{name}: end: {:?}, got {:?}", expected.end, got.end));
    }
    for i in 0..expected.records.len().max(got.records.len()) {
        let (a, b) = (expected.records.get(i), got.records.get(i));
        if a != b {
            found.push(format!("{name}: record {i}:\n    expected {a:x?}\n    got      {b:x?}"));
        }
    }
    if expected.entries != got.entries {
        found.push(format!("{name}: entries: expected {:x?}, got {:x?}", expected.entries, got.entries));
    }
    if expected.pages != got.pages {
        found.push(format!("{name}: pages: expected {:x?}, got {:x?}", expected.pages, got.pages));
    }
    found
}

fn run(kind: EngineKind, program: &programs::Program) -> Outcome {
    guest::run(kind, program).unwrap_or_else(|error| panic!("{} on {}: {error}", program.name, kind.name()))
}

#[test]
fn soft_does_what_is_expected() {
    let expected = expected();
    let mut got = BTreeMap::new();
    let mut found = Vec::new();
    for program in programs::all() {
        let outcome = run(EngineKind::Soft, &program);
        match expected.get(program.name) {
            None => found.push(format!("{}: not in expected.json: {outcome:x?}", program.name)),
            Some(expected) => found.extend(differences(program.name, expected, &outcome)),
        }
        got.insert(program.name.to_owned(), outcome);
    }
    if let Ok(path) = std::env::var("REWIND_MICRO_WRITE") {
        let text = serde_json::to_string_pretty(&got).expect("plain data");
        std::fs::write(&path, text + "\n").unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    assert_eq!(expected.len(), got.len(), "programs in expected.json");
    assert!(found.is_empty(), "{} differences:\n{}", found.len(), found.join("\n"));
}

/// In the bench. Its nested KVM arms no debug registers, so what needs them is left out there.
#[test]
#[ignore = "needs a KVM that qualifies"]
fn kvm_does_what_soft_does() {
    const RF: u64 = 1 << 16;
    let mut found = Vec::new();
    println!("micro-guest            records  kvm against soft");
    for program in programs::all().into_iter().filter(|program| !program.debug_registers) {
        let (mut soft, mut kvm) = (run(EngineKind::Soft, &program), run(EngineKind::Kvm, &program));
        let records = soft.records.len();
        let known: Vec<_> = BENCH_DIFFERS.iter().filter(|(name, ..)| *name == program.name).collect();
        for outcome in [&mut soft, &mut kvm] {
            for record in &mut outcome.records {
                record.rflags &= !RF;
            }
            known.iter().for_each(|(_, differs, _)| differs.leave_out(outcome));
        }
        let differs = differences(program.name, &soft, &kvm);
        let reasons = known.iter().map(|(.., reason)| *reason).collect::<Vec<_>>().join("; ");
        let word = match &known[..] {
            _ if !differs.is_empty() => "DIFFERS".to_owned(),
            [] => "equal".to_owned(),
            [(_, Differs::From(0), _)] => format!("not comparable: {reasons}"),
            _ => format!("equal but for: {reasons}"),
        };
        println!("{:22} {records:>7}  {word}", program.name);
        found.extend(differs);
    }
    assert!(found.is_empty(), "{} differences (soft is `expected`):\n{}", found.len(), found.join("\n"));
}
