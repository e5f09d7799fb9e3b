"""The pool of `codex app-server` processes. Starts and ends processes and assigns them to turns, as the module
`plan` decides.

Turns wait in order of arrival while every process is busy. After failed starts, the next start is delayed, and
turns without a process fail at once instead of waiting.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import structlog

from codex_proxy.agents.codex_app_server.plan import (
    PoolLimits,
    ProcessInfo,
    ProcessState,
    Refuse,
    RestartBackoff,
    Use,
    assign,
    is_stable,
    maintain,
)
from codex_proxy.agents.codex_app_server.process import AppServerProcess, ThreadTransport
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock

log = structlog.get_logger(__name__)

BROKEN_START = Failure(
    kind=FaultKind.INTERNAL, message="The agent could not be started. The server's log has the reason."
)

KEEPS_ENDING_TEXT = "The agent's process keeps exiting and is restarted after a pause. It ended"

MAINTENANCE_SECONDS = 30.0
"""Seconds between two maintenances of the pool if nothing else causes one."""

MEMORY_SECONDS = 30.0
"""The least time between two measurements of memory, which read files of the system."""

ORPHAN_SECONDS = 1.0
"""Seconds after a turn until its orphaned processes are looked for, and at least between two such checks."""


class PoolEntry:
    """One process of the pool, with its state, its age and its memory, by which the module `plan` decides whether
    it gets turns and when it ends.
    """

    def __init__(self, key: int, process: AppServerProcess, started_at: float) -> None:
        self.key = key
        self.process = process
        self.started_at = started_at
        self.ready_at = math.inf
        """When the process became ready, in seconds of the monotonic clock; infinity before that."""
        self.memory = 0
        """The resident memory of the process in bytes, when it was last measured."""
        self.state = ProcessState.STARTING
        self.is_ending = False
        """Whether a task is already ending the process."""

    def drain(self) -> None:
        """Marks the process as draining, so that it gets no further turns, and ends the idle sessions on it."""
        self.state = ProcessState.DRAINING
        self.process.end_idle_channels()


class Pool:
    """A pool of processes for turns. `new_process` creates the object of a process without starting it;
    `start_process` starts the process, or raises `Fault`.
    """

    def __init__(
        self,
        new_process: Callable[[], AppServerProcess],
        start_process: Callable[[AppServerProcess], Awaitable[None]],
        limits: PoolLimits,
        clock: Clock,
    ) -> None:
        self._new_process = new_process
        self._start_process = start_process
        self._limits = limits
        self._clock = clock
        self._entries: dict[int, PoolEntry] = {}
        self._waiting: deque[asyncio.Future[ThreadTransport]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_key = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._last_turn_end = -ORPHAN_SECONDS
        """When the last turn ended, in seconds of the event loop's clock."""
        self._memory_measured_at = clock.monotonic()
        self._backoff = RestartBackoff()
        self._last_crash: Failure | None = None
        """How the last process ended that the pool had not asked to end."""
        self.last_failure: Failure | None = None
        """Why the last start failed; None if it succeeded."""
        self.restarts = 0
        """The number of processes that ended although the pool had not asked them to."""

    # --- for runs -------------------------------------------------------------------------------

    async def warm(self) -> None:
        """Starts the processes that are kept ready, and returns when one of them is ready. Raises `Fault` if none
        can be started.
        """
        transport = await self.acquire()
        await self.release(transport, finished=True)

    async def acquire(self) -> ThreadTransport:
        """Opens a channel (for one thread) on the least busy process and returns its transport; waits until a
        process is free if none is. Raises `Fault` if too many turns wait, the server is stopping, or no process can
        be started.
        """
        if self._closed:
            raise Fault(STOPPING)
        decision = assign(self._process_infos(), self._limits, len(self._waiting))
        if isinstance(decision, Use):
            transport = self._entries[decision.key].process.open_channel()
            self._maintain()
            return transport
        if isinstance(decision, Refuse):
            raise Fault(Failure(kind=FaultKind.UNAVAILABLE, message=decision.reason, retry_after=1))
        future: asyncio.Future[ThreadTransport] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._maintain()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                await self.release(future.result(), finished=True)
            raise
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
            del future  # its exception holds this frame: no cycle stays behind

    async def release(self, transport: ThreadTransport, *, finished: bool) -> None:
        """Takes a transport back, and closes its channel on the process. `finished`: whether the agent has reported
        the end of the turn. If it has not, the process gets no further turns, and is ended when its other turns
        have ended.
        """
        await transport.release(finished=finished)
        self._turn_finished()

    @property
    def processes(self) -> list[AppServerProcess]:
        """The processes that have been started and are still running, including those that get no further turns."""
        return [each.process for each in self._entries.values() if each.state is not ProcessState.STARTING]

    def readiness_failure(self) -> Failure | None:
        """Returns the failure with which a new turn would end now, because the last start failed or the processes
        keep crashing; None if turns can be served.
        """
        if self.last_failure is not None:
            return self.last_failure
        now = self._clock.monotonic()
        steady = any(is_stable(now - each.ready_at) for each in self._entries.values())
        if (self._backoff.looping and not steady) or (
            self._backoff.pause_seconds(now) and not self._has_usable_process()
        ):
            return self._last_crash
        return None

    def retire(self, process: AppServerProcess) -> None:
        """Gives the process no further turns, and ends it when its running turns have ended."""
        for each in self._entries.values():
            if each.process is process:
                each.drain()
        self._changed()

    async def close(self) -> None:
        """Ends every process, also those with running turns, and returns when all have ended. Turns that wait for a
        process fail with the fault STOPPING.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiting(STOPPING)
        processes = [each.process for each in self._entries.values()]
        # First what may still start a process, then the processes: in the other order one could be missed.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.end() for process in processes))

    def kill(self) -> None:
        """Sends SIGKILL to every process, and returns at once."""
        for each in self._entries.values():
            each.process.kill()

    # --- performing the plan --------------------------------------------------------------------

    def _process_infos(self) -> tuple[ProcessInfo, ...]:
        now = self._clock.monotonic()
        return tuple(
            ProcessInfo(
                each.key,
                each.state,
                each.process.turns_running,
                each.process.turns_served,
                now - each.started_at,
                each.memory,
            )
            for each in self._entries.values()
        )

    def _changed(self) -> None:
        """Removes processes that have ended, assigns waiting turns to processes, and then starts and ends processes
        as needed. Called after each change of a process or a turn.
        """
        for each in list(self._entries.values()):
            if each.process.completed_turn:
                self._backoff = self._backoff.after_success(each.started_at)
            if each.state is not ProcessState.STARTING and not each.process.alive:
                del self._entries[each.key]
                if each.state is ProcessState.READY and not self._closed:
                    self.restarts += 1
                    self._crashed(each)
            elif each.state is ProcessState.READY and each.process.unhealthy:
                each.drain()
                each.process.end_silent_channels()
        while self._waiting:
            decision = assign(self._process_infos(), self._limits, len(self._waiting) - 1)
            if not isinstance(decision, Use):
                break
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._entries[decision.key].process.open_channel())
        self._maintain()

    def _maintain(self) -> None:
        if self._closed:
            return
        maintenance = maintain(self._process_infos(), self._limits, len(self._waiting))
        for key in maintenance.drain:
            self._entries[key].drain()
        for key in maintenance.retire:
            leaving = self._entries[key]
            leaving.drain()
            if not leaving.is_ending:
                leaving.is_ending = True
                self._spawn(self._end(leaving))
        if maintenance.start:
            self._start_another()
        self._schedule_tick(MAINTENANCE_SECONDS)

    def _start_another(self) -> None:
        """Starts a process. If starts are delayed after failures, starts none; then, unless a running process can
        serve the waiting turns, these fail at once with the last failure and the seconds until the next start.
        """
        now = self._clock.monotonic()
        pause = self._backoff.pause_seconds(now)
        if not pause:
            self._next_key += 1
            starting = PoolEntry(self._next_key, self._new_process(), now)
            self._entries[starting.key] = starting
            self._spawn(self._start(starting))
            return
        self._schedule_tick(pause)
        reason = self.last_failure or self._last_crash
        if reason is not None and not self._has_usable_process():
            self._fail_waiting(msgspec.structs.replace(reason, retry_after=pause))

    def _has_usable_process(self) -> bool:
        """Returns whether any process accepts turns or is starting."""
        return any(each.state is not ProcessState.DRAINING for each in self._entries.values())

    def _crashed(self, entry: PoolEntry) -> None:
        now = self._clock.monotonic()
        self._backoff = self._backoff.after_failure(
            now, now - entry.ready_at, during_turn=entry.process.ended_during_turn
        )
        how = entry.process.exit_suffix
        self._last_crash = Failure(kind=FaultKind.UNAVAILABLE, message=f"{KEEPS_ENDING_TEXT}{how}")
        log.warning("agent_ended", reason=how.strip(" .()"), in_a_row=self._backoff.failures)

    def _turn_finished(self) -> None:
        self._changed()
        self._last_turn_end = asyncio.get_running_loop().time()
        self._schedule_tick(ORPHAN_SECONDS)

    def _schedule_tick(self, seconds: float) -> None:
        if self._closed:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or when < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._measure_memory()
        for each in self._entries.values():
            if each.state is ProcessState.READY and each.process.has_orphans:
                each.drain()  # its warden ends whatever a turn has left
        self._changed()
        since = asyncio.get_running_loop().time() - self._last_turn_end
        if since < ORPHAN_SECONDS:  # of the last turn it was too early
            self._schedule_tick(ORPHAN_SECONDS - since)

    def _measure_memory(self) -> None:
        now = self._clock.monotonic()
        if now - self._memory_measured_at >= MEMORY_SECONDS:
            self._memory_measured_at = now
            for each in self._entries.values():
                each.memory = each.process.memory

    async def _start(self, starting: PoolEntry) -> None:
        try:
            await self._start_process(starting.process)
        except Fault as fault:
            self._start_failed(starting, fault.failure)
        except Exception:
            log.exception("agent_start_broke")
            starting.process.kill()
            self._start_failed(starting, BROKEN_START)
        except BaseException:
            starting.process.kill()
            self._entries.pop(starting.key, None)
            raise
        else:
            self.last_failure = None
            starting.state = ProcessState.READY
            starting.ready_at = self._clock.monotonic()
            starting.process.on_change = self._turn_finished
            self._changed()

    def _start_failed(self, starting: PoolEntry, failure: Failure) -> None:
        del self._entries[starting.key]
        self._backoff = self._backoff.after_failure(self._clock.monotonic())
        self.last_failure = failure
        log.warning(
            "agent_start_failed",
            reason=failure.unquoted,
            in_a_row=self._backoff.failures,
            said=failure.message,
        )
        if not self._has_usable_process():  # else somebody may still come and take who waits
            self._fail_waiting(failure)
        self._maintain()

    async def _end(self, leaving: PoolEntry) -> None:
        await leaving.process.end()
        self._entries.pop(leaving.key, None)
        self._changed()

    def _fail_waiting(self, failure: Failure) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(Fault(failure))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
