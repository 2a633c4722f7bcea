#!/bin/bash
# Makes a root directory with every example and what it needs: examples/root.sh DIR. SPDX-License-Identifier: MIT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
root=$(cd "$1" && pwd)
programs=$root/bin

put() { # FILE: into the root's /bin, with its libraries where they are here
    cp -L "$1" "$programs/"
    "$here/../scripts/libraries.sh" "$root" "$1"
}

mkdir -p "$programs" "$root/tmp" "$root/examples"
make -s -C "$here" B="$root/build"
for program in "$root"/build/*; do put "$program"; done
rm -r "$root/build"
for tool in bash make grep mkdir cat; do put "$(command -v "$tool")"; done
ln -sf bash "$programs/sh"
cp -r "$here/make-j" "$here/grep-pipefail" "$root/examples/"
