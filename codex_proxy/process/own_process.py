"""Settings of the proxy's own process in the kernel, and the orphaned processes that it gets by one of them. Linux
only.

- `make_undumpable`: the agent's commands run as the same user, who may read the environment and memory of the
  user's other processes. Those of the proxy contain its clients' keys.
- `adopt_orphans`: a warden kills the processes that its child has started, unless it is itself killed (SIGKILL, out
  of memory). Then its child ends too (parent-death signal), and the other processes become children of the proxy,
  where `OrphanSweep` finds and kills them.
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

from codex_proxy.process.warden import PR_SET_CHILD_SUBREAPER, child_pids_by_stat

KILL_SECONDS: Final = 5.0
"""Seconds for which orphans are looked for again, since a killed orphan may leave further ones. A killed process
ends within milliseconds."""
KILL_ROUND_SECONDS: Final = 0.01
"""Seconds between two rounds of looking for orphans."""
_OWN_PROGRAMS: Final = b"\0".join((os.fsencode(sys.executable), b"-I", b"-S", b""))
"""The first bytes of the command line of the proxy's own programs: the wardens and the workers."""


PR_SET_DUMPABLE: Final = 4

_inherits_orphans = False
"""Whether orphans become children of this process. If not, its children are never taken for orphans."""


def make_undumpable() -> bool:
    """Forbids other processes of the same user to read this one's memory and environment. It does not hold against
    root.

    Returns False on other systems than Linux. Children are not affected: `exec` resets it.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def adopt_orphans() -> bool:
    """Makes orphaned descendants children of this process (as a subreaper). Returns False if the system does not
    support that.
    """
    global _inherits_orphans
    if sys.platform == "linux":
        _inherits_orphans = bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return _inherits_orphans


def kill_orphans_of(loop: asyncio.AbstractEventLoop, warden: int) -> None:
    """Kills the processes that a killed warden has left. `warden` is its process id."""
    if _inherits_orphans:
        OrphanSweep(loop, warden).run()


class OrphanSweep:
    """Kills the processes that one killed warden has left. `session` is the warden's process id, which is also that
    of the session.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, session: int) -> None:
        self._loop = loop
        self._session = session
        self._deadline = loop.time() + KILL_SECONDS
        self._killed: set[int] = set()

    def run(self) -> None:
        """Kills the present orphans. Repeats that until none is left, or `KILL_SECONDS` are over."""
        for pid in child_pids_by_stat(os.getpid()):
            if pid not in self._killed and self._is_orphan(pid):
                self._killed.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._killed = {pid for pid in self._killed if not _reaped(pid)}
        if self._killed and self._loop.time() < self._deadline:
            self._loop.call_later(KILL_ROUND_SECONDS, self.run)

    def _is_orphan(self, pid: int) -> bool:
        """Returns whether a child of this process is an orphan: of the warden's session, or not a program of the
        proxy.
        """
        try:
            if os.getsid(pid) == self._session:
                return (
                    True  # asked first: a process that has ended but was not waited for has no command line
                )
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            # Between fork and exec, a new child of the proxy still has the proxy's own command line.
            return command not in (b"", Path("/proc/self/cmdline").read_bytes()) and not command.startswith(
                _OWN_PROGRAMS
            )
        except OSError:
            return False  # it has ended meanwhile


def _reaped(pid: int) -> bool:
    """Returns whether a killed process has ended and was waited for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
