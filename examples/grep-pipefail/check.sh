#!/bin/bash
# "Is the word in the list?" under pipefail: grep -q leaves at the first match; a writer that still has something
# to write dies of SIGPIPE, and pipefail turns the hit into a failure. SPDX-License-Identifier: MIT
set -o pipefail

list() {
    echo "alpha found here"
    echo "beta"
}

if [ "${1-}" = fixed ]; then
    # grep reads to the end, so that the writer never meets a closed pipe.
    list | grep alpha > /dev/null
else
    list | grep -q alpha
fi
status=$?
echo "status $status"
exit $status
