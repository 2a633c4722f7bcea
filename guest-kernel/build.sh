#!/bin/sh
# Builds the guest kernel, once per set of inputs. Prints one line: where the products are.
#
#   guest-kernel/build.sh [--source TARBALL] [--link PATH] [--jobs N] [--tree DIR]
#
# --tree builds in DIR and keeps it, so that the next build there compiles only what changed since.
#
# Products (in the cache, and PATH, by default build/guest-kernel of the repository, is made to point at them):
#   vmlinux        stripped ELF, loaded by the monitor at its physical addresses, entered at its 64-bit entry
#   vmlinux.debug  the same with symbols and DWARF
#   System.map, config, kernel.json
set -eu
LC_ALL=C; export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)
source=
link=$here/../build/guest-kernel
jobs=$(nproc)
tree=
while [ $# -gt 0 ]; do
	case $1 in
	--source) source=${2:?--source needs a file}; shift 2 ;;
	--link) link=${2:?--link needs a path}; shift 2 ;;
	--tree) tree=${2:?--tree needs a folder}; shift 2 ;;
	--jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
	*) echo "build.sh: unknown argument $1" >&2; exit 2 ;;
	esac
done

fail() {
	echo "guest-kernel: $*" >&2
	exit 1
}

if [ -z "$source" ]; then
	source=/usr/src/linux-source-6.12.tar.xz
	[ -r "$source" ] || fail "$source is missing: apt-get install linux-source-6.12, or give --source TARBALL (any linux 6.12.y)"
fi
[ -r "$source" ] || fail "cannot read $source"
for tool in gcc ld make flex bison bc patch objcopy objdump; do
	command -v $tool >/dev/null || fail "$tool is missing: run scripts/setup.sh"
done

cache=${XDG_CACHE_HOME:-$HOME/.cache}/rewind
mkdir -p "$cache"

# The tarball is hashed once per (path, size, time of change).
stamp=$(stat -L -c '%n %s %Y' "$source")
memo=$cache/source-$(printf %s "$stamp" | sha256sum | cut -c1-16)
if [ ! -s "$memo" ]; then
	sha256sum <"$source" | cut -d' ' -f1 >"$memo.$$"
	mv -f "$memo.$$" "$memo"
fi
inputs() {
	cat "$memo"
	gcc --version | head -1
	ld --version | head -1
	cd "$here"
	find build.sh check.sh check-allow.txt config.fragment abi src patches -type f | sort | xargs sha256sum
}
hash=$(inputs | sha256sum | cut -c1-16)
out=$cache/kernel-$hash

publish() {
	mkdir -p "$(dirname "$link")"
	if [ "$(readlink "$link" 2>/dev/null || true)" != "$out" ]; then
		ln -sfn "$out" "$link.$$"
		mv -fT "$link.$$" "$link"
	fi
	echo "guest-kernel: $out ($1)"
	exit 0
}
[ -e "$out/kernel.json" ] && publish "up to date"

# One builder per set of inputs; who waited finds the work done.
exec 9>"$out.lock"
flock 9
[ -e "$out/kernel.json" ] && publish "up to date"

work=$(mktemp -d "$cache/kernel-build.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
echo "guest-kernel: building (a few minutes, once)" >&2

mkdir "$work/product"
linux=${tree:-$work/linux}
# A kept tree is good for the same tarball and patches; the files of src/ are brought up to date below.
base="$(cat "$memo") $(cat "$here"/patches/*.patch | sha256sum)"
if [ "$base" != "$(cat "$linux/.rewind-base" 2>/dev/null || true)" ]; then
	rm -rf "$linux"
	mkdir -p "$linux"
	tar -xf "$source" -C "$linux" --strip-components=1 || fail "cannot unpack $source"
	for patch in "$here"/patches/*.patch; do
		patch -d "$linux" -p1 -s -F3 --no-backup-if-mismatch <"$patch" ||
			fail "$(basename "$patch") does not apply to $source"
	done
	echo "$base" >"$linux/.rewind-base"
fi
cd "$linux"
version=$(sed -n 's/^VERSION = //p;s/^PATCHLEVEL = //p;s/^SUBLEVEL = //p' Makefile | paste -sd.)
case $version in
6.12.*) ;;
*) fail "$source is linux $version; the patches are for 6.12.y" ;;
esac
install_file() {
	cmp -s "$1" "$2" || { mkdir -p "$(dirname "$2")" && cp "$1" "$2"; }
}
(cd "$here/src" && find . -type f) | while read -r file; do install_file "$here/src/$file" "$file"; done
install_file "$here/abi/rewind_abi.h" include/linux/rewind_abi.h

# Nothing of the caller's environment, of this folder or of the day reaches the products. Where kernel functions keep
# their variables is not recorded (a quarter of the compiler's time): the monitor reads the kernel by types and lines.
debug="-fno-var-tracking -gno-variable-location-views -gno-statement-frontiers -ffile-prefix-map=$linux=/usr/src/rewind-kernel"
build() {
	env -i PATH="$PATH" LC_ALL=C TZ=UTC make -s -j"$jobs" LOCALVERSION= \
		KBUILD_BUILD_TIMESTAMP='Thu Jan  1 00:00:00 UTC 1970' KBUILD_BUILD_USER=rewind KBUILD_BUILD_HOST=rewind \
		KBUILD_BUILD_VERSION=1 KCFLAGS="$debug" KAFLAGS="-ffile-prefix-map=$linux=/usr/src/rewind-kernel" "$@"
}
build KCONFIG_ALLCONFIG="$here/config.fragment" allnoconfig >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "configuration failed"; }
"$here/check.sh" config "$here/config.fragment" .config
build vmlinux >"$work/log" 2>&1 || { tail -50 "$work/log" >&2; fail "compilation failed"; }
"$here/check.sh" code vmlinux

cp vmlinux "$work/product/vmlinux.debug"
objcopy --strip-all --remove-section=.comment vmlinux "$work/product/vmlinux"
cp System.map .config "$work/product/"
mv "$work/product/.config" "$work/product/config"
cd "$work/product"
platform=$(sed -n 's/^#define RW_PLATFORM_VERSION[[:space:]]*//p' "$here/abi/rewind_abi.h")
sum() { sha256sum "$1" | cut -d' ' -f1; }
cat >kernel.json <<END
{
  "kernel": "$version",
  "platform": $platform,
  "inputs": "$hash",
  "source_sha256": "$(cat "$memo")",
  "config_sha256": "$(sum config)",
  "vmlinux_sha256": "$(sum vmlinux)"
}
END
cd "$cache"
rm -rf "$out"
mv -T "$work/product" "$out"
publish built
