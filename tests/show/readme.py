#!/usr/bin/env python3
"""Runs the demo and compares what it prints with the README: readme.py [--write].

Ids, steps, addresses and times belong to one compiler, C library, kernel and moment: every number is masked, and
lines that are then equal to the one before are left out. --write puts the real output there.
"""

import os
import re
import subprocess
import sys
import tempfile

README = "README.md"


def demo():
    # In a home of its own: nothing is there yet, as for a newcomer.
    with tempfile.TemporaryDirectory(prefix="rewind-readme-") as home:
        environment = {**os.environ, "DEMO_HOME": home}
        done = subprocess.run(["scripts/demo.sh", "--built"], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"the demo ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.strip("\n") + "\n"


def masked(text):
    # Words of letters and digits that hold a digit: ids, hashes, addresses, counts, times.
    lines = [re.sub(r"[0-9a-f]*[0-9][0-9a-zA-Z.]*", "#", line) for line in text.splitlines()]
    lines = [re.sub(r" +", " ", line) for line in lines]
    return [line for n, line in enumerate(lines) if n == 0 or line != lines[n - 1]]


def main():
    with open(README) as file:
        readme = file.read()
    parts = re.fullmatch(r"(.*<!-- demo -->\n```console\n)(.*?)(```\n<!-- /demo -->\n.*)", readme, re.DOTALL)
    if not parts:
        sys.exit(f"{README}: no console block between <!-- demo --> and <!-- /demo -->")
    head, block, tail = parts.groups()
    now = demo()
    if "--write" in sys.argv[1:]:
        with open(README, "w") as file:
            file.write(head + now + tail)
        print(f"{README}: written")
        return 0
    if masked(block) != masked(now):
        print(f"{README} does not show what the demo prints now (tests/show/readme.py --write mends it):")
        for line in sorted(set(masked(block)) ^ set(masked(now))):
            print(("  README: " if line in masked(block) else "  demo:   ") + line)
        return 1
    print(f"{README}: as the demo prints it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
