#!/bin/bash
# Builds what runs in the guest: kernel (cached by the hash of its inputs), init, initramfs. Products in build/guest/:
# vmlinux, initramfs.cpio (and vmlinux.debug, kernel.json of the kernel).
set -euo pipefail
cd "$(dirname "$0")/.."

guest-kernel/build.sh
mkdir -p build/guest

# A static PID 1: the initramfs has no C library.
# Paths of this machine, which panics would name, are cut off: the same init from every folder.
RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static --remap-path-prefix=$PWD=/rewind --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    cargo build --quiet --profile guest -p guest-init --target x86_64-unknown-linux-gnu --target-dir target/guest
scripts/cpio.sh target/guest/x86_64-unknown-linux-gnu/guest/guest-init > build/guest/initramfs.new
cmp -s build/guest/initramfs.new build/guest/initramfs.cpio || mv build/guest/initramfs.new build/guest/initramfs.cpio
rm -f build/guest/initramfs.new
for file in vmlinux vmlinux.debug System.map kernel.json; do
    ln -sfn "../guest-kernel/$file" "build/guest/$file"
done
