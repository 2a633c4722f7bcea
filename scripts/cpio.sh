#!/bin/bash
# Writes the initramfs to standard output: the folders init mounts on, two device nodes, and init ($1). The bytes
# depend on init's alone: fixed order, owner 0, no times, no inode numbers of this machine, and no right to make
# device nodes is needed. Format: newc of Documentation/driver-api/early-userspace/buffer-format.rst.
set -euo pipefail

inode=0
entry() { # NAME MODE SIZE MAJOR MINOR, content on standard input
    local name=$1 mode=$2 size=$3 pad
    inode=$((inode + 1))
    printf '070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X' \
        "$inode" "$mode" 0 0 1 0 "$size" 0 0 "$4" "$5" $((${#name} + 1)) 0
    printf '%s\0' "$name"
    # The header has 110 bytes.
    for ((pad = (110 + ${#name} + 1) % 4; pad % 4; pad++)); do printf '\0'; done
    [ "$size" -eq 0 ] || head -c "$size"
    for ((pad = size % 4; pad % 4; pad++)); do printf '\0'; done
}

for folder in dev proc sys tmp root; do
    entry "$folder" $((8#040755)) 0 0 0
done
# Rust's start-up code opens /dev/null where a standard descriptor is closed, before init can mount anything.
entry dev/console $((8#020600)) 0 5 1
entry dev/null $((8#020666)) 0 1 3
size=$(stat -L -c %s "$1")
entry init $((8#100755)) "$size" 0 0 <"$1"
entry 'TRAILER!!!' 0 0 0 0
