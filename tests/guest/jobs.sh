#!/bin/sh
# Background jobs, pipes, substitution, a trap and a here document.
trap 'echo got a signal' USR1
for i in 1 2 3; do
    (sleep 0.$i; echo "job $i in the background") &
done
echo start | tr '[:lower:]' '[:upper:]'
kill -USR1 $$
cat <<END | sort -r
one
$(uname -s)
three
END
wait
date -u +%Y-%m-%d
find / -maxdepth 1 | wc -l
