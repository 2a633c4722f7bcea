#!/bin/bash
# The kvm engine's tests, on the real KVM of the test bench: the engine against micro-guests, the machine end to end.
# Prints the tables the tests stand on, and last one line: "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/guest/build.sh
# The test programs, built here, run there: their paths, one a line.
programs() { # CARGO ARGUMENTS
    cargo test --quiet --no-run --message-format=json "$@" |
        sed -n 's/.*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1/p'
}
engine=$(programs --release -p vmm --test engine)
machine=$(programs --release -p testkit --test machine)
if [ -z "$engine" ] || [ -z "$machine" ]; then
    echo "test-kvm: the test programs were not built" >&2
    exit 1
fi

log=build/test-kvm.log
status=0
# shellcheck disable=SC2016 # expanded by the shell inside
REWIND_TEST_ENGINE=kvm BENCH_TIMEOUT=${BENCH_TIMEOUT:-900} tests/bench/run.sh sh -c '
    status=0
    "$1" --ignored --test-threads=1 kvm || status=1
    "$2" --nocapture --test-threads=1 || status=1
    exit $status' sh "$engine" "$machine" 2>&1 | tee "$log" || status=$?

awk '/^test result:/ { passed += $4; failed += $6; runs++ }
    END { printf "%d passed, %d failed\n", passed, failed + (runs < 2) }' "$log"
exit "$status"
