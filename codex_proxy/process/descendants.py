"""Finds the descendants of a process, when each was started, and how much memory they use. Linux only.

A process is identified by its pid and start time together, since pids are reused. The proxy uses this to find the
processes that a turn has left running: one that was forked twice and moved to a session of its own survives the end
of its turn, and becomes a child of the agent's warden. On systems without /proc, nothing is found.
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
    """Returns the present time in seconds since boot, rounded down to a clock tick (usually 10 ms).

    The kernel rounds the start times of processes in the same way, so a process that is started after this call
    never has an earlier start time.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ticks = os.sysconf("SC_CLK_TCK")
    return int(time.clock_gettime(clock) * ticks) / ticks


def children_of(pid: int) -> dict[int, float]:
    """Returns the direct children of a process: pid to start time in seconds since boot. Empty if the process has
    ended.
    """
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

    Children that were started by another thread than a process's first one are not found. An agent and the programs
    that wrap it start theirs from the first thread.
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
    """Returns the resident memory of the processes together, in bytes. A process whose memory cannot be read counts
    as 0.

    `processes` maps pids to start times; a pid that belongs to another process by now does not count.
    """
    pages = 0
    for pid, start in processes.items():
        with contextlib.suppress(OSError):  # it has ended
            if start_time(pid) == start:
                pages += int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[RESIDENT_FIELD])
    return pages * os.sysconf("SC_PAGE_SIZE")
