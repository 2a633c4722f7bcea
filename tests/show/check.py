#!/usr/bin/env python3
"""The parts of tests/show/check.sh: check.py ROOT [--long] [--seeds N] [--only EXAMPLE] [--jobs N] [PART...]"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

PARTS = ["table", "replay", "fixed", "accesses", "jobs", "many"]
REWIND = os.environ.get("REWIND", "target/release/rewind")
# Options for the count of jobs, from --jobs; without it, as many as rewind takes by itself.
JOBS = []


def command(example, fixed=False):
    words = ["examples/command.sh", example] + (["fixed"] if fixed else [])
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split("\n")[:-1]


def check(root, cmd, *options):
    """Runs check with --json: (exit status, its objects, seconds)."""
    began = time.monotonic()
    words = [REWIND, "check", "--engine", "soft", "--root", root, "--json", *JOBS, *options, "--", *cmd]
    done = subprocess.run(words, capture_output=True, text=True)
    seconds = time.monotonic() - began
    objects = [json.loads(line) for line in done.stdout.splitlines()]
    # An error has status 1 too: what was told must have come to its end.
    if done.returncode not in (0, 1) or first(objects, "summary") is None:
        sys.exit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr}")
    return done.returncode, objects, seconds


def first(objects, kind):
    return next((o for o in objects if o["kind"] == kind), None)


def table(root, args):
    """Each example over some seeds; remembers the failing runs for the next part."""
    print(f"{'example':<14} found    schedules to first failure   decisions         seconds to the report   found by")
    print(f"{'':<14} seeds    median  worst                before  narrowed  median  worst")
    found_runs, missed = {}, 0
    for example in args.examples:
        schedules, before, after, seconds, by = [], [], [], [], []
        for seed in range(1, args.seeds + 1):
            options = ["--schedules", "2000", "--schedule-seed", str(seed)]
            _, objects, took = check(root, command(example), *options)
            failure = first(objects, "failure")
            if failure is None:
                missed += 1
                continue
            schedules.append(failure["schedule"])
            before.append(failure["from"])
            after.append(len(failure["decisions"]))
            seconds.append(took)
            by.append(failure["strategy"])
            found_runs.setdefault(example, failure["run"])
        if not schedules:
            print(f"{example:<14} 0 of {args.seeds}")
            continue
        names = ", ".join(f"{name} {by.count(name)}" for name in sorted(set(by)))
        print(
            f"{example:<14} {len(schedules):>2} of {args.seeds:<3} {statistics.median(schedules):>5.0f} "
            f"{max(schedules):>6}               {statistics.median(before):>5.0f} {statistics.median(after):>8.0f}"
            f"    {statistics.median(seconds):>6.1f} {max(seconds):>6.1f}   {names}",
            flush=True,
        )
    return found_runs, missed


def replay(found_runs, args):
    wrong = 0
    for example, run in found_runs.items():
        same = 0
        for _ in range(args.replays):
            done = subprocess.run([REWIND, "replay", run], capture_output=True, text=True)
            same += done.returncode == 0 and "identical" in done.stdout
            if done.returncode not in (0, 1):
                sys.exit(f"replay of {run} ended with {done.returncode}: {done.stderr}")
        print(f"{example:<14} run {run}: {same} of {args.replays} replays identical", flush=True)
        wrong += same != args.replays
    return wrong


def fixed(root, args):
    wrong = 0
    for example in args.examples:
        options = ["--schedules", str(args.fixed), "--all"]
        if example in ("pool",):
            options.append("--any-order")
        status, objects, took = check(root, command(example, fixed=True), *options)
        summary = first(objects, "summary")
        print(
            f"{example:<14} fixed: {summary['failing']} of {summary['tried']} schedules violate a property, "
            f"{summary['tried'] / took:.0f} schedules/s with the start",
            flush=True,
        )
        wrong += status != 0
    return wrong


def accesses(root, args):
    for strategy in ("accesses", "random"):
        counts = []
        for seed in range(1, args.seeds + 1):
            options = ["--strategy", strategy, "--schedules", "1000", "--schedule-seed", str(seed)]
            failure = first(check(root, command("two-stores"), *options)[1], "failure")
            counts.append(failure["schedule"] if failure else None)
        shown = ["not in 1000" if count is None else str(count) for count in counts]
        print(f"two-stores with {strategy}: schedules to the first failure: {', '.join(shown)}", flush=True)


def jobs(root, _args):
    reports = []
    for count in ("1", "2"):
        words = [REWIND, "check", "--engine", "soft", "--root", root, "--jobs", count, "--", *command("bank")]
        reports.append(subprocess.run(words, capture_output=True, text=True).stdout)
    print(reports[0], end="")
    same = reports[0] == reports[1]
    print(f"one job and two jobs: {'the same report' if same else 'DIFFERENT reports'}")
    return 0 if same else 1


def many(root, args):
    """Peak memory and the home's size, for few and for many schedules of the bank."""
    home = os.environ["REWIND_HOME"]
    for count in (200, args.many):
        began = time.monotonic()
        words = [REWIND, "check", "--engine", "soft", "--root", root, *JOBS, "--all", "--schedules", str(count), "--json"]
        child = subprocess.Popen([*words, "--", *command("bank")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        tried = sum(b'"schedule"' in line for line in child.stdout)
        _, _, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - began
        size = sum(
            os.lstat(os.path.join(folder, name)).st_blocks * 512 for folder, _, names in os.walk(home) for name in names
        )
        cpu = usage.ru_utime + usage.ru_stime
        print(
            f"{count} schedules of the bank: {tried / seconds:.0f} schedules/s ({tried / cpu:.0f} per CPU second), "
            f"peak memory {usage.ru_maxrss // 1024} MiB, home {size >> 20} MiB",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--only", metavar="EXAMPLE")
    parser.add_argument("--jobs", metavar="N")
    args = parser.parse_intermixed_args()
    if args.jobs:
        JOBS.extend(["--jobs", args.jobs])
    if set(args.parts) - set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    parts = args.parts or PARTS
    args.seeds = args.seeds or (10 if args.long else 3)
    args.replays, args.fixed, args.many = (100, 500, 10_000) if args.long else (5, 50, 1000)
    names = subprocess.run(["examples/command.sh"], check=True, capture_output=True, text=True).stdout.split()
    args.examples = [args.only] if args.only else names
    wrong = 0
    if "table" in parts or "replay" in parts:
        found_runs, missed = table(args.root, args)
        wrong += missed
        if "replay" in parts:
            wrong += replay(found_runs, args)
    if "fixed" in parts:
        wrong += fixed(args.root, args)
    if "accesses" in parts:
        accesses(args.root, args)
    if "jobs" in parts:
        wrong += jobs(args.root, args)
    if "many" in parts:
        many(args.root, args)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
