#!/bin/bash
# Uses nearly all of coreutils on fixed data; the same output everywhere. Works in a folder of its own.
set -u
export TZ=UTC LC_ALL=C
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1

say() { printf -- '-- %s\n' "$*"; }

say numbers
seq 1 2000 >numbers
seq -w 1 3 12; seq 0.5 0.25 2; factor 2 97 1000000007 18446744073709551557 1208925819614629174706189
expr 7 '*' 6; expr length abcdef; expr abcdef : 'abc\(.*\)'; numfmt --to=iec 1234567890 4096; numfmt --from=si 12K
printf '%5.2f|%-8s|%08x|%e|%q\n' 3.14159 ab 48879 6.02214e23 "a b'c"

say text
sort -R --random-source=numbers numbers | head -5
shuf --random-source=numbers numbers >shuffled
sort -n shuffled | cmp - numbers && echo sorted
sort -k1,1 -r numbers | head -3; sort -u -t2 -k2 numbers | head -3; sort --parallel=4 -g shuffled | sum
tr 'a-y' 'b-z' <<<'hello world'; tr -dc 0-4 <numbers | fold -w 60 | tail -2; cut -c2-3 numbers | sort | uniq -c | sort -rn | head -4
head -c 37 numbers | od -An -tx1; tail -n +1998 numbers; tac numbers | head -2; nl -ba numbers | tail -1; wc numbers
paste -d, numbers shuffled | head -3; join <(seq 1 5) <(seq 3 8); comm <(seq 1 5) <(seq 3 8); fmt -w 30 <<<"the quick brown fox jumps over the lazy dog again"
pr -2 -t -l 5 -w 40 numbers | head -5; expand -t4 <<<$'a\tb'; unexpand -a <<<'a               b'; ptx <<<'one two three'
tsort <<<'a b b c a c'; csplit -s numbers 500 1500; wc -l xx*; split -l 700 numbers part.; wc -c part.*
echo 'tee and cat' | tee copy | cat -A; yes yes | head -2000 | uniq -c; echo a:b | cut -d: -f2; rev <<<abc 2>/dev/null

say sums
md5sum numbers; sha1sum numbers; sha224sum numbers; sha256sum numbers; sha384sum numbers; sha512sum numbers; b2sum numbers
cksum numbers; sum numbers; base64 numbers | tail -1; base32 numbers | md5sum; basenc --base16 copy; od -c copy; sha256sum numbers >sums; sha256sum -c sums

say files
mkdir -p a/b/c; cp numbers a/b; mv a/b/numbers a/b/c/n; ln -s ../c/n a/b/link; ln a/b/c/n a/hard; cp -a a d; readlink a/b/link; realpath --relative-to=. a/b/c/n
touch -h -d '2001-02-03 04:05:06' a/hard a/b/link; stat -c '%a %s %h %F %Y %n' a/hard a/b/link; chmod 640 a/hard; ls -l --time-style=+%Y a | grep -v total | cut -d' ' -f1-2
truncate -s 10000 hole; dd if=numbers of=hole bs=100 seek=90 count=3 conv=notrunc status=none; du --apparent-size -b hole; stat -c %s hole
install -m 751 numbers installed; stat -c %a installed; mkfifo fifo; (echo through >fifo &) ; cat fifo; rmdir d/b/c 2>&1; rm -r d; ls; test -e d || echo gone
basename /usr/lib/x.so .so; dirname /usr/lib/x.so; pathchk -p 'a b' && echo path; mktemp -u XXXX | wc -c; dircolors -p | wc -l >/dev/null; echo $?

say processes
env -i A=1 env; nice -n 19 nice; timeout 5 true; echo $?; { timeout -s KILL 0.05 sleep 9; echo $?; } 2>/dev/null; (sleep 5 & kill $!; wait $!; echo $?) 2>/dev/null
true; echo $?; false; echo $?; id -u; date -u -d @1000000000 '+%F %T %a %j'; date -d '2024-02-29 +1 year' +%F; nohup echo nohup 2>/dev/null; seq 3 | xargs -n1 echo x
find . -name 'part.*' | sort; test 3 -gt 2 && echo greater; stdbuf -oL echo buffered; uname -s; arch
