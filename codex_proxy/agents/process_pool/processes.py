"""The processes of a pool: what each has served and uses, and how it ended; and those with one key, with the turns that
wait for them, in order of arrival. Nothing here starts or ends a process by itself: the pool does.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.process_pool.plan import (
    PoolLimits,
    ProcessInfo,
    ProcessState,
    RestartBackoff,
    is_stable,
)
from codex_proxy.agents.sessions.session import ended_from
from codex_proxy.agents.shared.failures import describe_exit
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.process.child import Child, Exit
from codex_proxy.process.own_process import children_of, descendants_of, resident_bytes, seconds_since_boot

RENEWED = Ended(stderr_tail="The process was renewed before the turn began on it.")
"""The end of a session that has to go on in another process."""


class PooledProcess:
    def __init__(self) -> None:
        self.exit: Exit | None = None
        self.unhealthy = False
        """Whether it gets no more turns, because it violated the protocol or did not finish a turn."""
        self.on_change: Callable[[], None] | None = None
        """Called when it has ended, becomes unhealthy, or a turn begins or ends."""
        self.turns_served = 0
        self.is_taken = False
        """Whether the process serves one session, which it already has, and ends with it."""
        self.has_waited = False
        """Whether the process was ready before its newest turn."""
        self.completed_turn = False
        """Whether a turn has ended without a failure of the process."""
        self.ended_during_turn = False
        self.last_used = -math.inf
        """When a turn last began or ended, by the event loop's clock."""
        self._child: Child | None = None
        self._turn_starts: dict[int, float] = {}
        """When turns began, by channel, in seconds since boot."""
        self._agent_pids: frozenset[int] = frozenset()
        """The agent's processes by pid: the children that the warden had before the first turn."""
        self._agent_processes: dict[int, float] = {}
        """The agent and any wrapper: each pid with its start time."""

    @property
    def alive(self) -> bool:
        return self.exit is None and self._child is not None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def turns_running(self) -> int:
        return len(self._turn_starts)

    @property
    def signed_in(self) -> bool:
        """Whether somebody was signed in at the process's start, as far as the process reports that."""
        return True

    @property
    def is_held(self) -> bool:
        """Whether the process can take no turn although none runs: its session waits for outputs."""
        return False

    @property
    def exit_suffix(self) -> str:
        """How the process ended, as a sentence's end: ` (exit code 3).`; only `.` if it runs."""
        return "." if self.exit is None else f"{describe_exit(ended_from(self.exit))}."

    @property
    def memory(self) -> int:
        """The agent's resident bytes, read from /proc each time."""
        return resident_bytes(self._agent_processes) if self.alive else 0

    @property
    def has_orphans(self) -> bool:
        """Whether a process of an ended turn still runs: without its parent, and older than every running turn."""
        if self._child is None or not self.alive:
            return False
        oldest_turn = min(self._turn_starts.values(), default=math.inf)
        return any(
            started_at < oldest_turn
            for pid, started_at in children_of(self._child.pid).items()
            if pid not in self._agent_pids
        )

    def end_idle_channels(self) -> None:
        """Ends the sessions that only wait for a later turn."""

    def end_silent_channels(self) -> None:
        """Ends the sessions on which nothing has come since their turn began."""

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume()

    async def end(self) -> None:
        if self._child is not None:
            await self._child.end()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    # --- for the subclass -----------------------------------------------------------------------

    def _note_agent(self, child: Child) -> None:
        self._agent_pids = frozenset(children_of(child.pid))
        self._agent_processes = descendants_of(child.pid)

    def _serve(self, channel: int) -> int:
        """Counts a turn on a channel, which it returns."""
        self.turns_served += 1
        self._turn_began(channel)
        return channel

    def _turn_began(self, channel: int) -> None:
        self._turn_starts[channel] = seconds_since_boot()
        self.last_used = asyncio.get_running_loop().time()

    def _turn_ended(self, channel: int) -> None:
        self._turn_starts.pop(channel, None)
        self.last_used = asyncio.get_running_loop().time()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()


FileStamp = tuple[int, int, int]


def file_stamp(path: str) -> FileStamp | None:
    """Returns what changes with a file; None if there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class PooledTransport(Protocol):
    async def release(self, *, finished: bool) -> None:
        """Ends the use of the process. `finished` False: the agent may still work, so it gets no new turns."""


K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=PooledProcess)
T = TypeVar("T", bound=PooledTransport)


class PoolEntry(Generic[P]):
    def __init__(self, number: int, process: P, started_at: float, sign_in: FileStamp | None) -> None:
        self.number = number
        self.process = process
        self.started_at = started_at
        self.ready_at = math.inf
        """The start's end, by the monotonic clock; infinity before."""
        self.memory = 0
        self.sign_in = sign_in
        """The stamp of the sign-in file at the process's start."""
        self.state = ProcessState.STARTING
        self.is_ending = False

    def drain(self) -> None:
        """Gives the process no more turns, and ends its idle sessions."""
        self.state = ProcessState.DRAINING
        self.process.end_idle_channels()


class ProcessGroup(Generic[K, P]):
    def __init__(self, key: K, limits: PoolLimits) -> None:
        self.key = key
        self.limits = limits
        self.serves_once = limits.serves_once
        self.keeps_spare = False
        """Whether a process may wait for the next turn."""
        self.uses: deque[float] = deque(maxlen=limits.spare_uses)
        self.spare_from = math.inf
        """When the next spare process may be started."""
        self.entries: dict[int, PoolEntry[P]] = {}
        self.waiting: deque[tuple[asyncio.Future[Any], Callable[[P], Any]]] = deque()
        self.backoff = RestartBackoff()
        self.last_crash: Failure | None = None
        """How the last process that ended unexpectedly has ended."""
        self.last_failure: Failure | None = None

    # --- the processes --------------------------------------------------------------------------

    @property
    def processes(self) -> list[P]:
        return [each.process for each in self.entries.values() if each.state is not ProcessState.STARTING]

    @property
    def spares(self) -> list[PoolEntry[P]]:
        return [
            each
            for each in self.entries.values()
            if each.state is ProcessState.READY and not each.process.is_taken
        ]

    @property
    def has_usable_process(self) -> bool:
        starting = (each for each in self.entries.values() if each.state is ProcessState.STARTING)
        return bool(self.spares) or any(starting)

    @property
    def idle_entries(self) -> list[PoolEntry[P]]:
        """Processes that only keep sessions for later turns."""
        if self.limits.min_processes:
            return []
        ready = [each for each in self.entries.values() if each.state is ProcessState.READY]
        if self.serves_once:
            ready = [each for each in ready if each.process.is_taken]
        return [each for each in ready if not each.process.turns_running]

    @property
    def processes_needed(self) -> int:
        return len(self.spares) if self.serves_once else self.limits.min_processes

    def infos(self, now: float) -> list[ProcessInfo]:
        """Returns a `ProcessInfo` of each process, from which `plan` decides."""
        return [
            ProcessInfo(
                each.number,
                each.state,
                each.process.turns_running,
                each.process.turns_served,
                now - each.started_at,
                each.memory,
                each.process.is_held,
            )
            for each in self.entries.values()
            if each.state is not ProcessState.READY or not each.process.is_taken
        ]

    def drain_unfit(self) -> None:
        """Gives no more turns to processes on which turns have left other programs running (the warden ends these with
        the process), and to processes that only keep a session and use more memory than the limit.
        """
        limit = self.limits.max_memory
        for each in self.entries.values():
            process = each.process
            too_large = process.is_taken and not process.turns_running and 0 < limit <= each.memory
            if each.state is ProcessState.READY and (too_large or process.has_orphans):
                each.drain()

    def is_unused(self, now: float) -> bool:
        """Whether the group has no processes, no minimum, no recent use and no delayed start: then no turn waits."""
        if self.entries or self.limits.min_processes:
            return False
        was_used = bool(self.uses) and now - self.uses[-1] < self.limits.max_age
        return not was_used and not self.backoff.pause_seconds(now)

    def readiness_failure(self, now: float) -> Failure | None:
        """Returns the failure with which a new turn would end now, if so."""
        if self.last_failure is not None:
            return self.last_failure
        steady = any(is_stable(now - each.ready_at) for each in self.entries.values())
        if (self.backoff.is_looping and not steady) or (
            self.backoff.pause_seconds(now) and not self.has_usable_process
        ):
            return self.last_crash
        return None

    # --- the waiting turns ----------------------------------------------------------------------

    def serve_next(self, process: P) -> None:
        future, open = self.waiting.popleft()
        if future.done():
            return
        try:
            future.set_result(open(process))
        except Exception as error:  # noqa: BLE001 - it belongs to the turn that waits
            future.set_exception(error)

    def fail_next(self, failure: Failure) -> None:
        future, _ = self.waiting.popleft()
        if not future.done():
            future.set_exception(Fault(failure))

    def fail_waiting(self, failure: Failure) -> None:
        while self.waiting:
            self.fail_next(failure)
