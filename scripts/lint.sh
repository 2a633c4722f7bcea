#!/bin/bash
# What is wrong with the text alone: format, style, lints, documentation. Quick: to be run before every commit.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '== %s\n' "$*"; }

step "format and style"
cargo fmt --all --check
tests/style/check.sh
step "lints"
cargo clippy --quiet --workspace --all-targets -- -D warnings
step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
