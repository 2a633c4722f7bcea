#!/bin/bash
# The debugger on two failing runs: the bank whose balance does not add up, and philosophers who starve. Finds the
# failing schedules, then prints a gdb session on each, and how long things took.
set -euo pipefail
cd "$(dirname "$0")/../.."
rewind=${REWIND:-target/release/rewind}
[ -x "$rewind" ] || { echo "show: no $rewind: run make build" >&2; exit 1; }
rewind=$(realpath "$rewind")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export REWIND_HOME=${REWIND_HOME:-$work/home}
export REWIND_GUEST=${REWIND_GUEST:-$PWD/build/guest}
seconds() { date +%s.%N; }
took() { printf '(%s: %.2f s)\n' "$1" "$(awk -v a="$(seconds)" -v b="$2" 'BEGIN { print a - b }')"; }

# Compiles examples/NAME and finds a failing schedule; sets $run.
fail() {
    cp -r "examples/$1" "$work/$1"
    (cd "$work/$1" && gcc -g -O1 -pthread -I"$OLDPWD/sdk/c" -o "$1" ./*.c)
    (cd "$work/$1" && "$rewind" check --json -- "./$1") > "$work/found" || true
    run=$(python3 -c 'import json,sys
print([line["run"] for line in map(json.loads, open(sys.argv[1])) if line["kind"] == "failure"][0])' "$work/found")
}

session() {
    local start
    start=$(seconds)
    "$rewind" gdb "$1" "$2" -- -nx -batch -ex 'set pagination off' -ex 'set trace-commands on' -x "$3"
    took "the whole session" "$start"
}

fail bank
echo "== the bank, run $run"
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
session "$run" @job "$work/bank.gdb"
start=$(seconds)
"$rewind" gdb "$run" @job -- -nx -batch
took "to the first prompt" "$start"

fail philosophers
echo "== the philosophers, run $run"
cat > "$work/philosophers.gdb" <<'END'
thread apply all bt
END
session "$run" @end "$work/philosophers.gdb"
