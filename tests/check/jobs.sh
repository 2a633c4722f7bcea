#!/bin/bash
# Two background jobs count in one file.
echo 0 > /tmp/count
add() { local n; read -r n < /tmp/count; echo $((n + 1)) > /tmp/count; }
add &
add &
wait
cat /tmp/count
