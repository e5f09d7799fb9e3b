"""The pool of an agent's processes: starts, ends and assigns them to turns, as `plan` decides. Turns share a process
only if they have the same key, such as its folder.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Final, Generic, TypeVar

from codex_proxy.agents.agent import AgentBase, ProcessCounts, ProcessFacts
from codex_proxy.agents.process_pool.group import FileStamp, P, PoolEntry, ProcessGroup, T
from codex_proxy.agents.process_pool.plan import PoolLimits
from codex_proxy.core.faults import STOPPING, Failure, Fault
from codex_proxy.core.tasks import keep_until_done

MEMORY_SECONDS: Final = 30.0
"""The time between two measurements of memory, which read files."""
ORPHAN_SECONDS: Final = 1.0
"""The time after a turn until its orphaned processes are looked for."""
MAX_SPARES: Final = 2
"""Maximum keys with a spare process, which waits to serve one session."""

K = TypeVar("K", bound=Hashable)


class _UnusedTransport:
    async def release(self, *, finished: bool) -> None: ...


class ProcessPool(Generic[K, P]):
    """`new_process` creates a process's object; `start_process` starts it, or raises `Fault`. `limits` returns the
    limits for a key. At most `max_idle` processes are kept without a running turn (None: any number). `sign_in_file`
    changes when somebody signs in; empty if none is known.
    """

    def __init__(
        self,
        name: str,
        new_process: Callable[[K], P],
        start_process: Callable[[P, K], Awaitable[None]],
        limits: Callable[[K], PoolLimits],
        *,
        max_idle: int | None = None,
        sign_in_file: str = "",
    ) -> None:
        self.name = name
        self.restarts = 0
        self._new_process = new_process
        self._start_process = start_process
        self._limits = limits
        self._max_idle = max_idle
        self._sign_in_file = sign_in_file
        self._groups: dict[K, ProcessGroup[P]] = {}
        self._spares: dict[K, None] = {}
        """The keys for which a process may wait, the least recently used first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._last_turn_end = -ORPHAN_SECONDS
        self._memory_measured_at = 0.0

    # --- for the agent --------------------------------------------------------------------------

    async def warm(self, key: K) -> None:
        """Starts the processes that are kept ready, and waits for one. Raises `Fault`."""
        await self.acquire(key, lambda process: _UnusedTransport())

    async def acquire(self, key: K, open: Callable[[P], T]) -> T:
        """Calls `open` with the least busy process; waits until one is free. The process must count the turn from then
        on. Raises `Fault` if too many turns wait, the server is stopping, or no process can be started.
        """
        if self.closed:
            raise Fault(STOPPING)
        group = self._group(key)
        if group.note_use():
            self._keep_spare(key)
        return await group.acquire(open)

    def add(self, key: K, process: P) -> None:
        self._group(key).add(process)

    @property
    def processes(self) -> list[P]:
        return [process for group in self._groups.values() for process in group.processes]

    def processes_of(self, key: K) -> list[P]:
        return self._groups[key].processes if key in self._groups else []

    def readiness_failure(self, key: K) -> Failure | None:
        """Returns the failure with which a new turn would end now, if so."""
        return self._groups[key].readiness_failure() if key in self._groups else None

    async def close(self) -> None:
        """Ends every process, also with running turns; waiting turns fail with STOPPING."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for group in self._groups.values():
            group.fail_waiting(STOPPING)
        processes = [entry.process for entry in self._entries()]
        # First what may still start a process, then the processes: in the other order one could be missed.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.end() for process in processes))

    def kill(self) -> None:
        for entry in self._entries():
            entry.process.kill()

    # --- for the groups -------------------------------------------------------------------------

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def sign_in_stamp(self) -> FileStamp | None:
        try:
            stat = os.stat(self._sign_in_file)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns

    def turn_finished(self) -> None:
        self._last_turn_end = self.now()
        self.schedule_tick(ORPHAN_SECONDS)
        if self._max_idle is not None:
            self._retire_unused(self._max_idle)

    def schedule_tick(self, seconds: float) -> None:
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._tick)

    # --- looking after the processes ------------------------------------------------------------

    def _group(self, key: K) -> ProcessGroup[P]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ProcessGroup(
                self,
                lambda: self._new_process(key),
                lambda process: self._start_process(process, key),
                self._limits(key),
            )
        return group

    def _keep_spare(self, key: K) -> None:
        self._spares.pop(key, None)
        self._spares[key] = None
        self._groups[key].keeps_spare = True
        if len(self._spares) > MAX_SPARES:
            group = self._groups[next(iter(self._spares))]
            del self._spares[next(iter(self._spares))]
            group.keeps_spare = False
            group.maintain()

    def _entries(self) -> list[PoolEntry[P]]:
        return [entry for group in self._groups.values() for entry in group.entries.values()]

    def _tick(self) -> None:
        self._timer = None
        self._measure_memory()
        for key, group in list(self._groups.items()):
            group.drain_worn()
            group.on_change()
            if group.is_unused:
                del self._groups[key]
                self._spares.pop(key, None)
        since = self.now() - self._last_turn_end
        if since < ORPHAN_SECONDS:  # of the last turn it was too early
            self.schedule_tick(ORPHAN_SECONDS - since)

    def _retire_unused(self, max_idle: int) -> None:
        needed = sum(group.processes_needed for group in self._groups.values())
        idle = [entry for group in self._groups.values() for entry in group.idle_entries]
        idle.sort(key=lambda entry: entry.process.last_used)
        unused = idle[: -max(1, max_idle - needed)]
        for entry in unused:
            entry.drain()
        if unused:
            for group in list(self._groups.values()):
                group.maintain()

    def _measure_memory(self) -> None:
        now = self.now()
        if now - self._memory_measured_at >= MEMORY_SECONDS:
            self._memory_measured_at = now
            for entry in self._entries():
                entry.memory = entry.process.memory


class PooledAgent(AgentBase, Generic[K, P]):
    pool: ProcessPool[K, P]

    def processes(self) -> ProcessCounts:
        processes = self.pool.processes
        busy = sum(1 for process in processes if process.turns_running)
        return ProcessCounts(idle=len(processes) - busy, busy=busy, restarts=self.pool.restarts)

    def each_process(self) -> tuple[ProcessFacts, ...]:
        return tuple(
            ProcessFacts(each.pid, each.turns_running, each.turns_served, each.memory)
            for each in self.pool.processes
            if each.pid is not None
        )

    async def close(self) -> None:
        await self.pool.close()

    def kill(self) -> None:
        self.pool.kill()
