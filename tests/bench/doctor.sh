#!/bin/bash
# `rewind doctor` inside the bench, in four situations: as it is (KVM accepted, debug registers reported as not firing), a
# user without the right to open /dev/kvm, no /dev/kvm, and a second look (the result is remembered). Ends with the count.
set -uo pipefail
# Where any user can read them.
guest=$(mktemp -d)
cp -L "$1" build/guest/vmlinux build/guest/initramfs.cpio build/guest/kernel.json "$guest"
chmod -R a+rX "$guest"
export REWIND_GUEST=$guest
rewind=$guest/$(basename "$1")
passed=0
failed=0
home=$(mktemp -d)
export REWIND_HOME=$home/home

# Runs doctor (through "$@" if given), shows it, and looks for what must be there.
doctor() { # NAME PATTERN... -- COMMAND
    local name=$1 patterns=() good=1 text
    shift
    while [ "$1" != -- ]; do
        patterns+=("$1")
        shift
    done
    shift
    text=$("$@" "$rewind" doctor 2>&1)
    printf -- '--- rewind doctor, %s\n%s\n' "$name" "$text"
    for pattern in "${patterns[@]}"; do
        grep -qE "$pattern" <<<"$text" || { echo "doctor, $name: missing: $pattern"; good=0; }
    done
    if grep -q panicked <<<"$text"; then good=0; fi
    if [ $good = 1 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

doctor "in the bench" "kvm: this host's KVM passes the self-test" '^ok +kvm opens' '^ok +kvm split-lock' '^ok +kvm numbers' \
    '^note +kvm data-watch' '^note +kvm breakpoint' 'it does not stop' 'fingerprint [0-9a-f]{16}' -- env
doctor "again" "kvm: this host's KVM passes the self-test" -- env

chmod 600 /dev/kvm
chmod 755 "$home"
doctor "without the right" 'Permission denied' 'usermod -aG kvm' 'soft: ' -- \
    env REWIND_HOME="/tmp/nobody-$$" setpriv --reuid 65534 --regid 65534 --clear-groups
refusal=$(setpriv --reuid 65534 --regid 65534 --clear-groups env REWIND_HOME="/tmp/nobody-$$" \
    "$rewind" run --engine kvm -- true 2>&1)
echo "run --engine kvm without the right: $refusal"
if grep -q 'the kvm engine cannot be used: .*Permission denied' <<<"$refusal"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
chmod 666 /dev/kvm

mv /dev/kvm /dev/kvm-away
doctor "without /dev/kvm" 'No such file' 'modprobe kvm' 'soft: ' -- env
mv /dev/kvm-away /dev/kvm

echo "test result: doctor. $passed passed; $failed failed"
[ $failed = 0 ]
