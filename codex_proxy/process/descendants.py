"""Finds the descendants of a process, their start times and memory (Linux only), to find what a turn has left running.
A process is known by pid and start time, since pids are reused.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from codex_proxy.process.warden import child_pids

START_TIME_FIELD = 19
"""The field with the start time, in clock ticks since boot, counted behind the program's name in /proc/PID/stat."""
RESIDENT_FIELD = 1
"""The field with the resident pages in /proc/PID/statm."""


def seconds_since_boot() -> float:
    """Returns the time, rounded down to a clock tick, so that no later process has an earlier start time."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    ticks = os.sysconf("SC_CLK_TCK")
    return int(time.clock_gettime(clock) * ticks) / ticks


def children_of(pid: int) -> dict[int, float]:
    """Returns the children, each pid with its start time; none if the process has ended."""
    found: dict[int, float] = {}
    with contextlib.suppress(OSError):  # it has ended
        for child in child_pids(pid):
            with contextlib.suppress(OSError):
                found[child] = start_time(child)
    return found


def start_time(pid: int) -> float:
    """Returns a process's start, in seconds since boot. Raises `OSError`."""
    # "pid (name) state ppid ...": the name may hold anything, parentheses and blanks too
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return int(fields[START_TIME_FIELD]) / os.sysconf("SC_CLK_TCK")


def descendants_of(pid: int) -> dict[int, float]:
    """Returns the descendants, each pid with its start time. Children of other threads than the first are not found;
    agents start theirs from the first.
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
    """Sums the memory of processes (each pid with its start time). A process that cannot be read, or whose pid was
    reused, counts as 0.
    """
    pages = 0
    for pid, start in processes.items():
        with contextlib.suppress(OSError):  # it has ended
            if start_time(pid) == start:
                pages += int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[RESIDENT_FIELD])
    return pages * os.sysconf("SC_PAGE_SIZE")
