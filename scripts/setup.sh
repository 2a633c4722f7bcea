#!/bin/bash
# Installs what the project needs (Debian packages). Says nothing when all of it is there.
set -euo pipefail

packages=(
    # the guest kernel and init
    linux-source-6.12 gcc libc6-dev binutils make flex bison bc libelf-dev cpio xz-utils patch
    # the test bench: a real KVM inside QEMU's emulator
    # (virtiofsd is in qemu-system-common; the cloud kernel's modules are packed with xz or zstd)
    qemu-system-x86 qemu-system-common linux-image-6.12-cloud-amd64 kmod zstd busybox-static
    # tests: images, guest programs
    erofs-utils g++ python3 libpython3.11-testsuite perl sqlite3 golang-go gdb strace tar mount
    # the development of all of it
    git ca-certificates
)

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || { echo "setup: needs Debian 12 (apt-get is missing); packages: ${missing[*]}" >&2; exit 1; }
    as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { echo "setup: run as root, or install sudo, to install: ${missing[*]}" >&2; exit 1; }
        as_root=(sudo)
    fi
    echo "setup: installing ${missing[*]}"
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

command -v cargo >/dev/null || { echo "setup: Rust is missing: install rustup (https://rustup.rs), then run this again" >&2; exit 1; }
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
have=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -1)" != "$wanted" ]; then
    echo "setup: rustc is $have, at least $wanted is needed: rustup update" >&2
    exit 1
fi
