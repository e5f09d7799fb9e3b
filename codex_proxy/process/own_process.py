"""Settings of the proxy's own process, and the killing of orphaned processes. Linux only.

- `make_undumpable`: the agent's commands run as the same user, who may read the environment and memory of the
  user's other processes. The proxy's memory contains its clients' keys.
- `return_large_buffers`: the memory of a large request or answer goes back to the system when it is over.
- `adopt_orphans`: a warden (`process/warden.py`) kills the processes that its child has started, unless the warden
  itself is killed (SIGKILL, out of memory). Then its child is killed too (parent-death signal), and the child's
  descendants become children of the proxy, where `OrphanSweep` finds and kills them.
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
M_MMAP_THRESHOLD: Final = -3
LARGE_BUFFER: Final = 1 << 20
"""Bytes from which on a buffer is mapped by itself."""

_inherits_orphans = False
"""Whether orphans become children of this process. If not, its children are never taken for orphans."""


def make_undumpable() -> bool:
    """Prevents other processes of the same user from reading this process's memory and environment. Does not stop
    root.

    Returns whether that succeeded; False on systems other than Linux. Child processes are not affected, because
    `exec` resets the setting.
    """
    if sys.platform != "linux":
        return False
    return bool(ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def return_large_buffers() -> bool:
    """Makes glibc map each buffer of `LARGE_BUFFER` bytes and more by itself, so that its memory is returned as soon
    as it is freed. Returns False if the C library has no such setting.

    By default glibc takes buffers of up to 32 MiB from its heap once a buffer as large was freed, and small objects
    behind them keep the heap from shrinking: the server would grow by tens of MiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER))


def adopt_orphans() -> bool:
    """Makes orphaned descendants children of this process (as a subreaper). Returns False if the system does not
    support that.
    """
    global _inherits_orphans
    if sys.platform == "linux":
        _inherits_orphans = bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return _inherits_orphans


def kill_orphans_of(loop: asyncio.AbstractEventLoop, warden: int) -> None:
    """Starts an `OrphanSweep`, which kills the processes that a warden's child has started, after the warden itself
    was killed. `warden` is its process id. Does nothing if `adopt_orphans` was not called or did not succeed.
    """
    if _inherits_orphans:
        OrphanSweep(loop, warden).run()


class OrphanSweep:
    """Kills the processes that are left when a warden was killed. `session` is the id of the warden's session,
    which is the warden's process id.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, session: int) -> None:
        self._loop = loop
        self._session = session
        self._deadline = loop.time() + KILL_SECONDS
        self._killed: set[int] = set()

    def run(self) -> None:
        """Kills the orphans that exist now, and calls itself again after `KILL_ROUND_SECONDS`, until no killed
        orphan is left or `KILL_SECONDS` are over.
        """
        for pid in child_pids_by_stat(os.getpid()):
            if pid not in self._killed and self._is_orphan(pid):
                self._killed.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        self._killed = {pid for pid in self._killed if not _reaped(pid)}
        if self._killed and self._loop.time() < self._deadline:
            self._loop.call_later(KILL_ROUND_SECONDS, self.run)

    def _is_orphan(self, pid: int) -> bool:
        """Returns whether a child of this process is an orphan: it belongs to the warden's session, or its command
        line is neither the proxy's own nor that of a program that the proxy starts (a warden, a worker).
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
    """Waits for a killed process without blocking. Returns True if it has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
