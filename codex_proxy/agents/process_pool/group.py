"""The processes of a pool with one key, and the turns that wait for them, in order of arrival. Performs what `plan`
decides. Failed starts delay the next; meanwhile turns without a process fail at once.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec
import structlog

from codex_proxy.agents.process_pool.plan import (
    PoolLimits,
    ProcessInfo,
    ProcessState,
    RestartBackoff,
    assign,
    is_stable,
    keeps_spare,
    maintain,
)
from codex_proxy.agents.process_pool.process import PooledProcess
from codex_proxy.core.faults import Failure, Fault, FaultKind

if TYPE_CHECKING:
    from codex_proxy.agents.process_pool.pool import ProcessPool

log = structlog.get_logger(__name__)

BROKEN_START = Failure(FaultKind.INTERNAL, "The agent could not be started. The server's log has the reason.")

MAINTENANCE_SECONDS = 30.0
"""The time between two maintenances without another cause."""

RECHECK_SECONDS = 10.0
"""The age at which a process that found no sign-in is replaced, to look again: a sign-in in a keyring changes no file.
"""

KEEPS_ENDING_TEXT = "The agent's process keeps exiting and is restarted after a pause. It ended"


START_WATCHER: Final[ContextVar[Callable[[str], AbstractContextManager[None]] | None]] = ContextVar(
    "start_watcher", default=None
)
"""A function that is called with the agent's name. Its context manager is entered while a process starts for the turn
of this context.
"""

FileStamp = tuple[int, int, int]


class PooledTransport(Protocol):
    async def release(self, *, finished: bool) -> None:
        """Ends the use of the process. `finished` False: the agent may still work, so it gets no new turns."""


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


class ProcessGroup(Generic[P]):
    """The processes with one key. For the arguments see `ProcessPool`."""

    def __init__(
        self,
        pool: ProcessPool[Any, P],
        new_process: Callable[[], P],
        start_process: Callable[[P], Awaitable[None]],
        limits: PoolLimits,
    ) -> None:
        self._pool = pool
        self._new_process = new_process
        self._start_process = start_process
        self._limits = limits
        self._limits_with_spare = msgspec.structs.replace(limits, min_processes=1)
        self.keeps_spare = False
        self._uses: deque[float] = deque(maxlen=limits.spare_uses)
        self._spare_from = math.inf
        """When the next spare process may be started."""
        self.entries: dict[int, PoolEntry[P]] = {}
        self._waiting: deque[tuple[asyncio.Future[Any], Callable[[P], Any]]] = deque()
        self._last_number = 0
        self._backoff = RestartBackoff()
        self._last_crash: Failure | None = None
        """How the last process that ended unexpectedly has ended."""
        self.last_failure: Failure | None = None

    async def acquire(self, open: Callable[[P], T]) -> T:
        """Calls `open` with the least busy process; waits until one is free. Raises `Fault`."""
        self._drain_outdated()
        key, waiting = assign(self._process_infos(), self._limits), len(self._waiting)
        if key is not None:
            process = self.entries[key].process
            process.has_waited = True
            transport = open(process)
            try:
                self.maintain()
            except Exception:  # no fault of this turn, which has its transport
                log.exception("pool_internal_error")
            return transport
        if waiting >= self._limits.max_waiting:
            message = f"{waiting} turns are already waiting for the agent"
            raise Fault.of(FaultKind.UNAVAILABLE, message, retry_after=1)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, open))
        try:
            self.maintain()
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                await future.result().release(finished=True)
            raise
        finally:
            if (future, open) in self._waiting:
                self._waiting.remove((future, open))
            del future  # its exception holds this frame: no cycle stays behind

    def note_use(self) -> bool:
        """Notes a turn. Returns whether a spare process is to wait for the next, if the pool has room."""
        if not self._limits.spare_uses:
            return False
        now, delay = self._pool.now(), self._limits.spare_delay
        self._uses.append(now)
        self._spare_from = now + delay
        if delay < math.inf:
            self._pool.schedule_tick(delay)
        return keeps_spare(self._uses, now, self._limits)

    @property
    def processes(self) -> list[P]:
        return [each.process for each in self.entries.values() if each.state is not ProcessState.STARTING]

    def readiness_failure(self) -> Failure | None:
        """Returns the failure with which a new turn would end now, if so."""
        if self.last_failure is not None:
            return self.last_failure
        now = self._pool.now()
        steady = any(is_stable(now - each.ready_at) for each in self.entries.values())
        if (self._backoff.is_looping and not steady) or (
            self._backoff.pause_seconds(now) and not self._has_usable_process()
        ):
            return self._last_crash
        return None

    def fail_waiting(self, failure: Failure) -> None:
        while self._waiting:
            self._fail_next(failure)

    def _fail_next(self, failure: Failure) -> None:
        future, _ = self._waiting.popleft()
        if not future.done():
            future.set_exception(Fault(failure))

    # --- performing the plan --------------------------------------------------------------------

    def _process_infos(self) -> tuple[ProcessInfo, ...]:
        now = self._pool.now()
        return tuple(
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
        )

    def on_change(self) -> None:
        """Removes ended processes, assigns waiting turns, then starts and ends processes as needed."""
        for each in list(self.entries.values()):
            if each.process.completed_turn:
                self._backoff = self._backoff.after_success(each.started_at)
            if each.state is not ProcessState.STARTING and not each.process.alive:
                del self.entries[each.number]
                if each.state is ProcessState.READY and not each.process.is_taken and not self._pool.closed:
                    self._pool.restarts += 1
                    self._note_crash(each)
            elif each.state is ProcessState.READY and each.process.unhealthy:
                each.drain()
                each.process.end_silent_channels()
        while self._waiting and (key := assign(self._process_infos(), self._limits)) is not None:
            self._serve_next(self.entries[key].process)
        self.maintain()

    def _serve_next(self, process: P) -> None:
        future, open = self._waiting.popleft()
        if future.done():
            return
        try:
            future.set_result(open(process))
        except Exception as error:  # noqa: BLE001 - it belongs to the turn that waits
            future.set_exception(error)

    def maintain(self) -> None:
        if self._pool.closed:
            return
        limits = self._limits
        if limits.serves_once:
            now = self._pool.now()
            if not (self.keeps_spare and keeps_spare(self._uses, now, limits)):
                for each in self._spares():
                    each.drain()
            elif now >= self._spare_from:
                limits = self._limits_with_spare
        maintenance = maintain(self._process_infos(), limits, len(self._waiting))
        for number in maintenance.drain:
            self.entries[number].drain()
        for number in maintenance.retire:
            leaving = self.entries[number]
            leaving.drain()
            if not leaving.is_ending:
                leaving.is_ending = True
                self._pool.spawn(self._end(leaving))
        if maintenance.start:
            self._start_another()
        self._pool.schedule_tick(MAINTENANCE_SECONDS)

    def turn_finished(self) -> None:
        self._spare_from = min(self._spare_from, self._pool.now())
        self.on_change()
        self._pool.turn_finished()

    def _spares(self) -> list[PoolEntry[P]]:
        ready = (each for each in self.entries.values() if each.state is ProcessState.READY)
        return [each for each in ready if not each.process.is_taken]

    def _drain_outdated(self) -> None:
        """Drains processes that have waited too long for their only turn, or found no sign-in if somebody may have
        signed in since.
        """
        spares = self._spares()
        if not all(each.process.alive for each in spares):
            self.on_change()
        for each in spares:
            if self._is_outdated(each):
                each.drain()

    def drain_worn(self) -> None:
        """Drains processes on which turns have left others running, which the warden then ends, and those that only
        keep a session and use too much memory.
        """
        limit = self._limits.max_memory
        for each in self.entries.values():
            process = each.process
            too_large = process.is_taken and not process.turns_running and 0 < limit <= each.memory
            if each.state is ProcessState.READY and (too_large or process.has_orphans):
                each.drain()

    def _is_outdated(self, entry: PoolEntry[P]) -> bool:
        if entry.process.signed_in and not self._limits.serves_once:
            return False
        age = self._pool.now() - entry.started_at
        if self._limits.serves_once:
            return age >= self._limits.max_age
        return age > RECHECK_SECONDS or entry.sign_in != self._pool.sign_in_stamp()

    def _start_another(self) -> None:
        """Starts a process. While starts are delayed, waiting turns that no running process can serve fail instead,
        with the last failure and the seconds until the next start. A turn with its own process is not delayed.
        """
        now = self._pool.now()
        pause = self._backoff.pause_seconds(now)
        if not pause or (self._limits.serves_once and self._waiting):
            starting = self._new_entry(self._new_process())
            self._pool.spawn(self._start(starting))
            self.entries[starting.number] = starting  # not before: without its task it would start for ever
            return
        self._pool.schedule_tick(pause)
        reason = self.last_failure or self._last_crash
        if reason is not None and not self._has_usable_process():
            self.fail_waiting(msgspec.structs.replace(reason, retry_after=pause))

    def add(self, process: P) -> None:
        entry = self._new_entry(process)
        self.entries[entry.number] = entry
        self._on_started(entry)

    def _new_entry(self, process: P) -> PoolEntry[P]:
        self._last_number += 1
        return PoolEntry(self._last_number, process, self._pool.now(), self._pool.sign_in_stamp())

    @property
    def is_unused(self) -> bool:
        """Whether the group has no processes, no minimum, no recent use and no delayed start: then no turn waits."""
        if self.entries or self._limits.min_processes:
            return False
        now = self._pool.now()
        was_used = bool(self._uses) and now - self._uses[-1] < self._limits.max_age
        return not was_used and not self._backoff.pause_seconds(now)

    @property
    def idle_entries(self) -> list[PoolEntry[P]]:
        """Processes that only keep sessions for later turns."""
        if self._limits.min_processes:
            return []
        ready = [each for each in self.entries.values() if each.state is ProcessState.READY]
        if self._limits.serves_once:
            ready = [each for each in ready if each.process.is_taken]
        return [each for each in ready if not each.process.turns_running]

    @property
    def processes_needed(self) -> int:
        return len(self._spares()) if self._limits.serves_once else self._limits.min_processes

    def _has_usable_process(self) -> bool:
        starting = (each for each in self.entries.values() if each.state is ProcessState.STARTING)
        return bool(self._spares()) or any(starting)

    def _note_crash(self, entry: PoolEntry[P]) -> None:
        now = self._pool.now()
        self._backoff = self._backoff.after_failure(
            now, now - entry.ready_at, during_turn=entry.process.ended_during_turn
        )
        how = entry.process.exit_suffix
        self._last_crash = Failure(FaultKind.UNAVAILABLE, f"{KEEPS_ENDING_TEXT}{how}")
        log.warning(
            "agent_ended", agent=self._pool.name, reason=how.strip(" .()"), in_a_row=self._backoff.failures
        )

    async def _start(self, starting: PoolEntry[P]) -> None:
        watch = START_WATCHER.get()
        try:
            with nullcontext() if watch is None else watch(self._pool.name):
                await self._start_process(starting.process)
            self._on_started(starting)
        except Fault as fault:
            self._on_start_failed(starting, fault.failure)
        except Exception:
            log.exception("agent_start_internal_error")
            starting.process.kill()
            self._on_start_failed(starting, BROKEN_START)
        except BaseException:
            starting.process.kill()
            self.entries.pop(starting.number, None)
            raise

    def _on_started(self, entry: PoolEntry[P]) -> None:
        self.last_failure = None
        entry.state = ProcessState.READY
        entry.ready_at = self._pool.now()
        entry.process.on_change = self.turn_finished
        if self._limits.serves_once:
            self._pool.schedule_tick(self._limits.max_age)
            if self._waiting and not entry.process.alive:
                self._serve_next(entry.process)  # its turn learns how it has ended
        self.on_change()

    def _on_start_failed(self, starting: PoolEntry[P], failure: Failure) -> None:
        self.entries.pop(starting.number, None)
        self._backoff = self._backoff.after_failure(self._pool.now())
        self.last_failure = failure
        log.warning(
            "agent_start_failed",
            agent=self._pool.name,
            reason=failure.unquoted,
            in_a_row=self._backoff.failures,
            said=failure.message,
        )
        if self._limits.serves_once and self._waiting:
            self._fail_next(failure)  # each turn has a start of its own
        elif not self._has_usable_process():  # else somebody may still come and take who waits
            self.fail_waiting(failure)
        self.maintain()

    async def _end(self, leaving: PoolEntry[P]) -> None:
        await leaving.process.end()
        self.entries.pop(leaving.number, None)
        self.on_change()
