#!/bin/bash
# Copies what programs are linked with into a root, each library at the path it has here:
# scripts/libraries.sh ROOT PROGRAM...  A program that is static, or no program, needs none.
set -euo pipefail
root=$1
shift
for program in "$@"; do
    { ldd "$program" 2>/dev/null || true; } | sed -n 's|^[^/]*\(/[^ ]*\).*|\1|p' | sort -u | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        # A root that was made before may have an older one.
        cmp -s "$library" "$root$library" || cp -L "$library" "$root$library"
    done
done
