#!/bin/bash
# The debugger and blame on runs recorded on kvm, in the test bench: every gdb script of tests/gdb, and for values of the
# examples what kvm finds by reading again at each step beside what the software CPU sees.
# The gdb sessions themselves run outside the bench, on its home: gdb's machine is the software CPU anywhere.
# Prints each answer and last a line of each part, "N passed, N failed", or cargo's.
# Usage: tests/bench/debugger.sh [blame|gdb]
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "${1-}" = inside ]; then
    work=$2 rewind=${REWIND_COMMAND:-$PWD/target/release/rewind}
    export REWIND_HOME=$work/home REWIND_GUEST=$work/guest
    passed=0
    failed=0
    result() { # TEXT COMMAND...: counts whether the command succeeds
        if "${@:2}"; then
            passed=$((passed + 1))
            echo "ok      $1"
        else
            failed=$((failed + 1))
            echo "FAILED  $1"
        fi
    }
    record() { # PROGRAM: its run, on kvm
        "$rewind" run --engine kvm --memory 128M --root "$work/root" -- "/bin/$1" 2>&1 >/dev/null |
            sed -n 's/^run \([0-9a-f]*\) .*/\1/p' || true
    }
    compare() { # PROGRAM POSITION EXPRESSION
        local run at=$2
        run=$(record "$1")
        # The step before the program's end, where none crashes.
        [ "$at" != last ] || at=$("$rewind" ps --all --json "$run" |
            python3 -c 'import json, sys; print(max((json.loads(line)["ended"] or [0])[0] for line in sys.stdin) - 1)')
        "$rewind" blame "$run" --at "$at" --json "$3" >"$work/soft.json" &&
            "$rewind" blame "$run" --at "$at" --json --engine kvm "$3" >"$work/kvm.json" || return 1
        python3 -c '
import json, sys
soft, kvm = (json.load(open(path)) for path in sys.argv[1:])
told = lambda answer: answer["last"] and [answer["last"][name] for name in ("at", "line", "old", "new")]
print("        soft", told(soft), "kvm", told(kvm))
sys.exit(told(soft) != told(kvm) or soft["value"] != kvm["value"])' "$work/soft.json" "$work/kvm.json"
    }
    # Every program of the gdb scripts; what they are asked comes later, outside.
    recorded() { # STEM ROOT PROGRAM MEMORY
        "$rewind" run --engine kvm --cwd /work --memory "$4" --root "$2" -- "./$3" 2>&1 >/dev/null </dev/null |
            sed -n 's/^run \([0-9a-f]*\) .*/\1/p' >"$work/runs/$1"
        [ -s "$work/runs/$1" ]
    }
    [ "${3-}" = gdb ] || for pair in bank:last:balance pool:last:total \
        philosophers:last:'forks[1].__data.__owner' condvar:last:message two-stores:last:result heap:@crash:'stale[3]' input:@crash:buffer kinds:@crash:flags.sign \
        kinds:@crash:'grown[2]' kinds:@crash:in_main pipe:@crash:copy \
        shared:@crash:'*shared'; do
        IFS=: read -r program at what <<<"$pair"
        result "blame of $what in $program: kvm's re-reading and the software CPU's watch agree" \
            compare "$program" "$at" "$what"
    done
    if [ "${3-}" != blame ]; then
        while read -r stem root program memory; do
            result "the program of gdb script $stem recorded on kvm" recorded "$stem" "$root" "$program" "$memory"
        done <"$work/list"
    fi
    echo "$passed passed, $failed failed"
    exit $((failed > 0))
fi

[ -x "${REWIND_COMMAND:-target/release/rewind}" ] || { echo "bench: no target/release/rewind: run make build" >&2; exit 1; }
work=$PWD/build/bench-debugger
root=$work/root
rm -rf "$work"
mkdir -p "$root/bin" "$root/tmp" "$root/data" "$work/runs" "$work/guest"
# The emulated CPU of the bench faults twice where others fault once: see docs/decisions/comparing-engines.md.
cp build/guest/{vmlinux,initramfs.cpio} "$work/guest/"
sed 's/^{$/{ "options": "rewind_write_faults",/' build/guest/kernel.json >"$work/guest/kernel.json"
part() { # TEST: a part of the gdb scripts' test
    REWIND_TEST_GDB_TOP=$work REWIND_GUEST=$work/guest cargo test --profile checked -q --workspace --test gdb -- \
        --ignored --nocapture --exact "$1"
}
echo "alpha beta gamma" >"$root/data/words.txt"
for program in tests/blame/{input,heap,kinds,pipe,shared}; do
    gcc -g -O0 -pthread -o "$root/bin/${program##*/}" "$program.c"
done
make -s -C examples B="$work/examples"
cp "$work"/examples/{bank,pool,philosophers,condvar,two-stores} "$root/bin/"
scripts/libraries.sh "$root" "$root"/bin/*
[ "${1-}" = blame ] || part programs_for_kvm
status=0
BENCH_TIMEOUT=${BENCH_TIMEOUT:-3600} BENCH_RESULTS=$work tests/bench/run.sh tests/bench/debugger.sh inside "$work" "${1-}" || status=$?
[ "${1-}" = blame ] || part scripts_on_runs_of_kvm || status=1
exit "$status"
