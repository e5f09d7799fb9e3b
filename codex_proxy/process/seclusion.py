"""Keeps other processes of the same user from looking into this one.

This process's environment and memory hold the keys of its clients. What the agent runs belongs to the same user, who
may read both of any process (`/proc/PID/environ`, a debugger), unless the process asks the kernel not to allow it.
Linux only; it does not hold against root. Children are not secluded: an `exec` ends it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

PR_SET_DUMPABLE: Final = 4


def seclude() -> bool:
    """Asks the kernel. False where it has no such thing."""
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
