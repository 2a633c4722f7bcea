//! Arbitrary bytes and states, a fixed seed. `make fuzz` is the long one.

#[test]
fn nothing_breaks_the_cpu() {
    let tally = soft_cpu_diff::fuzz::run(1, 0, 10_000, |_| ()).unwrap();
    println!("{tally:?}");
    // It is of no use if everything ends at its first instruction.
    assert!(
        tally.instructions > tally.cases && tally.compared > tally.cases / 4 && tally.exits > tally.cases / 4
    );
}
