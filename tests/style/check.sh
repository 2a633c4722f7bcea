#!/bin/bash
# The style test: what a reader relies on and no compiler checks. Prints every fault, not only the first.
set -uo pipefail
cd "$(dirname "$0")/../.."
faults=0
fault() {
    echo "style: $*"
    faults=$((faults + 1))
}

# Files longer than this need a line here with the reason.
declare -A longer=(
    [soft-cpu/src/decode.rs]="one table: how each instruction is lowered"
)
limit=1000
while read -r file; do
    lines=$(wc -l < "$file")
    if [ "$lines" -gt $limit ] && [ -z "${longer[$file]-}" ]; then
        fault "$file has $lines lines (at most $limit; most should stay under 300)"
    fi
done < <(git ls-files '*.rs' '*.c' '*.h' '*.sh' '*.py' '*.go' ':!:guest-kernel/abi')

# Every crate takes the workspace's lints.
while read -r manifest; do
    grep -q '^\[package\]' "$manifest" || continue
    grep -A1 '^\[lints\]' "$manifest" | grep -q '^workspace = true' || fault "$manifest does not take the workspace's lints"
done < <(git ls-files '*Cargo.toml')

# Nothing of one machine.
if git grep -nE '(^|[^a-z])/(work|root)/(main|wt|shared|\.cache|\.cargo)' -- ':!:tests/style/check.sh'; then
    fault "a path of one machine, see above"
fi

# Every target the README names is in the Makefile.
if [ -f README.md ]; then
    for target in $(grep -oE '\bmake [a-z-]+' README.md | cut -d' ' -f2 | sort -u); do
        grep -qE "^$target:" Makefile || fault "README.md names 'make $target', which the Makefile has not"
    done
fi

# Shell scripts are executable and fail on errors.
while read -r script; do
    head -1 "$script" | grep -q '^#!' || continue
    [ -x "$script" ] || fault "$script is not executable"
done < <(git ls-files '*.sh' .ci/run)

[ $faults -eq 0 ] || { echo "style: $faults faults"; exit 1; }
