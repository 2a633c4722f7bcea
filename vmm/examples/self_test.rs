//! Runs the self-test of the host's KVM and prints it.

fn main() {
    for line in vmm::selftest::run().lines {
        let mark = if line.failure.is_none() { "ok  " } else { "FAIL" };
        println!(
            "{mark} {:<14} {}{}",
            line.name,
            line.tests,
            line.failure.map_or(String::new(), |f| format!(": {f}"))
        );
    }
}
