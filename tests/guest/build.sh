#!/bin/bash
# Builds the root of the machine's tests: programs of this folder, busybox, and coreutils' sleep with its libraries,
# as the EROFS image build/test-root.erofs. Cached by its inputs; the same bytes for the same inputs.
set -euo pipefail
cd "$(dirname "$0")"
image=../../build/test-root.erofs

stamp=$( (cat ./*.c ./*.sh /bin/busybox /bin/sleep; gcc --version) | b2sum | cut -c1-32)
[ "$(cat "$image.stamp" 2>/dev/null)" != "$stamp" ] || [ ! -s "$image" ] || exit 0

mkdir -p ../../build
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,etc,dev,proc,sys,tmp,root,run,usr/bin}
chmod 755 "$root"
chmod 1777 "$root/tmp"
for source in *.c; do
    gcc -O1 -g -static -pthread -Wall -Werror -Wl,--build-id=none "$source" -o "$root/bin/${source%.c}"
done
cp jobs.sh forks.sh "$root/bin/"
cp /bin/busybox "$root/bin/busybox"
for name in $(/bin/busybox --list); do
    [ -e "$root/bin/$name" ] || ln -s busybox "$root/bin/$name"
done
cp /bin/sleep "$root/usr/bin/sleep"
ldd /bin/sleep | grep -o '/[^ ]*' | while read -r library; do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
printf 'root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n' > "$root/etc/passwd"
printf 'root:x:0:\nuser:x:1000:\n' > "$root/etc/group"
mkfs.erofs -T0 -U 00000000-0000-0000-0000-000000000001 --all-root "$image.new" "$root" >/dev/null
mv "$image.new" "$image"
echo "$stamp" > "$image.stamp"
