#!/bin/bash
# Builds everything; does nothing, and says so, when nothing changed since the last build.
set -euo pipefail
cd "$(dirname "$0")/.."

# What the products are made of: names, sizes and times of all sources, the toolchain.
inputs() {
    rustc --version
    find Cargo.toml Cargo.lock platform soft-cpu vmm image run debug blame inside check cli guest-init guest-kernel scripts sdk \
        -type f -printf '%p %s %T@\n' 2>/dev/null | LC_ALL=C sort
}
stamp=$(inputs | sha256sum | cut -d' ' -f1)
if [ "$(cat build/stamp 2>/dev/null)" = "$stamp" ] && [ -x target/release/rewind ] && [ -s build/guest/vmlinux ]; then
    echo "build: nothing to do, target/release/rewind is up to date"
    exit 0
fi
scripts/build-guest.sh
cargo build --release --bin rewind
mkdir -p build
echo "$stamp" > build/stamp
echo "build: target/release/rewind"
