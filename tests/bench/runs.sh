#!/bin/bash
# Recording on kvm, in the test bench: a run is recorded there, replayed on both engines, forked, looked into.
set -euo pipefail
cd "$(dirname "$0")/../.."
tests/guest/build.sh
# The emulated CPU of the bench faults twice where others fault once: see docs/decisions/comparing-engines.md.
guest=$PWD/build/bench-runs-guest
mkdir -p "$guest"
cp build/guest/{vmlinux,initramfs.cpio} "$guest/"
sed 's/^{$/{ "options": "rewind_write_faults",/' build/guest/kernel.json >"$guest/kernel.json"
export REWIND_GUEST=$guest
# shellcheck disable=SC2016 # expanded by the shell inside
BENCH_TIMEOUT=${BENCH_TIMEOUT:-600} tests/bench/run.sh sh -c '
    set -e
    export REWIND_HOME=$PWD/build/bench-home
    rewind=target/release/rewind
    script="seq 200 | sort -rn > /tmp/f; wc -l < /tmp/f; echo done"
    "$rewind" run --engine kvm --memory 256M --root build/test-root.erofs -- sh -c "$script"
    run=$("$rewind" ls --json | sed -n "s/.*\"run\":\"\([0-9a-f]*\)\".*/\1/p")
    "$rewind" replay "$run" --engine kvm
    "$rewind" replay "$run" --engine soft
    "$rewind" cat "$run" /tmp/f | head -n 1
    "$rewind" shell "$run" @end -c "wc -l < /tmp/f"
    "$rewind" fork "$run" @job
    "$rewind" gc --verify
    echo "bench: recorded on kvm, replayed on both engines"'
