#!/bin/bash
# The kvm engine's tests, on the real KVM of the test bench: the engine against micro-guests, the machine end to end, the
# same runs as the software CPU's, and `rewind doctor`. Prints the tables the tests stand on, and last one line:
# "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."

tests/guest/build.sh
[ -x target/release/rewind ] || { echo "test-kvm: target/release/rewind is missing; run 'make build'" >&2; exit 1; }
# The test programs, built here, run there: their paths, one a line.
programs() { # CARGO ARGUMENTS
    cargo test --quiet --no-run --message-format=json "$@" |
        sed -n 's/.*"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1/p'
}
engine=$(programs --release -p vmm --test engine)
machine=$(programs --release -p testkit --test machine)
programs=$(programs --release -p testkit --test programs)
input=$(programs --release -p testkit --test input)
for program in "$engine" "$machine" "$programs" "$input"; do
    [ -n "$program" ] || { echo "test-kvm: the test programs were not built" >&2; exit 1; }
done

log=build/test-kvm.log
status=0
# The same programs on the software CPU, here and meanwhile: the same hash, steps and virtual time of each.
REWIND_TEST_ENGINE=soft "$programs" --nocapture --test-threads=1 >build/test-soft.log 2>&1 &
soft=$!
# shellcheck disable=SC2016 # expanded by the shell inside
REWIND_TEST_ENGINE=kvm BENCH_TIMEOUT=${BENCH_TIMEOUT:-2400} tests/bench/run.sh sh -c '
    status=0
    "$1" --ignored --test-threads=1 kvm || status=1
    "$2" --nocapture --test-threads=1 || status=1
    # Machines out of memory take minutes there, and the utilities add nothing: both run on the software CPU only.
    "$3" --nocapture --test-threads=1 --skip the_guest_ends --skip utilities || status=1
    "$4" --nocapture --test-threads=1 || status=1
    tests/bench/doctor.sh target/release/rewind || status=1
    exit $status' sh "$engine" "$machine" "$programs" "$input" 2>&1 | tee "$log" || status=$?
wait $soft || { tail -n 40 build/test-soft.log; status=1; }

# Where the bench's emulated CPU faulted twice for one access (see tests/testkit/tests/programs.rs), each is one step more,
# time is later, and threads may take turns elsewhere: such a run is shown and not compared. At least four are without.
equal=0
differing=0
while read -r _ name hash steps now doubled; do
    # Names hold anything a command line does: compared whole, never as a pattern. libtest may print before "hash".
    read -r here here_steps here_now _ <<<"$(NAME=$name awk '
        { for (i = 1; i < NF; i++) if ($i == "hash" && $(i + 1) == ENVIRON["NAME"]) print $(i + 2), $(i + 3), $(i + 4) }' build/test-soft.log)"
    if [ "$here $here_steps $here_now" = "$hash $steps $now" ]; then
        how=equal
    elif [ "$doubled" -gt 0 ] && [ -n "$here" ]; then
        how="not compared, $doubled doubled faults of the emulated CPU, $((steps - here_steps)) steps more"
    else
        how=DIFFER
    fi
    echo "engines: $name: $how (kvm $hash $steps $now, soft $here $here_steps $here_now)" | tee -a "$log"
    case $how in
    equal) equal=$((equal + 1)) ;;
    DIFFER) differing=$((differing + 1)) ;;
    esac
done < <(grep -o 'hash [^ ]* [0-9a-f]\{16\} [0-9]* [0-9]* [0-9]*$' "$log")
echo "test result: engines. $equal passed; $differing failed" | tee -a "$log"
if [ $differing -gt 0 ] || [ $equal -lt 4 ]; then status=1; fi

awk '/^test result:/ { passed += $4; failed += $6; runs++ }
    END { printf "%d passed, %d failed\n", passed, failed + (runs < 6) }' "$log"
exit "$status"
