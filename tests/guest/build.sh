#!/bin/bash
# Builds the root of the machine's tests: programs of this folder, busybox, and some of the host's own with their
# libraries, as the EROFS image build/test-root.erofs. Cached by its inputs; the same bytes for the same inputs.
set -euo pipefail
cd "$(dirname "$0")"
image=../../build/test-root.erofs
# These two are not as busybox has them.
own=(/bin/sleep /usr/bin/strace)
for program in "${own[@]}"; do
    [ -x "$program" ] || { echo "no $program found; run 'make setup'" >&2; exit 1; }
done

stamp=$( (cat ./*.c ./*.h ./*.sh /bin/busybox "${own[@]}"; gcc --version) | b2sum | cut -c1-32)
[ "$(cat "$image.stamp" 2>/dev/null)" != "$stamp" ] || [ ! -s "$image" ] || exit 0

mkdir -p ../../build
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,etc,dev,proc,sys,tmp,root,run,usr/bin}
chmod 755 "$root"
chmod 1777 "$root/tmp"
for source in *.c; do
    gcc -O1 -g -ffile-prefix-map="$PWD"=. -static -pthread -Wall -Werror -Wl,--build-id=none "$source" -o "$root/bin/${source%.c}"
done
cp jobs.sh forks.sh "$root/bin/"
cp /bin/busybox "$root/bin/busybox"
for name in $(/bin/busybox --list); do
    [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"
done
cp "${own[@]}" "$root/usr/bin/"
ldd "${own[@]}" | grep -o '/[^ ]*[^: ]' | grep -v -x -F "$(printf '%s\n' "${own[@]}")" | sort -u | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n' > "$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' > "$root/etc/group"
mkfs.erofs -T0 -U 00000000-0000-0000-0000-000000000001 --all-root "$image.new" "$root" >/dev/null
mv "$image.new" "$image"
echo "$stamp" > "$image.stamp"
