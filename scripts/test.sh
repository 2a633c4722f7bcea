#!/bin/bash
# Every test, in order of how soon it fails. The last lines are the test runner's own summary.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '== %s\n' "$*"; }

step setup
scripts/setup.sh
scripts/lint.sh
step "guest kernel and init, release build"
scripts/build.sh
step "the demo, as the README shows it"
tests/show/readme.py
if [ -x tests/bench/kvm.sh ]; then
    step "kvm engine in the test bench"
    tests/bench/kvm.sh
fi
# Optimised, as a software CPU without is some 50 times slower, and with every check on.
step "tests"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --cargo-profile checked --workspace --no-fail-fast
else
    echo "(cargo-nextest is not installed; using cargo test)"
    cargo test --profile checked --workspace --no-fail-fast
fi
