#!/bin/bash
# The command of an example inside the root of root.sh, one word a line: examples/command.sh NAME [fixed].
# Without a name: the names. SPDX-License-Identifier: MIT
set -euo pipefail
names="bank condvar grep-pipefail make-j mkdir-race philosophers pool setenv sigchld two-stores"
case ${1-} in
    "") printf '%s\n' $names ;;
    make-j) printf '%s\n' /bin/make -f /examples/make-j/Makefile -j2 ${2:+FIXED=1} ;;
    grep-pipefail) printf '%s\n' /bin/bash /examples/grep-pipefail/check.sh ${2:+fixed} ;;
    *)
        grep -qw -- "$1" <<< "$names" || { echo "no example $1: $names" >&2; exit 2; }
        printf '%s\n' "/bin/$1${2:+-fixed}"
        ;;
esac
