#!/bin/bash
# Shows `rewind blame`: who wrote the balance that check found wrong, the freed queue of the thread pool, a byte of a
# file, fields through pointers in C++ and Rust, a buffer filled by read, a value followed across a pipe, a picture.
# Needs what `make build` leaves; prints the time each answer took, and what a long recording costs, against the limits
# (which hold on a machine that does nothing else). Ends with status 1 if one is not met.
# Usage: [REWIND=COMMAND] tests/show/blame.sh [FOLDER [ROUNDS]]   ROUNDS of the long program: 30 s of recording
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(realpath -m "${1:-build/show-blame}")
rounds=${2:-80000}
root=$work/root
rm -rf "$work"
mkdir -p "$root/bin" "$root/tmp" "$root/data"
echo "alpha beta gamma" > "$root/data/words.txt"
make -s -C examples B="$PWD/build/examples"
cp build/examples/bank build/examples/pool "$root/bin/"
for program in writers input pipe heap; do gcc -g -O0 -pthread -o "$root/bin/$program" "tests/blame/$program.c"; done
g++ -g -O0 -o "$root/bin/pointers-cpp" tests/blame/pointers.cpp
rustc -g --edition=2021 -o "$root/bin/pointers-rust" tests/blame/pointers.rs
scripts/libraries.sh "$root" "$root"/bin/*

export REWIND_HOME=$work/home REWIND_GUEST=${REWIND_GUEST:-$PWD/build/guest}
rewind=${REWIND:-$PWD/target/release/rewind}
times=$work/times
blame() {
    printf '\n$ rewind blame %s\n' "$*"
    local began=$EPOCHREALTIME
    "$rewind" blame "$@"
    last=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }')
    printf '%6s s  %s\n' "$last" "$*" >> "$times"
}
failed=0
limit() { # WHAT VALUE LIMIT
    printf '%-64s %7.2f  (limit %s)\n' "$1" "$2" "$3" >> "$times"
    awk -v a="$2" -v b="$3" 'BEGIN { exit !(a < b) }' || failed=1
}
record() { # program: records it and prints the run's id
    # A program that fails makes the command fail too.
    { "$rewind" run --root "$root" --memory 256M --engine soft -- "/bin/$1" "${@:2}" 2>&1 > /dev/null || true; } |
        sed -n 's/^run \([0-9a-f]*\) .*/\1/p'
}
failing() { # program: lets check find its failing schedule; prints the run's id
    "$rewind" check --root "$root" --memory 256M --schedules 1000 -- "/bin/$1" > "$work/report" || true
    grep -q '^failing: run ' "$work/report" || { cat "$work/report" >&2; exit 1; }
    sed -n 's/^failing: run //p' "$work/report"
}

echo "== the bank check found wrong"
bank=$(failing bank)
step=$(sed -n 's/^violates sdk: step \([0-9]*\):.*/\1/p' "$work/report" | head -1)
blame "$bank" --at "$((step - 1))" balance
limit "the bank's last write, s" "$last" 1
blame "$bank" --at "$((step - 1))" balance --reads
limit "the bank's accesses, s" "$last" 1
blame "$bank" --at "$((step - 1))" balance
echo "== the picture: $work/balance.svg"
"$rewind" blame "$bank" --at "$((step - 1))" balance --plot "$work/balance.svg" > /dev/null
echo "== where the value came from"
blame "$bank" --at "$((step - 1))" balance --follow
echo "== the queue of the thread pool, freed while a worker looks at it"
pool=$(failing pool)
# It shows as a crash or as a worker that is never woken.
at=@crash
if grep -q '^violates no-hang' "$work/report"; then at=@end; fi
blame "$pool" --at $at 'queue->count'
echo "== a block used after it was freed"
heap=$(record heap)
blame "$heap" --at @crash 'stale[3]'
echo "== a line of a file that a child process wrote"
blame "$(record writers)" --at @crash --file /tmp/log:L2
echo "== a field through two pointers, C++ and Rust"
blame "$(record pointers-cpp)" --at @crash 'shop::order->item->price->cents'
blame "$(record pointers-rust)" --at @crash 'order.item.price.cents'
echo "== a buffer filled by read"
blame "$(record input)" --at @crash buffer
echo "== followed across a pipe between two processes"
blame "$(record pipe)" --at @crash copy --follow
echo "== a global written once at the start of a long recording"
gcc -g -O1 -o "$root/bin/long" tests/show/programs/long.c
began=$EPOCHREALTIME
long=$(record long "$rounds")
printf '%6.2f s  recording %s rounds\n' "$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')" "$rounds" >> "$times"
began=$EPOCHREALTIME
"$rewind" replay "$long" --engine soft
replay=$(awk -v a="$began" -v b="$EPOCHREALTIME" 'BEGIN { print b - a }')
printf '%6.2f s  plain replay of it\n' "$replay" >> "$times"
blame "$long" --at @crash alone.value
limit "written once, a page of its own, s" "$last" 15
blame "$long" --at @crash once
limit "written once, in a page written all the time, s" "$last" 15
# Reads are in no keyframe, so every window is run, on two machines: what they cost together, by one replay of them all.
blame "$long" --at @crash once --reads --limit 5 > "$work/reads"
cat "$work/reads"
! grep -q 'passed over' "$work/reads" || { echo "blame.sh: windows were passed over in a search for reads" >&2; failed=1; }
limit "a window's cost beside plain replay, times" \
    "$(awk -v a="$last" -v b="$replay" -v n="$(nproc)" 'BEGIN { print a * (n < 2 ? 1 : 2) / b }')" 3
printf '\n== times\n'
cat "$times"
exit $failed
