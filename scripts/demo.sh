#!/bin/bash
# The main job, start to end: a program that is right when you try it, the schedule that breaks it, and why.
set -euo pipefail
cd "$(dirname "$0")/.."

# --built: all is there; only show.
if [ "${1-}" != --built ]; then
    scripts/setup.sh
    scripts/build.sh
fi
make -s -C examples B="$PWD/build/examples"

# A root for the job: the program and the libraries it needs.
root=build/demo-root
mkdir -p "$root/bin" "$root/tmp"
cp build/examples/bank build/examples/bank-fixed "$root/bin/"
scripts/libraries.sh "$root" build/examples/bank

export REWIND_HOME=${DEMO_HOME:-$PWD/build/demo-home}
rewind=target/release/rewind
# The command goes past whatever what it prints is piped through.
exec 3>&1
show() {
    printf '\n$ rewind %s\n' "$*" >&3
    "$rewind" "$@"
}

show run --root "$root" -- /bin/bank 2>&1 | tail -n 3
status=0
show check --root "$root" -- /bin/bank | tee build/demo-report || status=$?
[ "$status" = 1 ] || { echo "demo: check was to find the lost update (exit status 1) and ended with $status"; exit 1; }
failing=$(sed -n 's/^failing: run //p' build/demo-report)
show replay "$failing"
# Who made the balance wrong: asked at the step before the check that failed.
step=$(sed -n 's/^violates sdk: step \([0-9]*\):.*/\1/p' build/demo-report | head -n 1)
show blame "$failing" --at "$((step - 1))" balance
show blame "$failing" --at "$((step - 1))" balance --reads --limit 8
show check --root "$root" --schedules 64 -- /bin/bank-fixed | tail -n 2
printf '\ndemo: the lost update was found, narrowed, kept as run %s, replayed and blamed on a line; the fixed bank passed every schedule\n' "$failing"
