"""The descendants of a process: who is left over of a turn, and what a process holds in memory with all it has started.

The agent ends its own commands with their turn. One that was forked twice into a session of its own survives
that; it becomes the warden's child, since the warden is the subreaper. Where there is no /proc, nothing is known.
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


RESIDENT = 1
"""Which field of /proc/PID/statm is the resident part, in pages."""


def family_of(pid: int) -> dict[int, float]:
    """The descendants of a process, and when each was started: what came up with an agent, wrappers included.

    Children of a process's first thread only: a wrapper has no other, and the agent is the last that counts.
    """
    found: dict[int, float] = {}
    new = children_of(pid)
    while new:
        found |= new
        below = [children_of(child) for child in new]
        new = {child: born for each in below for child, born in each.items() if child not in found}
    return found


def resident_bytes(family: dict[int, float]) -> int:
    """What they hold together, of those that still are who they were; 0 where nothing is known."""
    pages = 0
    for pid, born in family.items():
        with contextlib.suppress(OSError):  # it has ended
            if started(pid) == born:
                pages += int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[RESIDENT])
    return pages * os.sysconf("SC_PAGE_SIZE")
