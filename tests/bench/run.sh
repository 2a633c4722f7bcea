#!/bin/bash
# The kvm test bench: runs a command as root on a real KVM, on a machine that has none.
#
#   tests/bench/run.sh COMMAND ARGS...
#
# Boots the newest installed 6.12 cloud kernel of Debian under QEMU's emulator, whose emulated AMD CPU has
# SVM, so that kvm-amd gives a genuine /dev/kvm. The host's root is shared (virtio-fs) under a throw-away
# overlay, so every path is where it is outside; of /tmp and /run only the working folder and this checkout. Output streams live; the exit status is the command's.
#
# Environment:
#   BENCH_TIMEOUT  seconds until the machine is killed (600); the status is then 124
#   BENCH_RESULTS  folder shared writable at the same path inside; what is written there stays
#   BENCH_CPUS     virtual CPUs (1)      BENCH_MEMORY  MiB (3072)
#   BENCH_VERBOSE  1: also show the machine's console
# Variables named REWIND_*, RUST_*, CARGO_*, NEXTEST_* and BENCH_* are handed on.
# A status of 125 means that the bench itself failed.
set -euo pipefail

fail() {
    echo "bench: $*" >&2
    exit 125
}

[ $# -gt 0 ] || fail "usage: tests/bench/run.sh COMMAND ARGS..."
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "needs root (to share the root directory) and there is no sudo"
    exec sudo --preserve-env -- "$0" "$@"
fi

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
: "${BENCH_TIMEOUT:=600}" "${BENCH_CPUS:=1}" "${BENCH_MEMORY:=3072}"

virtiofsd=
for candidate in /usr/lib/qemu/virtiofsd /usr/libexec/virtiofsd; do
    if [ -x "$candidate" ]; then virtiofsd=$candidate && break; fi
done
[ -n "$virtiofsd" ] || fail "no virtiofsd found (Debian 12 has it in qemu-system-common); run 'make setup'"
command -v qemu-system-x86_64 >/dev/null || fail "no qemu-system-x86_64 found; run 'make setup'"

kernel=$(find /boot -maxdepth 1 -name 'vmlinuz-6.12.*-cloud-amd64' | sort -V | tail -n 1)
[ -n "$kernel" ] || fail "no /boot/vmlinuz-6.12.*-cloud-amd64 found; run 'make setup' (package linux-image-6.12.*-cloud-amd64)"

work=$(mktemp -d /tmp/rewind-bench.XXXXXX)
pids=()
# shellcheck disable=SC2317 # called by the trap
cleanup() {
    # The shared-folder daemons end with QEMU; this is for the ways out where they have not.
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

initramfs=$("$here/initramfs.sh" "${kernel#/boot/vmlinuz-}") || fail "could not build the bench's initramfs"

# What to run inside, as a script in the shared control folder.
mkdir "$work/control"
results=
if [ -n "${BENCH_RESULTS:-}" ]; then
    mkdir -p "$BENCH_RESULTS"
    results=$(cd "$BENCH_RESULTS" && pwd)
    export BENCH_RESULTS=$results
    printf '%s' "$results" >"$work/control/results"
fi
# What a folder of its own would hide inside.
for folder in "$PWD" "$(dirname "$(dirname "$here")")"; do
    case $folder/ in
    /tmp/*/ | /run/*/) printf '%s\n' "$folder" ;;
    esac
done | sort -u >"$work/control/folders"
{
    echo '#!/bin/bash'
    for name in $(compgen -e); do
        case $name in
        PATH | HOME | LANG | LC_* | REWIND_* | RUST* | CARGO* | NEXTEST* | BENCH_*)
            printf 'export %s=%q\n' "$name" "${!name}"
            ;;
        esac
    done
    printf 'export REWIND_IN_BENCH=1\ncd %q || exit 125\n' "$PWD"
    printf 'exec'
    printf ' %q' "$@"
    echo
} >"$work/control/command"
chmod +x "$work/control/command"

devices=()
# The sandbox is a chroot: a namespace of its own fails for "/" (pivot_root) and in many containers.
share() { # TAG FOLDER CACHE
    "$virtiofsd" --socket-path="$work/$1.sock" -o source="$2" -o cache="$3" -o sandbox=chroot -f \
        >"$work/$1.log" 2>&1 &
    pids+=($!)
    local pid=$!
    for _ in $(seq 200); do
        if [ -S "$work/$1.sock" ]; then break; fi
        kill -0 "$pid" 2>/dev/null || return 1
        sleep 0.02
    done
    devices+=(-chardev "socket,id=$1,path=$work/$1.sock" -device "vhost-user-fs-pci,chardev=$1,tag=$1,queue-size=1024")
}

share root / always || fail "virtiofsd does not start: $(tail -n 1 "$work/root.log")"
share control "$work/control" none || fail "virtiofsd does not start for the control folder"
[ -z "$results" ] || share results "$results" none || fail "virtiofsd does not start for the results folder"

status=0
timeout --foreground -k 5 "$BENCH_TIMEOUT" qemu-system-x86_64 \
    -accel tcg,thread=multi,tb-size=512 -cpu max -machine q35,memory-backend=ram -smp "$BENCH_CPUS" \
    -m "$BENCH_MEMORY" -object "memory-backend-memfd,id=ram,size=${BENCH_MEMORY}M,share=on" \
    -nodefaults -display none -no-reboot -monitor none \
    -kernel "$kernel" -initrd "$initramfs" \
    -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off tsc=reliable no_timer_check audit=0 random.trust_cpu=on cryptomgr.notests" \
    -serial "file:$work/console.log" \
    -device virtio-serial-pci -add-fd fd=3,set=1 -chardev file,id=output,path=/dev/fdset/1,append=on -device virtserialport,chardev=output,name=output \
    "${devices[@]}" </dev/null 3> >(exec cat) || status=$?

[ "${BENCH_VERBOSE:-0}" = 0 ] || cat "$work/console.log" >&2
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
    echo "bench: killed after $BENCH_TIMEOUT seconds" >&2
    exit 124
fi
if [ ! -s "$work/control/status" ]; then
    tail -n 40 "$work/console.log" >&2
    fail "the machine ended without a status (QEMU's status $status)"
fi
exit "$(cat "$work/control/status")"
