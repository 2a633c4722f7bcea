"""Assertions and marks for programs that run inside Rewind; no-ops outside it. SPDX-License-Identifier: MIT

    import rewind_sdk as rewind
    rewind.always(balance == total, "balance-adds-up", balance=balance)
"""

import json
import os
import sys

__all__ = ["always", "sometimes", "reachable", "unreachable", "mark", "inside"]

_LONGEST = 2000  # /dev/rewind takes one line of at most this many bytes
_fd = None


def _device():
    global _fd
    if _fd is None:
        try:
            _fd = os.open("/dev/rewind", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            _fd = -1
    return _fd


def inside():
    """True inside Rewind."""
    return _device() >= 0


def _send(key, body, details):
    device = _device()
    if device < 0:
        return
    frame = sys._getframe(2)
    body["file"] = frame.f_code.co_filename
    body["line"] = frame.f_lineno
    body["function"] = frame.f_code.co_name
    body["details"] = details
    line = json.dumps({key: body}, default=repr, sort_keys=True) + "\n"
    if len(line) > _LONGEST:
        body["details"] = {"cut": True}
        line = json.dumps({key: body}, default=repr, sort_keys=True) + "\n"
    try:
        os.write(device, line.encode())
    except OSError:
        pass  # a program under test must not fail because its report did


def always(holds, name, **details):
    """`holds` must be true each time this is reached."""
    _send("property", {"kind": "always", "name": name, "holds": bool(holds)}, details)


def sometimes(holds, name, **details):
    """`holds` must be true at least once over all schedules."""
    _send("property", {"kind": "sometimes", "name": name, "holds": bool(holds)}, details)


def reachable(name, **details):
    """This line must be reached at least once over all schedules."""
    _send("property", {"kind": "reachable", "name": name, "holds": True}, details)


def unreachable(name, **details):
    """This line must never be reached."""
    _send("property", {"kind": "unreachable", "name": name, "holds": False}, details)


def mark(name, **details):
    """A named place on the timeline."""
    _send("mark", {"name": name}, details)
