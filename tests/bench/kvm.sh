#!/bin/bash
# The kvm engine's tests, on the real KVM of the test bench: the engine against micro-guests, the machine end to end, the
# same runs as the software CPU's, and `rewind doctor`. Prints the tables the tests stand on, and last one line:
# "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/guest/build.sh
[ -x target/release/rewind ] || { echo "test-kvm: target/release/rewind is missing; run 'make build'" >&2; exit 1; }
# The test programs, built here with what `make build` left, run there.
built=$(cargo test --quiet --release -p vmm -p testkit --no-run --message-format=json)
program() { # PACKAGE TEST
    python3 -c 'import json, sys
for line in map(json.loads, sys.stdin):
    target = line.get("target", {})
    if line.get("executable") and target["kind"] == ["test"] and target["name"] == sys.argv[2] \
            and f"/{sys.argv[1]}/tests/" in target["src_path"]:
        print(line["executable"])' "$@" <<<"$built"
}
engine=$(program vmm engine)
micro=$(program vmm micro)
machine=$(program testkit machine)
programs=$(program testkit programs)
engines=$(program testkit engines)
input=$(program testkit input)
for program in "$engine" "$micro" "$machine" "$programs" "$engines" "$input"; do
    [ -n "$program" ] || { echo "test-kvm: the test programs were not built" >&2; exit 1; }
done

log=build/test-kvm.log
status=0
# The same programs on the software CPU, here and meanwhile: the same hash, steps and virtual time of each.
REWIND_TEST_ENGINE=soft "$engines" --nocapture --test-threads=1 >build/test-soft.log 2>&1 &
soft=$!
# shellcheck disable=SC2016 # expanded by the shell inside
REWIND_TEST_ENGINE=kvm BENCH_TIMEOUT=${BENCH_TIMEOUT:-2400} tests/bench/run.sh sh -c '
    status=0
    "$1" --ignored --test-threads=1 kvm || status=1
    "$2" --nocapture --test-threads=1 || status=1
    # Machines out of memory take minutes there: they run on the software CPU only.
    "$3" --nocapture --test-threads=1 --skip the_guest_ends || status=1
    "$4" --nocapture --test-threads=1 || status=1
    "$5" --nocapture --test-threads=1 || status=1
    "$6" --ignored --nocapture kvm || status=1
    tests/bench/doctor.sh target/release/rewind || status=1
    exit $status' sh "$engine" "$machine" "$programs" "$engines" "$input" "$micro" 2>&1 | tee "$log" || status=$?
wait $soft || { tail -n 40 build/test-soft.log; status=1; }

# One table, kvm there against soft here: hash of the trace, steps, virtual time. At least twelve programs, all equal.
equal=0
differing=0
while read -r _ name there; do
    here=$(sed -n "s/^.*hash $name //p" build/test-soft.log)
    if [ "$here" = "$there" ]; then
        equal=$((equal + 1))
        echo "engines: $name: equal ($there)" | tee -a "$log"
    else
        differing=$((differing + 1))
        echo "engines: $name: DIFFER (kvm $there, soft $here)" | tee -a "$log"
    fi
done < <(grep -o 'hash [^ ]* [0-9a-f]\{16\} [0-9]* [0-9]*$' "$log")
echo "test result: engines. $equal passed; $differing failed" | tee -a "$log"
if [ $differing -gt 0 ] || [ $equal -lt 12 ]; then status=1; fi

awk '/^test result:/ { passed += $4; failed += $6; runs++ }
    END { printf "%d passed, %d failed\n", passed, failed + (runs < 8) }' "$log"
exit "$status"
