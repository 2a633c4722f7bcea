#!/usr/bin/env python3
"""Runs the command of each example's README and compares what it says with the README: readmes.py ROOT [--write].

Compared are the violated properties, word for word with every number masked: ids, steps and addresses belong to one
compiler, C library and guest kernel, and which schedule comes first to fail may change with them. --write puts
the real output there.
"""

import os
import re
import subprocess
import sys

REWIND = os.environ.get("REWIND", "target/release/rewind")


def output(root, name):
    words = subprocess.run(["examples/command.sh", name], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
    done = subprocess.run([REWIND, "check", "--engine", "soft", "--root", root, "--", *words], capture_output=True, text=True)
    # An error has status 1 too: the report must have come to its end.
    if done.returncode != 1 or not re.search(r"^narrowed: .*^\d+ of \d+ schedules tried violates? a property$", done.stdout, re.M | re.S):
        sys.exit(f"{name}: check was to fail with a whole report, and ended with status {done.returncode}\n{done.stdout}{done.stderr}")
    lines = [line for line in done.stdout.splitlines() if not re.match(r"schedule +[1-9].*holds$", line)]
    return "\n".join([f"$ rewind check --root {root} -- {' '.join(words)}", *lines]) + "\n"


def properties(text):
    """The verdict of the failing schedule: "violates same-outcome, sdk"."""
    return [re.sub(r".*(violates .*)", r"\1", line) for line in text.splitlines() if line.startswith("schedule") and "violates" in line]


def main():
    root, write = sys.argv[1], "--write" in sys.argv[2:]
    names = subprocess.run(["examples/command.sh"], check=True, capture_output=True, text=True).stdout.split()
    wrong = 0
    for name in names:
        path = f"examples/{name}/README.md"
        with open(path) as file:
            readme = file.read()
        head, block, tail = re.fullmatch(r"(.*```console\n)(.*?)(```\n.*)", readme, re.DOTALL).groups()
        now = output(root, name)
        if write:
            with open(path, "w") as file:
                file.write(head + now + tail)
        same = properties(block) == properties(now)
        wrong += not same and not write
        print(f"{name}: {'written' if write else 'as its README says' if same else f'now {properties(now)}, README {properties(block)}'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
