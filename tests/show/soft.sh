#!/bin/bash
# Real programs on the software CPU: each recorded twice, compared with itself and with a native run. Prints a table
# and last a line "N programs, N failed"; the status is 1 if one failed.
#
#   tests/show/soft.sh [--quick] [NAME...]
#
# --quick: those that take a few seconds (CI runs them). NAME: only these.
# Environment: REWIND (target/release/rewind), SHOW_TIMEOUT seconds for one run (900).
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
rewind=${REWIND:-$top/target/release/rewind}
programs=$top/tests/show/programs
timeout=${SHOW_TIMEOUT:-900}
[ -x "$rewind" ] || { echo "soft.sh: no $rewind; run 'make build'" >&2; exit 1; }
export REWIND_GUEST=${REWIND_GUEST:-$top/build/guest}

quick=0 wanted=()
for argument in "$@"; do
    case $argument in
    --quick) quick=1 ;;
    -*) echo "usage: tests/show/soft.sh [--quick] [NAME...]" >&2; exit 2 ;;
    *) wanted+=("$argument") ;;
    esac
done

# The folder of the programs: the guest sees this machine's root, so it must be on it.
work=$(mktemp -d "$top/build/show.XXXXXX")
export REWIND_HOME=$work/home
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
cp "$programs"/* "$work/bin"
environment=(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb)
(
    cd "$work/bin"
    gcc -O2 -o numeric numeric.c -lm
    g++ -O2 -pthread -o containers containers.cpp
    rustc -O -o words words.rs
    GOFLAGS=-buildvcs=false GOCACHE=$work/go go build -o garbage garbage.go
)

total=0 failed=0
printf '%-22s %-11s %9s  %-16s %-6s %-7s %7s\n' program end steps trace twice native wall
# NAME SIZE COMPARED [OPTIONS...] -- COMMAND...
#   SIZE quick or long; COMPARED: output | tail (the last line, without what is measured) | none
try() {
    local name=$1 size=$2 compared=$3 options=() variables=()
    shift 3
    while [ "$1" != -- ]; do
        # What is set in the guest is set natively too.
        if [ "$1" = --env ]; then variables+=("$2"); fi
        options+=("$1")
        shift
    done
    shift
    if [ ${#wanted[@]} -gt 0 ]; then
        [[ " ${wanted[*]} " == *" $name "* ]] || return 0
    elif [ "$quick" = 1 ] && [ "$size" != quick ]; then
        return 0
    fi
    total=$((total + 1))
    local first=$work/$name.1 second=$work/$name.2 native=$work/$name.native line steps trace end wall twice=yes same=-
    local run=("$rewind" run --engine soft --cwd "$work/bin" --timeout "$timeout" "${options[@]}")
    "${run[@]}" -- "$@" >"$first" 2>"$first.err" || true
    "${run[@]}" --again -- "$@" >"$second" 2>"$second.err" || true
    # The outcome of a run by its id, which its last line names.
    outcome() { sed -n "s/^.*\"run\":\"\\($(sed -n 's/^run \([0-9a-f]*\) .*/\1/p' "$1" | tail -1)\\).*/&/p" <("$rewind" ls --json) | head -1; }
    field() { sed -n "s/.*\"$1\":\"\\{0,1\\}\\([^,\"}]*\\).*/\\1/p"; }
    line=$(outcome "$first.err")
    steps=$(field steps <<<"$line") trace=$(field trace <<<"$line") end=$(field end <<<"$line")
    wall=$(sed -n 's/^run .* wall \([^ ]* *[a-z]*\)  .*/\1/p' "$first.err" | tail -1)
    # The last line without the wall time: how it ended, its steps and its virtual time. The id is another one when
    # this machine's root changed between the runs: the root is an input.
    twin() { sed -n 's/^run [0-9a-f]* \(.*\)  wall .*/\1/p' "$1" | tail -1; }
    if ! cmp -s "$first" "$second" || [ -z "$trace" ] || [ "$(twin "$first.err")" != "$(twin "$second.err")" ] ||
        [ "$trace" != "$(outcome "$second.err" | field trace)" ]; then
        twice=NO
    fi
    if [ "$compared" != none ]; then
        (cd "$work/bin" && env -i "${environment[@]}" "${variables[@]}" "$@" </dev/null >"$native" 2>/dev/null) || true
        case $compared in
        output) if cmp -s "$first" "$native"; then same=equal; else same=DIFFERS; fi ;;
        tail) if [ "$(tail -n 1 "$first")" = "$(tail -n 1 "$native")" ]; then same=equal; else same=DIFFERS; fi ;;
        esac
    fi
    local bad=0
    if [ "$twice" = NO ] || [ "$same" = DIFFERS ] || [ "$end" != exited:0 ]; then bad=1; fi
    printf '%-22s %-11s %9s  %-16s %-6s %-7s %7s\n' "$name" "${end:-none}" "${steps:--}" "${trace:0:16}" "$twice" "$same" "$wall"
    if [ $bad = 1 ]; then
        failed=$((failed + 1))
        {
            tail -n 5 "$first.err"
            if [ $same = DIFFERS ]; then diff "$first" "$native" | head -20 || true; fi
            if [ $twice = NO ]; then
                diff "$first" "$second" | head || true
                tail -n 2 "$second.err"
            fi
        } | sed 's/^/    /'
    fi
}

try coreutils quick output -- bash coreutils.sh
try bash quick output -- bash shell.sh
try c-program quick output -- ./numeric
try c++-program quick output -- ./containers
try rust-program quick output -- ./words
try perl quick output -- perl battery.pl
try sqlite3 quick output -- sh -c 'sqlite3 /tmp/bank.db <bank.sql; rm /tmp/bank.db'
try gcc quick output -- sh -c 'gcc -O2 -o /tmp/numeric numeric.c -lm && /tmp/numeric'
try g++ long output -- sh -c 'g++ -O1 -pthread -o /tmp/containers containers.cpp && /tmp/containers'
try go-program quick output --clock work --env GOMAXPROCS=4 --cores 4 -- ./garbage
try go-auto long none --env GOMAXPROCS=4 --cores 4 -- ./garbage
# Their last line but one says how long it took, the last that all went well.
for test in test_math test_json test_struct test_threading; do
    try "python3-$test" long tail --memory 2G -- /usr/bin/python3 -m test "$test"
done
echo "$total programs, $failed failed"
[ "$failed" = 0 ]
