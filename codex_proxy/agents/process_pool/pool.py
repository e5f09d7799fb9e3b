"""The pool of an agent's processes: starts, ends and assigns them to turns, as `plan` decides. Turns share a process
only if they have the same key, such as its folder. Failed starts delay the next; meanwhile turns without a process fail
at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, Final, Generic

import msgspec
import structlog

from codex_proxy.agents.agent import AgentBase, ProcessCounts, ProcessFacts
from codex_proxy.agents.process_pool.plan import PoolLimits, ProcessState, assign, keeps_spare, maintain
from codex_proxy.agents.process_pool.processes import FileStamp, K, P, PoolEntry, ProcessGroup, T, file_stamp
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.interfaces import keep_until_done

log = structlog.get_logger(__name__)

MAINTENANCE_SECONDS = 30.0
"""The time between two maintenances without another cause."""
RECHECK_SECONDS = 10.0
"""The age at which a process that found no sign-in is replaced, to look again: a sign-in in a keyring changes no file.
"""
MEMORY_SECONDS: Final = 30.0
"""The time between two measurements of memory, which read files."""
ORPHAN_SECONDS: Final = 1.0
"""The time after a turn until its orphaned processes are looked for."""
MAX_SPARES: Final = 2
"""Maximum keys with a spare process, which waits to serve one session."""

BROKEN_START = Failure(FaultKind.INTERNAL, "The agent could not be started. The server's log has the reason.")
KEEPS_ENDING_TEXT = "The agent's process keeps exiting and is restarted after a pause. It ended"

START_WATCHER: Final[ContextVar[Callable[[str], AbstractContextManager[None]] | None]] = ContextVar(
    "start_watcher", default=None
)
"""A function that is called with the agent's name. Its context manager is entered while a process starts for the turn
of this context.
"""


class _UnusedTransport:
    async def release(self, *, finished: bool) -> None: ...


class ProcessPool(Generic[K, P]):
    """The processes of one agent, by key. `new_process` creates a process's object; `start_process` starts it, or
    raises `Fault`. `limits` returns the limits for a key. At most `max_idle` processes are kept without a running turn
    (None: any number). `sign_in_file` changes when somebody signs in; empty if none is known.
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
        self._groups: dict[K, ProcessGroup[K, P]] = {}
        self._spare_keys: OrderedDict[K, None] = OrderedDict()
        """The keys for which a process may wait, the least recently used first."""
        self._numbers = count(1)
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
        group, now = self._group(key), self.now()
        self._note_use(group, now)
        self._drain_outdated(group, now)
        number, waiting = assign(group.infos(now), group.limits), len(group.waiting)
        if number is not None:
            process = group.entries[number].process
            process.has_waited = True
            transport = open(process)
            if group.serves_once:  # the next process is started when this turn has ended
                return transport
            try:
                self._maintain(group)
            except Exception:  # no fault of this turn, which has its transport
                log.exception("pool_internal_error")
            return transport
        if waiting >= group.limits.max_waiting:
            message = f"{waiting} turns are already waiting for the agent"
            raise Fault.of(FaultKind.UNAVAILABLE, message, retry_after=1)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        group.waiting.append((future, open))
        try:
            self._maintain(group)
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                await future.result().release(finished=True)
            raise
        finally:
            if (future, open) in group.waiting:
                group.waiting.remove((future, open))
            del future  # its exception holds this frame: no cycle stays behind

    def add(self, key: K, process: P) -> None:
        group, entry = self._group(key), self._new_entry(process, self.now())
        group.entries[entry.number] = entry
        self._on_started(group, entry)

    @property
    def processes(self) -> list[P]:
        return [process for group in self._groups.values() for process in group.processes]

    def processes_of(self, key: K) -> list[P]:
        return self._groups[key].processes if key in self._groups else []

    def readiness_failure(self, key: K) -> Failure | None:
        """Returns the failure with which a new turn would end now, if so."""
        return self._groups[key].readiness_failure(self.now()) if key in self._groups else None

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

    # --- performing the plan --------------------------------------------------------------------

    def _on_change(self, group: ProcessGroup[K, P]) -> None:
        """Removes ended processes, assigns waiting turns, then starts and ends processes as needed."""
        for each in list(group.entries.values()):
            if each.process.completed_turn:
                group.backoff = group.backoff.after_success(each.started_at)
            if each.state is not ProcessState.STARTING and not each.process.alive:
                del group.entries[each.number]
                if each.state is ProcessState.READY and not each.process.is_taken and not self.closed:
                    self.restarts += 1
                    self._note_crash(group, each)
            elif each.state is ProcessState.READY and each.process.unhealthy:
                each.drain()
                each.process.end_silent_channels()
        while group.waiting and (number := assign(group.infos(self.now()), group.limits)) is not None:
            group.serve_next(group.entries[number].process)
        self._maintain(group)

    def _maintain(self, group: ProcessGroup[K, P]) -> None:
        if self.closed:
            return
        self.schedule_tick(MAINTENANCE_SECONDS)  # first: whatever breaks here, the next look finds it
        now, limits = self.now(), group.limits
        if group.serves_once:
            if not (group.keeps_spare and keeps_spare(group.uses, now, limits)):
                for each in group.spares:
                    each.drain()
            elif now >= group.spare_from:
                limits = msgspec.structs.replace(limits, min_processes=1)
        maintenance = maintain(group.infos(now), limits, len(group.waiting))
        for number in maintenance.drain:
            group.entries[number].drain()
        for number in maintenance.retire:
            leaving = group.entries[number]
            leaving.drain()
            if not leaving.is_ending:
                leaving.is_ending = True
                self._spawn(self._end(group, leaving))
        if maintenance.start:
            self._start_another(group, now)

    def _on_turn_change(self, group: ProcessGroup[K, P]) -> None:
        self._last_turn_end = self.now()
        group.spare_from = min(group.spare_from, self._last_turn_end)
        self._on_change(group)
        self.schedule_tick(ORPHAN_SECONDS)
        if self._max_idle is not None:
            self._retire_unused(self._max_idle)

    def _note_use(self, group: ProcessGroup[K, P], now: float) -> None:
        """Notes a turn, and lets a spare process wait for the next one, in the place of another key's if need be."""
        limits = group.limits
        if not limits.spare_uses:
            return
        group.uses.append(now)
        group.spare_from = now + limits.spare_delay
        if limits.spare_delay < math.inf:
            self.schedule_tick(limits.spare_delay)
        if not keeps_spare(group.uses, now, limits):
            return
        group.keeps_spare = True
        self._spare_keys[group.key] = None
        self._spare_keys.move_to_end(group.key)
        if len(self._spare_keys) > MAX_SPARES:
            other = self._groups[self._spare_keys.popitem(last=False)[0]]
            other.keeps_spare = False
            self._maintain(other)

    def _drain_outdated(self, group: ProcessGroup[K, P], now: float) -> None:
        """Drains processes that have waited too long for their only turn, or found no sign-in if somebody may have
        signed in since.
        """
        for each in group.spares:
            if not each.process.alive:
                self._on_change(group)
            elif self._is_outdated(each, group, now):
                each.drain()

    def _is_outdated(self, entry: PoolEntry[P], group: ProcessGroup[K, P], now: float) -> bool:
        age = now - entry.started_at
        if group.serves_once and age >= group.limits.max_age:
            return True
        signed_in = entry.process.signed_in
        return not signed_in and (age > RECHECK_SECONDS or entry.sign_in != self._sign_in_stamp())

    # --- starts and ends ------------------------------------------------------------------------

    def _start_another(self, group: ProcessGroup[K, P], now: float) -> None:
        """Starts a process. While starts are delayed, waiting turns that no running process can serve fail instead,
        with the last failure and the seconds until the next start. A turn with its own process is not delayed.
        """
        pause = group.backoff.pause_seconds(now)
        if not pause or (group.serves_once and group.waiting):
            starting = self._new_entry(self._new_process(group.key), now)
            self._spawn(self._start(group, starting))
            group.entries[starting.number] = starting  # not before: without its task it would start for ever
            return
        self.schedule_tick(pause)
        reason = group.last_failure or group.last_crash
        if reason is not None and not group.has_usable_process:
            group.fail_waiting(msgspec.structs.replace(reason, retry_after=pause))

    def _new_entry(self, process: P, now: float) -> PoolEntry[P]:
        return PoolEntry(next(self._numbers), process, now, self._sign_in_stamp())

    async def _start(self, group: ProcessGroup[K, P], starting: PoolEntry[P]) -> None:
        watch = START_WATCHER.get()
        try:
            with nullcontext() if watch is None else watch(self.name):
                await self._start_process(starting.process, group.key)
            self._on_started(group, starting)
        except Fault as fault:
            self._on_start_failed(group, starting, fault.failure)
        except Exception:
            log.exception("agent_start_internal_error")
            starting.process.kill()
            self._on_start_failed(group, starting, BROKEN_START)
        except BaseException:
            starting.process.kill()
            group.entries.pop(starting.number, None)
            raise

    def _on_started(self, group: ProcessGroup[K, P], entry: PoolEntry[P]) -> None:
        group.last_failure = None
        entry.state = ProcessState.READY
        entry.ready_at = self.now()
        entry.process.on_change = partial(self._on_turn_change, group)
        if group.serves_once:
            self.schedule_tick(group.limits.max_age)
            if group.waiting and not entry.process.alive:
                group.serve_next(entry.process)  # its turn learns how it has ended
        self._on_change(group)

    def _on_start_failed(self, group: ProcessGroup[K, P], starting: PoolEntry[P], failure: Failure) -> None:
        group.entries.pop(starting.number, None)
        group.backoff = group.backoff.after_failure(self.now())
        group.last_failure = failure
        log.warning(
            "agent_start_failed",
            agent=self.name,
            reason=failure.unquoted,
            in_a_row=group.backoff.failures,
            said=failure.message,
        )
        if group.serves_once and group.waiting:
            group.fail_next(failure)  # each turn has a start of its own
        elif not group.has_usable_process:  # else somebody may still come and take who waits
            group.fail_waiting(failure)
        self._maintain(group)

    def _note_crash(self, group: ProcessGroup[K, P], entry: PoolEntry[P]) -> None:
        now, process = self.now(), entry.process
        lived = now - entry.ready_at
        group.backoff = group.backoff.after_failure(now, lived, during_turn=process.ended_during_turn)
        how = process.exit_suffix
        group.last_crash = Failure(FaultKind.UNAVAILABLE, f"{KEEPS_ENDING_TEXT}{how}")
        log.warning("agent_ended", agent=self.name, reason=how.strip(" .()"), in_a_row=group.backoff.failures)

    async def _end(self, group: ProcessGroup[K, P], leaving: PoolEntry[P]) -> None:
        await leaving.process.end()
        group.entries.pop(leaving.number, None)
        self._on_change(group)

    # --- looking after the processes ------------------------------------------------------------

    def schedule_tick(self, seconds: float) -> None:
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._groups:
            self.schedule_tick(MAINTENANCE_SECONDS)
        self._measure_memory()
        for key, group in list(self._groups.items()):
            group.drain_unfit()
            self._on_change(group)
            if group.is_unused(self.now()):
                del self._groups[key]
                self._spare_keys.pop(key, None)
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
                self._maintain(group)

    def _measure_memory(self) -> None:
        now = self.now()
        if now - self._memory_measured_at >= MEMORY_SECONDS:
            self._memory_measured_at = now
            for entry in self._entries():
                entry.memory = entry.process.memory

    def _group(self, key: K) -> ProcessGroup[K, P]:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = ProcessGroup(key, self._limits(key))
        return group

    def _entries(self) -> list[PoolEntry[P]]:
        return [entry for group in self._groups.values() for entry in group.entries.values()]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def _sign_in_stamp(self) -> FileStamp | None:
        return file_stamp(self._sign_in_file)


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
