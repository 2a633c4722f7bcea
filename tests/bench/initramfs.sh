#!/bin/bash
# Builds the initramfs of the test bench for kernel release $1 and prints its path. Cached by its inputs.
set -euo pipefail

release=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=$(cd "$here/../.." && pwd)/build/bench
modules=(kvm kvm-amd overlay)

[ -x /bin/busybox ] || { echo "no /bin/busybox found; run 'make setup' (package busybox-static)" >&2; exit 1; }
key=$(cat "$here/init" "$here/initramfs.sh" /bin/busybox | b2sum -l 64 | cut -d' ' -f1)
result=$cache/initramfs-$release-$key.cpio
if [ -s "$result" ]; then
    echo "$result"
    exit 0
fi

mkdir -p "$cache"
tree=$(mktemp -d "$cache/tree.XXXXXX")
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree"/{bin,dev,proc,sys,modules,lower,upper,root}
cp /bin/busybox "$tree/bin/busybox"
cp "$here/init" "$tree/init"
chmod +x "$tree/init"

# Modules with what they need, in load order, unpacked (busybox cannot), each once.
PATH=$PATH:/usr/sbin:/sbin
for module in "${modules[@]}"; do
    modprobe --set-version "$release" --show-depends --ignore-install "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$tree/modules/files"
while read -r file; do
    name=$(basename "$file")
    case $name in
    *.xz) xz -dc "$file" >"$tree/modules/${name%.xz}" ;;
    *.zst) zstd -qdc "$file" >"$tree/modules/${name%.zst}" ;;
    *) cp "$file" "$tree/modules/$name" ;;
    esac
    name=${name%.xz}
    echo "${name%.zst}" >>"$tree/modules/order"
done <"$tree/modules/files"

(cd "$tree" && find . -print0 | cpio --quiet -0 -o -H newc) >"$tree.cpio"
mv "$tree.cpio" "$result"
echo "$result"
