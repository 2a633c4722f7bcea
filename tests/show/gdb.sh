#!/bin/bash
# The debugger on two failing runs: the bank whose balance does not add up, and philosophers who starve. Finds the
# failing schedules, then prints a gdb session on each; states compared going back and forward; C++ and Rust values with
# their pretty printers; and how long things take, against their limits (which hold on a machine that does nothing
# else). Ends with status 1 if something failed.
# Usage: [REWIND=COMMAND] tests/show/gdb.sh [ROUNDS]   ROUNDS of the long program: 30 s of recording
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
rounds=${1:-80000}
rewind=${REWIND:-target/release/rewind}
[ -x "$rewind" ] || { echo "show: no $rewind: run make build" >&2; exit 1; }
rewind=$(realpath "$rewind")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export REWIND_HOME=${REWIND_HOME:-$work/home}
export REWIND_GUEST=${REWIND_GUEST:-$PWD/build/guest}
failed=0
fault() {
    printf 'FAILED: %s\n' "$*"
    failed=1
}
since() { awk -v a="$EPOCHREALTIME" -v b="$1" 'BEGIN { printf "%.3f", a - b }'; }

# Compiles examples/NAME and finds a failing schedule; sets $run.
fail() {
    cp -r "examples/$1" "$work/$1"
    (cd "$work/$1" && gcc -g -O1 -pthread -I"$top/sdk/c" -o "$1" ./*.c)
    (cd "$work/$1" && "$rewind" check --json -- "./$1") > "$work/found" || true
    run=$(python3 -c 'import json,sys
print([line["run"] for line in map(json.loads, open(sys.argv[1])) if line["kind"] == "failure"][0])' "$work/found")
}

session() { # RUN POSITION SCRIPT
    local start=$EPOCHREALTIME
    "$rewind" gdb "$1" "$2" -- -nx -batch -ex 'set pagination off' -ex 'set trace-commands on' -x "$3"
    echo "(the whole session: $(since "$start") s)"
}

fail bank
bank=$run
echo "== the bank, run $bank"
cat > "$work/bank.gdb" <<'END'
break main
continue
delete
monitor goto end
print balance
watch balance
reverse-continue
reverse-continue
reverse-step
reverse-next
reverse-finish
info threads
monitor position
END
session "$bank" @job "$work/bank.gdb"

fail philosophers
echo "== the philosophers, run $run"
echo "thread apply all bt" > "$work/philosophers.gdb"
session "$run" @end "$work/philosophers.gdb"

# Compiles a program and records it; sets $run.
record() { # NAME ARGUMENT MEMORY COMPILER...
    (cd "$work/$1" && "${@:4}" -o "$1")
    (cd "$work/$1" && "$rewind" run --engine soft --memory "$3" -- "./$1" "$2" 2>&1) > "$work/said" || true
    run=$(sed -n 's/^run \([0-9a-f]*\) .*/\1/p' "$work/said")
    [ -n "$run" ] || { cat "$work/said"; exit 1; }
}

# Records a program of tests/gdb, runs its script and checks, as the tests do, that it prints what it expects.
script() { # NAME COMPILER...
    mkdir "$work/$1"
    cp tests/gdb/"$1".* "$work/$1/"
    record "$1" "" 128M "${@:2}"
    "$rewind" gdb "$run" @job -- -nx -batch -ex 'set pagination off' -ex 'set width 0' -x "tests/gdb/$1.gdb" \
        > "$work/said"
    python3 tests/gdb/expect.py "tests/gdb/$1.gdb" "$work/said" || fault "$1.gdb"
}

echo "== N instructions back and N forward: every register and the hash of all memory"
script state gcc -g -O0 state.c
grep 'states compared' "$work/said"
echo "== C++, with libstdc++'s pretty printers"
script cpp g++ -g -O0 cpp.cc
grep -E '^(\$[0-9]|Breakpoint|Catchpoint|#)' "$work/said"
echo "== Rust, with rustc's pretty printers"
script rust rustc -g rust.rs
grep -E '^(\$[0-9]|Breakpoint|rust::)' "$work/said"

echo "== speeds"
limit() { # WHAT SECONDS LIMIT
    printf '%-64s %7.3f s  (limit %s s)\n' "$1" "$2" "$3"
    awk -v a="$2" -v b="$3" 'BEGIN { exit !(a < b) }' || fault "$1"
}
start=$EPOCHREALTIME
"$rewind" gdb "$bank" @job -- -nx -batch
limit "rewind gdb on the bank to its first prompt, and gdb's end" "$(since "$start")" 1.5
mkdir "$work/long"
cp tests/show/programs/long.c "$work/long/"
start=$EPOCHREALTIME
record long "$rounds" 256M gcc -g -O1 long.c
printf '%-64s %7.3f s\n' "(recording the long program)" "$(since "$start")"
cat > "$work/times.gdb" <<'END'
set pagination off
python
import gdb, time
def go_to_end():
    gdb.execute('monitor goto @crash')
    gdb.execute('maintenance flush register-cache', to_string=True)
    gdb.execute('delete')
def timed(what, *commands):
    start = time.perf_counter()
    for command in commands:
        gdb.execute(command, to_string=True)
    print('TIME|%s|%.4f' % (what, (time.perf_counter() - start) / len(commands)))
timed('reverse-stepi (mean of 100)', *['reverse-stepi'] * 100)
for name, where in (('rounds', 'within a window'), ('alone.value', 'across the recording'),
                    ('once', 'across the recording, its page busy')):
    go_to_end()
    gdb.execute('watch ' + name, to_string=True)
    timed('reverse-continue to the last write of %s, %s' % (name, where), 'reverse-continue')
    print('%s = %s in %s' % (name, gdb.parse_and_eval(name), gdb.selected_frame().name()))
end
END
"$rewind" gdb "$run" @crash -- -nx -batch -x "$work/times.gdb" > "$work/said"
while IFS='|' read -r _ what took; do
    case $what in
    reverse-stepi*) limit "$what" "$took" 0.1 ;;
    *window) limit "$what" "$took" 1 ;;
    *) limit "$what" "$took" 10 ;;
    esac
done < <(grep '^TIME' "$work/said")
for name in alone.value once; do
    grep -q "^$name = 0 in set" "$work/said" || fault "the write of $name was not found"
done
exit $failed
