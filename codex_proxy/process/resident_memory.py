"""What a process and those it was started with hold in memory. Where there is no /proc, nothing is known of it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from codex_proxy.process.descendants import children_of, started

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
