#!/bin/bash
# Makes a root directory with every example and what it needs: examples/root.sh DIR. SPDX-License-Identifier: MIT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
root=$(cd "$1" && pwd)
programs=$root/bin

put() { # FILE: into the root's /bin, with its libraries where they are here
    local library
    cp -L "$1" "$programs/"
    { ldd "$1" 2>/dev/null || true; } | grep -o '/[^ ]*' | sort -u | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        [ -e "$root$library" ] || cp -L "$library" "$root$library"
    done
}

mkdir -p "$programs" "$root/tmp" "$root/examples"
make -s -C "$here" B="$root/build"
for program in "$root"/build/*; do put "$program"; done
rm -r "$root/build"
for tool in bash make grep mkdir cat; do put "$(command -v "$tool")"; done
ln -sf bash "$programs/sh"
cp -r "$here/make-j" "$here/grep-pipefail" "$root/examples/"
