#!/bin/bash
# The numbers of runs: start, restore, reset, keyframes, seeks, sizes, roots. Each with the command that gives it. For a
# machine with nothing else to do; prints the load it had.
set -euo pipefail
cd "$(dirname "$0")/../.."
rewind=$PWD/target/release/rewind
scratch=$(mktemp -d "${TMPDIR:-/tmp}/rewind-bench.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
export REWIND_HOME=$scratch/home
tests/guest/build.sh
root=$PWD/build/test-root.erofs
echo "load $(cut -d' ' -f1-3 /proc/loadavg), $(nproc) cores, $(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)"
field() { sed -n "s/.*\"$1\":\([0-9.]*\).*/\1/p" | tail -n 1; }
bytes() { du -s --apparent-size -B1 "$REWIND_HOME"/{runs,pages} 2>/dev/null | awk '{ n += $1 } END { print n }'; }

"$rewind" run --engine soft --root "$root" -- true 2>/dev/null
echo "first event of a trivial command, milliseconds (limit 100), five runs:" \
    "$(for seed in 1 2 3 4 5; do "$rewind" run --engine soft --json --seed $seed --root "$root" -- true 2>/dev/null | field first_event_ms; done | sort -n | paste -sd' ')"

work='i=0; while [ $i -lt 400 ]; do seq 2000 | sort -n | md5sum >/tmp/x; i=$((i+1)); done'
wall() { "$rewind" run --engine soft --json --again --root "$root" "$@" -- sh -c "$work" 2>/dev/null | field wall_ms; }
without=$(wall --seed 11 --no-keyframes)
with=$(wall --seed 12)
echo "recording with keyframes: $with ms, without: $without ms, ratio $(awk "BEGIN { printf \"%.2f\", $with / $without }") (limit 1.35)"
run=$("$rewind" ls --json --command 2000 | tail -n 1 | sed -n 's/.*"run":"\([0-9a-f]*\)".*/\1/p')
cargo run --release --quiet --example stage_speed -- "$REWIND_HOME" "$run" "$root"

mkdir "$scratch/project"
cd "$scratch/project"
for n in $(seq 20); do
    { echo '#include <stdio.h>'; for f in $(seq 40); do echo "int f${n}_$f(int x) { printf(\"%d\\n\", x * $f); return x % ($f + 1); }"; done; } >"f$n.c"
done
compile='for f in *.c; do gcc -g -save-temps -c $f; done; cat *.i *.s *.o | wc -c'
# A compile of one file before it brings what the home keeps once for all runs over that root: blocks read, in the page
# cache of its keyframes if not in the log of the run. What the run of all of them adds then is its own.
compiled() { # WHAT OPTIONS: the size of a compile, and of its parts
    local what=$1 start before
    shift
    start=$(bytes)
    "$rewind" run --engine soft --spacing 250 "$@" -- sh -c 'gcc -g -save-temps -c f1.c; cat f1.o | wc -c' >/dev/null 2>&1
    before=$(bytes)
    "$rewind" run --engine soft --json "$@" -- sh -c "$compile" >"$scratch/compile" 2>/dev/null
    written=$(sed -n 's/.*"text":"\([0-9]*\)\\n".*/\1/p' "$scratch/compile" | tail -n 1)
    run=$(tail -n 1 "$scratch/compile" | sed -n 's/.*"run":"\([0-9a-f]*\)".*/\1/p')
    grown=$(($(bytes) - before))
    echo "a compile of 20 C files over $what: wrote $written bytes of files; its own, trace and $(ls "$REWIND_HOME/runs/$run/keyframes" | wc -l) keyframes:" \
        "$grown, $(awk "BEGIN { printf \"%.1f\", $grown / $written }") times (limit 3); what the home keeps once for this root: $((before - start));" \
        "wall $(field wall_ms <"$scratch/compile") ms"
}
root=$scratch/root
mkdir -p "$root"/{bin,tmp,usr/lib/gcc,usr/include,project}
for program in /bin/sh /bin/cat /usr/bin/{wc,gcc,as} "$(gcc -print-prog-name=cc1)"; do
    mkdir -p "$root$(dirname "$program")"
    cp -L "$program" "$root$program"
    "$OLDPWD/scripts/libraries.sh" "$root" "$program"
done
cp -r "$(dirname "$(gcc -print-file-name=include)")/include" "$root$(dirname "$(gcc -print-file-name=include)")/"
cp -r /usr/include/. "$root/usr/include/"
cp f*.c "$root/project/"
compiled "a directory with the compiler" --root "$root" --cwd /project
compiled "this machine's root"
steps=$(field steps <"$scratch/compile")
before=$(bytes)
thread=$("$rewind" events "$run" --json --kind fork | sed -n 's/.*"thread":"\([0-9a-f]*\)".*/\1/p' | tail -n 1)
printf '[{"place":{"thread":"%s","syscall":30,"returns":0,"offset":0},"action":{"stall":1000000}}]' "$thread" >"$scratch/d"
"$rewind" fork "$run" $((steps * 95 / 100)) --decisions "$scratch/d" 2>&1 | tail -n 1
echo "a fork at 95% of it: $(($(bytes) - before)) bytes (limit 1000000)"

cd "$scratch"
mkdir tree && for n in $(seq 1024); do head -c 1M /dev/urandom >"tree/f$n"; done
cp /bin/busybox tree/sh
seconds() { local t=$EPOCHREALTIME; "$@" >/dev/null 2>&1; awk "BEGIN { printf \"%.2f s\", $EPOCHREALTIME - $t }"; }
first=$(seconds "$rewind" run --engine soft --root tree -- /sh true)
echo "a root of 1 GB: $first at first (hashed), $(seconds "$rewind" run --engine soft --root tree -- /sh true) unchanged (limit 1 s, the whole command)"
rm -rf tree
mkdir tree && cp /bin/busybox tree/sh && for d in $(seq 100); do mkdir "tree/$d"; (cd "tree/$d" && seq 1000 | xargs touch); done
first=$(seconds "$rewind" run --engine soft --root tree -- /sh true)
echo "a root of 100,000 files: $first at first, $(seconds "$rewind" run --engine soft --root tree -- /sh true) unchanged"
