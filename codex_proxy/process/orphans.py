"""Ends what a killed warden leaves behind: processes whose parent is gone and that became this process's children.

A warden sweeps up after its child, and cannot when it is killed itself (SIGKILL, the kernel's out-of-memory killer).
Its child ends with it; what the child has started in sessions of their own does not. On Linux this process asks to
inherit such orphans (`adopt`), so that they can be found, and `OrphanSweep` kills them level by level.

This process starts nothing directly but programs of its own (the wardens, the workers that check schemas), and those
as `python -I -S ...`: any other child that lives is an orphan. Elsewhere than on Linux all of this does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

from codex_proxy.process.warden import PR_SET_CHILD_SUBREAPER, children_by_stat

SWEEP_SECONDS: Final = 5.0
"""How long a sweep looks for orphans of orphans; a process that is killed is gone in milliseconds."""
ROUND_SECONDS: Final = 0.01
_OWN_PROGRAMS: Final = b"\0".join((os.fsencode(sys.executable), b"-I", b"-S", b""))
"""How the command line of a program begins that this process has started itself."""


_adopts = False
"""Whether this process inherits orphans. One that does not has none, and may have started other programs itself."""


def adopt() -> bool:
    """Makes orphaned descendants children of this process. False where the system has no such thing."""
    global _adopts
    if sys.platform == "linux":
        _adopts = bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return _adopts


def sweep_after(loop: asyncio.AbstractEventLoop, warden: int) -> None:
    """Ends what the warden of this process id, which was killed, has left behind."""
    if _adopts:
        OrphanSweep(loop, warden).run()


class OrphanSweep:
    """The killing of everything that one dead warden has left. `session`: the warden's process id."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: int) -> None:
        self._loop = loop
        self._session = session
        self._deadline = loop.time() + SWEEP_SECONDS
        self._killed: set[int] = set()

    def run(self) -> None:
        """Kills the orphans there are now, and goes on with theirs until none is left or the time is over."""
        for pid in children_by_stat(os.getpid()):
            if pid not in self._killed and self._is_orphan(pid):
                self._killed.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._killed = {pid for pid in self._killed if not _collected(pid)}
        if self._killed and self._loop.time() < self._deadline:
            self._loop.call_later(ROUND_SECONDS, self.run)

    def _is_orphan(self, pid: int) -> bool:
        try:
            if os.getsid(pid) == self._session:
                return True  # also one that has ended and is not collected, which has no command line
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            # Between fork and exec a new child of ours still has our own command line.
            return command not in (b"", Path("/proc/self/cmdline").read_bytes()) and not command.startswith(
                _OWN_PROGRAMS
            )
        except OSError:
            return False  # it has ended meanwhile


def _collected(pid: int) -> bool:
    """Whether a killed process is gone, and nothing of it is left to be collected."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
