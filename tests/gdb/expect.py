"""expect.py SCRIPT OUTPUT: does the output have what the script expects (its lines "#= TEXT"), in order?

As cli/tests/gdb.rs does: `*` stands for anything within a line.
"""
import re
import sys

said, at = open(sys.argv[2], errors="replace").read(), 0
for line in open(sys.argv[1]):
    if line.startswith("#= "):
        wanted = line[3:].rstrip("\n")
        found = re.compile(".*".join(map(re.escape, wanted.split("*")))).search(said, at)
        if not found:
            sys.exit('no "%s" (in order)' % wanted)
        at = found.end()
