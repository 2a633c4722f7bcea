//! The software CPU against the host, a fixed seed. `cargo run --release -p soft-cpu-diff` is the long one.

use soft_cpu_diff::{
    drive::{Summary, compare_many},
    generate::{selfmod::SelfModifying, sequence::Sequences, single::Singles},
    native::{Native, supported},
    soft::{Soft, Tiers},
};

fn check(count: u64, make: impl FnMut() -> soft_cpu_diff::generate::Generated) -> Option<Summary> {
    if !supported() {
        eprintln!("skipped: the host kernel has no FSGSBASE for programs");
        return None;
    }
    let (mut native, mut soft) = (Native::new().unwrap(), Tiers::new());
    let summary = compare_many(&mut native, &mut soft, count, make, |_| ()).unwrap();
    assert!(summary.mismatches.is_empty(), "{}", summary.report());
    Some(summary)
}

#[test]
fn every_encoding() {
    let mut singles = Singles::new(1, None);
    let codes = singles.codes().to_vec();
    let Some(summary) = check(150_000, || singles.make()) else { return };
    // Every encoding but those left to Intel hosts (see `generate/vendor.rs`).
    let missing: Vec<String> = codes
        .iter()
        .map(|code| format!("{code:?}"))
        .filter(|name| !summary.coverage.keys().any(|form| form.split('/').next() == Some(name)))
        .filter(|name| !name.ends_with("_0F0D"))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(summary.completed() > summary.cases / 2);
}

#[test]
fn sequences() {
    let mut sequences = Sequences::new(2);
    check(40_000, || sequences.make());
}

#[test]
fn self_modifying_code() {
    let mut selfmod = SelfModifying::new(3);
    check(10_000, || selfmod.make());
}

/// One instruction at a time gives the same as all at once.
#[test]
fn budgets_of_one() {
    let mut soft = Soft::new();
    let (mut sequences, mut selfmod) = (Sequences::new(4), SelfModifying::new(5));
    for i in 0..6_000 {
        let generated = if i % 4 == 0 { selfmod.make() } else { sequences.make() };
        let before = soft.instructions();
        let whole = soft.run(&generated.case);
        let count = soft.instructions().checked_sub(before);
        let (stepped, steps) = soft.run_stepwise(&generated.case);
        assert_eq!(whole, stepped, "{}", generated.disassembly());
        // Counts start again with each fresh CPU.
        assert!(count.is_none_or(|count| count == steps), "{count:?} {steps}: {}", generated.disassembly());
    }
}
