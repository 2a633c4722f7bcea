#!/bin/bash
# Every test, in order of how soon it fails. The last lines are the test runner's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '== %s\n' "$*"; }

step setup
scripts/setup.sh
step "format and style"
cargo fmt --all --check
tests/style/check.sh
step "guest kernel and init, release build"
scripts/build.sh
step "lints"
cargo clippy --quiet --workspace --all-targets -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
step "the demo, as the README shows it"
tests/show/readme.py
if [ -x tests/bench/kvm.sh ]; then
    step "kvm engine in the test bench"
    tests/bench/kvm.sh
fi
# In the release profile, as everything above: nothing is compiled twice, and a software CPU without optimisation is slow.
step "tests"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --release --workspace --no-fail-fast
else
    echo "(cargo-nextest is not installed; using cargo test)"
    cargo test --release --workspace --no-fail-fast
fi
