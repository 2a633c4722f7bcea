#!/bin/bash
# Shows, in order, what the machine promises: setup and build, programs that are the same every time, captures, stalls,
# preemptions, exits, doctor, the kernel built twice. From a fresh clone; some forty minutes, most of it the second and
# third build of the kernel, which --no-kernel leaves out. Ends with "machine: N shown, N failed".
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

shown=0
failed=0
item() { printf '\n=== %s\n' "$*"; }
check() { # TEXT COMMAND...
    local text=$1
    shift
    if "$@"; then
        shown=$((shown + 1))
        echo "ok: $text"
    else
        failed=$((failed + 1))
        echo "FAILED: $text"
    fi
}
run() {
    printf '$ %s\n' "$*"
    "$@"
}
log=build/test-kvm.log
# Lines of the bench's log from one test's name to its "ok".
from_log() { sed -n "/^test $1 \.\.\./,/^ok$/p" "$log"; }
has() { grep -q -E "$1" "$log"; }

item "1. make setup && make build, twice"
check "first" run make setup build
before=$EPOCHREALTIME
second=$(make setup build 2>&1)
after=$EPOCHREALTIME
seconds=$(awk -v a="$after" -v b="$before" 'BEGIN { printf "%.1f", a - b }')
printf '$ make setup build\n%s\n(%s s)\n' "$second" "$seconds"
check "the second does nothing and says so" grep -q "nothing to do" <<<"$second"
check "in under 5 s" awk -v s="$seconds" 'BEGIN { exit !(s < 5) }'

item "2. make test-kvm: programs, five runs each, one hash; five seeds"
before=$SECONDS
check "make test-kvm" run make test-kvm
seconds=$((SECONDS - before))
echo "($seconds s)"
check "in under 6 minutes" [ "$seconds" -lt 360 ]
from_log each_program_has_one_hash_in_five_runs
from_log five_seeds_give_different_randomness_and_one_hash_each
grep '^engines: ' "$log"
check "five programs, one hash in five runs each" has '^test each_program_has_one_hash_in_five_runs \.\.\.'
check "the same hash on both engines" has '^test result: engines\. [0-9]+ passed; 0 failed'

item "3. captures, stops, stalls, preemptions"
for test in captures_go_on_in_fresh_processes_as_the_run_did a_run_stopped_a_thousand_times_is_the_run_never_stopped \
    what_waits_for_ever_is_found_and_named a_preempted_thread_is_followed_by_another_every_time; do
    from_log $test
done
check "ten captures go on the same" [ "$(from_log captures_go_on_in_fresh_processes_as_the_run_did | grep -c ' true$')" = 10 ]
check "stopped 1,000 times" has 'never stopped ([0-9a-f]{16}), stopped 1000 times \1'
check "sleep 86400" has '^sleep 86400: 86400[0-9]{9} virtual ns in [0-9.]+ s'
check "100 of 100 preemptions" has '100 of 100 preemptions were followed by another thread'

item "4. exits and steps per second, in the bench"
from_log few_exits_and_many_steps
check "at most one exit per 100 steps" has 'forks\.sh.*\((0|1\.000)[0-9.]* per 100 steps\)'

item "5. rewind doctor, here and in the bench"
run target/release/rewind doctor
sed -n '/^--- rewind doctor/,/^test result: doctor/p' "$log"
check "doctor in the bench" has '^test result: doctor\. [0-9]+ passed; 0 failed'

item "6. the kernel built twice in two folders"
if [ "${1-}" = --no-kernel ]; then
    echo "left out (--no-kernel)"
else
    for folder in one two-with-a-longer-name; do
        # A cache of its own, or nothing would be built.
        rm -rf "build/twice/$folder"
        before=$SECONDS
        XDG_CACHE_HOME=$PWD/build/twice/$folder guest-kernel/build.sh --link "$PWD/build/twice/$folder/kernel" --tree "$PWD/build/twice/$folder/tree"
        echo "($((SECONDS - before)) s)"
    done
    sums() { (cd "build/twice/$1/kernel/" && sha256sum vmlinux vmlinux.debug System.map config); }
    sums one
    sums two-with-a-longer-name
    check "same bytes" [ "$(sums one)" = "$(sums two-with-a-longer-name)" ]
    rm -rf build/twice
fi

printf '\nmachine: %d shown, %d failed\n' "$shown" "$failed"
[ "$failed" = 0 ]
