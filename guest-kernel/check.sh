#!/bin/sh
# What must hold for the guest kernel before anybody uses it.
#   check.sh config FRAGMENT .config    every line of the fragment survived
#   check.sh code VMLINUX               no instruction that reads the host (outside check-allow.txt), and the functions
#                                       that look at the control slot leave nothing of it in guest memory
set -eu
LC_ALL=C; export LC_ALL
here=$(cd "$(dirname "$0")" && pwd)

config() {
	awk '
	NR == FNR { if ($0 ~ /^CONFIG_/) { i = index($0, "="); have[substr($0, 1, i - 1)] = substr($0, i + 1) } next }
	/^CONFIG_/ { i = index($0, "="); name = substr($0, 1, i - 1); want = substr($0, i + 1)
		if (have[name] != want) { print "check: " name " should be " want ", is " (name in have ? have[name] : "off"); bad = 1 } }
	/^# CONFIG_.* is not set$/ { if ($2 in have) { print "check: " $2 " should be off, is " have[$2]; bad = 1 } }
	END { exit bad }' "$2" "$1" >&2
}

code() {
	objdump -d --no-show-raw-insn "$1" | awk -v allow="$here/check-allow.txt" '
	BEGIN {
		while ((getline line < allow) > 0)
			if (line !~ /^#/ && split(line, part, " ") >= 3) allowed[part[1] " " part[2]] = 1
		# Registers only: no push but the frame, no store but through the control slot.
		leaf["rewind_find"] = 1
	}
	/^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); seen[name] = 1; next }
	{
		op = $2
		if (op == "lock" || op == "rep" || op == "repz" || op == "data16") op = $3
		if (op ~ /^(rdtsc|rdtscp|rdrand|rdseed|rdpmc|hlt|mwait|mwaitx|rdpid|xgetbv|tpause|umwait)$/) {
			used[name " " op] = 1
			if (!((name " " op) in allowed)) { print "check: " op " in " name ": not in check-allow.txt"; bad = 1 }
		}
		if (name in leaf) {
			if (op ~ /^push/ && $0 !~ /%rbp/) { print "check: " name " saves a register: " $0; bad = 1 }
			if (op ~ /^call/) { print "check: " name " calls: " $0; bad = 1 }
			if (op ~ /^(mov|add|sub|or|and|xor|inc|dec)/ && $0 ~ /,[^,]*\(%[a-z0-9,%]*\)$/ && op !~ /^movz|^movs[bwl]/) { print "check: " name " stores: " $0; bad = 1 }
		}
	}
	END {
		for (n in leaf) if (!(n in seen)) { print "check: no function " n; bad = 1 }
		for (a in allowed) if (!(a in used)) print "check: note: " a " is allowed but no longer there"
		exit bad
	}' >&2
}

case ${1-} in
config) config "$2" "$3" ;;
code) code "$2" ;;
*) echo "usage: check.sh config FRAGMENT CONFIG | code VMLINUX" >&2; exit 2 ;;
esac
