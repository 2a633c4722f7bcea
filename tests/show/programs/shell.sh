#!/bin/bash
# The shell's own machinery: arithmetic, arrays, expansion, subshells, pipes, traps, jobs, here documents.
set -u
fib() { local n=$1; if ((n < 2)); then echo "$n"; else echo $(($(fib $((n - 1))) + $(fib $((n - 2))))); fi; }
echo "fib $(fib 9)"
declare -A count=()
for word in the cat sat on the mat with the other cat; do count[$word]=$((${count[$word]:-0} + 1)); done
for word in "${!count[@]}"; do echo "$word ${count[$word]}"; done | sort
sum=0; for ((i = 0; i < 20000; i++)); do ((sum = (sum * 31 + i) % 1000003)); done; echo "sum $sum"
text='the quick brown fox'; echo "${text^^} ${text//o/0} ${#text} ${text: -3} ${text%% *}"
[[ $text =~ (q[a-z]+)\ (b[a-z]+) ]] && echo "${BASH_REMATCH[2]} ${BASH_REMATCH[1]}"
mapfile -t lines < <(printf '%s\n' c a b | sort); echo "${lines[*]}"
trap 'echo trapped' USR1; kill -USR1 $$; wait
for n in 3 1 2; do (sleep "0.$n"; echo "job $n") & done; wait
cat <<EOF | while read -r a b; do echo "$b $a"; done
one two
three four
EOF
coproc upper { tr a-z A-Z; }; echo hello >&"${upper[1]}"; exec {upper[1]}>&-; cat <&"${upper[0]}"
printf '%s\n' {1..5}{a,b} | paste -sd' '
case abc in a*) echo match;; esac
exec 5<>"$(mktemp)"; echo kept >&5
false || echo "status $?"
