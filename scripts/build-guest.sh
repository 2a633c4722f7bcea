#!/bin/bash
# Builds what runs in the guest: kernel (cached by the hash of its inputs), init, initramfs. Products in build/guest/:
# vmlinux, initramfs.cpio (and vmlinux.debug, kernel.json of the kernel).
set -euo pipefail
cd "$(dirname "$0")/.."

guest-kernel/build.sh
mkdir -p build/guest

# A static PID 1: the initramfs has no C library.
RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" \
    cargo build --quiet --release -p guest-init --target x86_64-unknown-linux-gnu --target-dir target/guest

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/root"
cp target/guest/x86_64-unknown-linux-gnu/release/guest-init "$root/init"
strip --strip-all --remove-section=.comment --remove-section=.note.gnu.build-id "$root/init"
find "$root" -exec touch -h -d @0 {} +
# The same bytes for the same init: sorted names, no times, devices or inode numbers of this machine.
(cd "$root" && find . -mindepth 1 | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0 --reproducible) > build/guest/initramfs.new
cmp -s build/guest/initramfs.new build/guest/initramfs.cpio || mv build/guest/initramfs.new build/guest/initramfs.cpio
rm -f build/guest/initramfs.new
for file in vmlinux vmlinux.debug System.map kernel.json; do
    ln -sfn "../guest-kernel/$file" "build/guest/$file"
done
