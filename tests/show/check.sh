#!/bin/bash
# Shows what `rewind check` does over all examples. Short by default (some minutes); --long takes about an hour:
# ten seeds, 100 replays, 500 schedules of each fix, 10,000 schedules of the bank.
set -euo pipefail
cd "$(dirname "$0")/../.."
scripts/build.sh
root=build/examples-root
examples/root.sh "$root"
export REWIND_HOME=${REWIND_HOME:-$PWD/build/show-check-home}
python3 tests/show/readmes.py "$root"
exec python3 tests/show/check.py "$root" "$@"
