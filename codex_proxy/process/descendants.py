"""Finds the descendants of a process, when each was started, and how much memory they hold. Linux only.

A process is identified by pid and start time together, since pids are reused. By this the proxy finds what a turn has
left running: a process that was forked twice into a session of its own survives the end of its turn, and becomes a
child of the agent's warden. Without /proc, nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from codex_proxy.process.warden import child_pids

START_TIME_FIELD = 19
"""The index of the start time (in clock ticks since boot) among the fields of /proc/PID/stat after the program's
name."""
RESIDENT_FIELD = 1
"""The index of the resident memory (in pages) in /proc/PID/statm."""


def seconds_since_boot() -> float:
    """Returns the present time on the clock of process start times, rounded down as they are.

    So a process that is started later never has an earlier start time.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ticks = os.sysconf("SC_CLK_TCK")
    return int(time.clock_gettime(clock) * ticks) / ticks


def children_of(pid: int) -> dict[int, float]:
    """Returns the direct children of a process: pid to start time in seconds since boot."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):  # it has ended
        for child in child_pids(pid):
            with contextlib.suppress(OSError):
                found[child] = start_time(child)
    return found


def start_time(pid: int) -> float:
    """Returns when a process was started, in seconds since boot. Raises `OSError` if there is no such process or no
    /proc.
    """
    # "pid (name) state ppid ...": the name may hold anything, parentheses and blanks too
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")


def descendants_of(pid: int) -> dict[int, float]:
    """Returns all descendants of a process: pid to start time in seconds since boot.

    Only children of a process's first thread are found. That is enough for an agent and wrappers around it.
    """
    found: dict[int, float] = {}
    generation = children_of(pid)
    while generation:
        found |= generation
        families = [children_of(child) for child in generation]
        generation = {
            child: start for each in families for child, start in each.items() if child not in found
        }
    return found


def resident_bytes(processes: dict[int, float]) -> int:
    """Returns the resident memory of the processes together, in bytes; 0 where it cannot be read.

    `processes` are pids with start times; a pid that was reused by another process does not count.
    """
    pages = 0
    for pid, start in processes.items():
        with contextlib.suppress(OSError):  # it has ended
            if start_time(pid) == start:
                pages += int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[RESIDENT_FIELD])
    return pages * os.sysconf("SC_PAGE_SIZE")
