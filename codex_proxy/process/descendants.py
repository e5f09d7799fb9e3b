"""What a turn has left running: processes that got away from the agent and hang on its warden now.

The agent ends its own commands with their turn. One that was forked twice into a session of its own survives
that; it becomes the warden's child, since the warden is the subreaper. Where there is no /proc, none is seen.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from codex_proxy.process.warden import own_children

START_TIME = 19
"""Which field of /proc/PID/stat, counted behind the name, is the start in ticks since boot."""


def since_boot() -> float:
    """Now, on the clock of process start times; seconds. As coarse as those: never later than a start to come."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ticks = os.sysconf("SC_CLK_TCK")
    return int(time.clock_gettime(clock) * ticks) / ticks


def children_of(pid: int) -> dict[int, float]:
    """The direct children of a process and when each was started, in seconds since boot."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):  # it has ended
        for child in own_children(pid):
            with contextlib.suppress(OSError):
                found[child] = started(child)
    return found


def started(pid: int) -> float:
    """When a process was started, in seconds since boot. `OSError` where there is none, or no /proc."""
    # "pid (name) state ppid ...": the name may hold anything, parentheses and blanks too
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return int(fields[START_TIME]) / os.sysconf("SC_CLK_TCK")
