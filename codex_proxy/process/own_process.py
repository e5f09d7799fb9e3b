"""Settings of the server's own process, its event loop, its descendants, and the killing of orphans.

If a warden is killed, its child is, too (parent-death signal), and the descendants become children of the server
(`adopt_orphans`), where `OrphanSweep` kills them. Descendants are found on Linux only; a process is known by pid and
start time, since pids are reused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import math
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import structlog

from codex_proxy.core.faults import shortage_of
from codex_proxy.process.warden import (
    PR_SET_CHILD_SUBREAPER,
    SPAWNER_NAME,
    WARDEN_NAME,
    child_pids,
    child_pids_by_stat,
)

KILL_SECONDS: Final = 5.0
"""The time for which orphans are looked for: a killed one may leave others."""
KILL_ROUND_SECONDS: Final = 0.01
_OWN_PROGRAMS: Final = b"\0".join((os.fsencode(sys.executable), b"-I", b"-S", b""))
"""The beginnings of the command lines of wardens and workers."""
_NAME_BYTES: Final = 15
"""The longest process name in Linux."""
_OWN_NAMES: Final = frozenset(
    (WARDEN_NAME, SPAWNER_NAME, os.fsencode(os.path.basename(sys.executable))[:_NAME_BYTES])
)

PR_SET_DUMPABLE: Final = 4
M_MMAP_THRESHOLD: Final = -3
LARGE_BUFFER: Final = 1 << 20

log = structlog.get_logger(__name__)

_inherits_orphans = False
"""Whether orphans become children of this process; otherwise its children are no orphans."""


def memory_bytes(root: Path = Path("/")) -> int:
    """Returns the machine's memory, or the lowest limit of the control groups (versions 1 and 2) that this process is
    in. `root`: the folder that has `proc` and `sys`.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _memory_limit_files(root):
        with contextlib.suppress(OSError, ValueError):  # no such file; "max": no limit
            limits.append(int(file.read_text("ascii")))
    return min(limits)


def _memory_limit_files(root: Path) -> Iterator[Path]:
    """Yields the files of this process's groups and of those above, which limit it as well. In a container the path
    may be the one outside of it, and the group is then at the top.
    """
    groups = root / "sys/fs/cgroup"
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if not controllers:
            top, name = groups, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = groups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        yield from (each / name for each in (group, *group.parents) if each.is_relative_to(top))


def make_undumpable() -> bool:
    """Keeps the user's other processes, such as the agent's commands, from reading this process's memory, with its
    clients' keys, and environment. Returns whether that succeeded (Linux).
    """
    if sys.platform != "linux":
        return False
    # Children are not affected: `exec` resets the setting.
    return bool(ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def return_large_buffers() -> bool:
    """Makes glibc map each large buffer by itself, so that its memory is returned when it is freed: in the heap, small
    objects after it would keep it. Returns False if the C library has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGE_BUFFER))


def adopt_orphans() -> bool:
    """Makes orphaned descendants children of this process (subreaper). Returns whether the system can."""
    global _inherits_orphans
    if sys.platform == "linux":
        _inherits_orphans = bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return _inherits_orphans


MAX_LOOKUPS: Final = 64
"""Maximum number of names that are looked up at once."""
COMPLAINT_SECONDS: Final = 60.0
"""Seconds between two log lines about connections that cannot be accepted."""


class EventLoop(asyncio.SelectorEventLoop):
    """The server's event loop. It reads what has come before time limits expire, and looks names up in threads of their
    own: a name server that does not answer holds up neither other work in threads nor the end of the process.
    """

    def __init__(self) -> None:
        super().__init__(_Selector())
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._complained_at = -math.inf

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Logs at most once a minute that connections cannot be accepted: asyncio reports the same error for each
        connection that may be waiting, a hundred times. Other errors are handled as usual.
        """
        shortage = shortage_of(context.get("exception"))
        if not shortage or "socket" not in context:
            super().call_exception_handler(context)
        elif self.time() - self._complained_at >= COMPLAINT_SECONDS:
            self._complained_at = self.time()
            log.error("connections_not_accepted", reason=shortage)

    async def getaddrinfo(self, *where: Any, **how: Any) -> list[Any]:
        await self._lookups.acquire()
        answer: Future[list[Any]] = Future()
        answer.set_running_or_notify_cancel()

        def look_up() -> None:
            try:
                answer.set_result(socket.getaddrinfo(*where, **how))
            except Exception as error:  # noqa: BLE001 - it is raised where the answer is awaited
                answer.set_exception(error)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.call_soon_threadsafe(self._lookups.release)

        try:
            threading.Thread(target=look_up, name="name-lookup", daemon=True).start()
        except RuntimeError:
            self._lookups.release()
            raise
        return await asyncio.wrap_future(answer)


class _Selector(selectors.DefaultSelector):
    """Looks once more at the end of a wait. If the process was stopped (Ctrl-Z), Python only looks at the clock when it
    goes on, and the agents would seem to have been silent.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout) or (super().select(0) if timeout else [])


def kill_orphans_of(loop: asyncio.AbstractEventLoop, warden: int, code: int) -> None:
    """Starts an `OrphanSweep` if the warden that ended with this exit code was killed (a negative code), and so could
    not kill the child's descendants. Needs `adopt_orphans`.
    """
    if code < 0 and _inherits_orphans:
        OrphanSweep(loop, warden).run()


class OrphanSweep:
    """Kills the processes that a killed warden has left. `session` is the warden's process id."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: int) -> None:
        self._loop = loop
        self._session = session
        self._deadline = loop.time() + KILL_SECONDS
        self._killed: set[int] = set()

    def run(self) -> None:
        """Kills orphans, and calls itself again until none is left or `KILL_SECONDS` are over."""
        again = False
        for pid in child_pids_by_stat(os.getpid()):
            orphan = pid not in self._killed and self._is_orphan(pid)
            if orphan:
                self._killed.add(pid)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            again |= orphan is None
        # What has just ended may have left children after this look at them.
        again |= bool(self._killed)
        self._killed = {pid for pid in self._killed if not _reap(pid)}
        if again and self._loop.time() < self._deadline:
            self._loop.call_later(KILL_ROUND_SECONDS, self.run)

    def _is_orphan(self, pid: int) -> bool | None:
        """Whether a child of this process is an orphan: of the warden's session, or of no program that the server
        starts. None: not known yet.
        """
        try:
            if os.getsid(pid) == self._session:
                return True
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if command:
                # Between fork and exec, a new child of the server still has the server's own command line.
                return command != Path("/proc/self/cmdline").read_bytes() and not command.startswith(
                    _OWN_PROGRAMS
                )
            # A process has no command line while the kernel loads its program, and none once it has ended.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return None
            name = Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n")
            return name not in _OWN_NAMES and name != Path("/proc/self/comm").read_bytes().removesuffix(b"\n")
        except OSError:
            return False  # it has ended meanwhile


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


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
