#!/bin/bash
# Every command over runs on a real job: a small C library is compiled and tested under make with four cores.
# Prints each command with the beginning of its output, and fails where one does not do what it should.
# With --quick: without the parts that take long.
set -euo pipefail
cd "$(dirname "$0")/../.."
rewind=${REWIND:-$PWD/target/release/rewind}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/rewind-show.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cp -r tests/show/clib "$scratch/project"
cd "$scratch/project"
export REWIND_HOME=$scratch/home
quick=${1-}

show() { # EXPECTED-STATUS ARGUMENTS
    local expected=$1 status=0
    shift
    printf '\n$ rewind %s\n' "$*"
    "$rewind" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
    head -n 12 "$scratch/out" | cut -c1-160
    [ "$(wc -l <"$scratch/out")" -le 12 ] || echo "... ($(wc -l <"$scratch/out") lines)"
    tail -n 4 "$scratch/err" | cut -c1-200
    [ "$status" = "$expected" ] || { echo "show: it ended with $status, expected $expected"; exit 1; }
}
expect() { # TEXT
    grep -q -- "$1" "$scratch/out" "$scratch/err" || { echo "show: \"$1\" is missing"; exit 1; }
}
id() { sed -n 's/^run \([0-9a-f]*\) .*/\1/p' "$scratch/err" | tail -n 1; }

show 0 doctor
show 0 run --engine soft --cores 4 --out result -- make -j4 CC=gcc
expect 'sum: ok'
build=$(id)
show 0 run --engine soft --cores 4 --out result -- make -j4 CC=gcc
expect 'recorded before'
show 0 run --engine soft --seed 2 --cores 4 --out result -- make -j4 CC=gcc
other=$(id)
show 0 ls
show 0 ls --json --end exited:0
show 0 log --steps "$build"
show 0 events "$build" --kind exec
show 0 events "$build" --from @job --to @end --kind syscall-enter --syscalls
show 0 ps "$build" --all
show 0 threads "$build"
show 1 diff "$build" "$other"
show 0 replay "$build"
expect identical
show 0 replay "$build" --from @end
expect identical
show 0 cat "$build" result
expect 'ring: ok'
show 0 cat "$build" /proc/loadavg --at @job
show 0 shell "$build" @end -c 'ls -l *.o; ./check; echo changed > result; cat result'
expect changed
show 0 cat "$build" result
expect 'ring: ok'
last=$("$rewind" ls --json --command make | sed -n 's/.*"steps":\([0-9]*\).*/\1/p' | head -n 1)
thread=$("$rewind" events "$build" --json --kind fork | sed -n 's/.*"thread":"\([0-9a-f]*\)".*/\1/p' | tail -n 1)
printf '[{"place":{"thread":"%s","syscall":30,"returns":0,"offset":0},"action":"preempt"}]' "$thread" >"$scratch/decisions"
show 0 fork "$build" $((last * 9 / 10)) --decisions "$scratch/decisions"
fork=$(id)
show 0 fork "$build" $((last * 9 / 10)) --schedule 3
expect 'schedule 3:'
show 0 ls --forks-of "$build"
[ "$fork" = "$build" ] || show 0 replay "$fork"
show 0 export "$build" "$scratch/build.rewind"
(
    export REWIND_HOME=$scratch/elsewhere
    show 0 import "$scratch/build.rewind"
    show 0 replay "$build"
    expect identical
)
printf '\n$ # the library is edited and built anew; the first run stays what it was\n'
cp -r . "$scratch/as-it-was"
echo 'int nothing_of_this_is_left;' >sum.c 2>/dev/null || true
rm -f *.o check
show 0 replay "$build"
expect identical
rm -rf ./* && cp -r "$scratch/as-it-was/." .
show 0 prune "$other"
show 0 replay "$other"
expect identical
show 0 rm "$other"
show 0 gc --verify
show 1 log "$other"
show 1 cat "$build" /nowhere
show 1 replay "$build" --from 999999999
if [ "$quick" != --quick ]; then
    printf '\n$ two runs at once in one home\n'
    "$rewind" run --engine soft --seed 3 -- make -j4 CC=gcc >"$scratch/a" 2>&1 &
    first=$!
    "$rewind" run --engine soft --seed 4 -- make -j2 CC=gcc >"$scratch/b" 2>&1
    wait "$first"
    tail -n 1 "$scratch/a" "$scratch/b"
fi
printf '\nshow: every command did what it should\n'
