"""The pool of app-server processes: performs what `process.plan` and `process.restarts` decide.

Turns that cannot be placed wait here in the order in which they came; while no process may be started after too
many have failed, none waits. It owns its processes from the first moment of their start, and every process's end is
awaited in `close`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec
import structlog

from codex_proxy.agents.codex_app_server.plan import Limits, Refuse, Seat, State, Use, place, tend
from codex_proxy.agents.codex_app_server.process import AppServerProcess, HubLane
from codex_proxy.agents.codex_app_server.restarts import Restarts, is_steady
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.ids import Clock

log = structlog.get_logger(__name__)

BROKEN_START = Failure(
    kind=FaultKind.INTERNAL, message="The agent could not be started. The server's log has the reason."
)

KEEPS_ENDING = "The agent's process keeps ending by itself. It is started again after a pause. It ended"

TEND_SECONDS = 30.0
"""How often the pool looks at itself when nothing happens: ages pass slowly."""

WEIGH_SECONDS = 30.0
"""How often it is seen how much memory each process holds, at most: each look reads files of the system's."""

STRAY_SECONDS = 1.0
"""How long after a turn what it has left running is looked for: the agent ends its own commands in less. Nor are
two looks closer together, however many turns end: each reads several files of the system's."""


class _Place:
    """A process and its seat in the plan."""

    def __init__(self, key: int, process: AppServerProcess, born: float) -> None:
        self.key = key
        self.process = process
        self.born = born
        self.ready = math.inf
        """When it was."""
        self.memory = 0
        """As it was last seen."""
        self.state = State.STARTING
        self.leaving = False
        """Somebody sees to its end already."""

    def drain(self) -> None:
        """No further turn comes here, neither a new one nor one on a thread that rests here."""
        self.state = State.DRAINING
        self.process.give_up_resting()


class Pool:
    """`start_process` gives a process that was started, or raises a `Fault`; it is given the empty process to start."""

    def __init__(
        self,
        new_process: Callable[[], AppServerProcess],
        start_process: Callable[[AppServerProcess], Awaitable[None]],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._new_process = new_process
        self._start_process = start_process
        self._limits = limits
        self._clock = clock
        self._places: dict[int, _Place] = {}
        self._waiting: deque[asyncio.Future[HubLane]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_key = 0
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._turn_ended = -STRAY_SECONDS
        """When the last turn did, on the loop's clock."""
        self._weighed = clock.monotonic()
        self._failed = Restarts()
        self._crash: Failure | None = None
        """How the last process ended that was not asked to."""
        self.last_failure: Failure | None = None
        """Why the newest start failed; None once one succeeded."""
        self.restarts = 0
        """Processes that ended without being asked to."""

    # --- for runs -------------------------------------------------------------------------------

    async def warm(self) -> None:
        """Starts the processes that are kept warm and waits for the first. A `Fault` where it fails."""
        lane = await self.lane()
        await self.release(lane, settled=True)

    async def lane(self) -> HubLane:
        """A lane on the least busy process; waits for one that is starting. A `Fault` where there is none."""
        if self._closed:
            raise Fault(STOPPING)
        decision = place(self._seats(), self._limits, len(self._waiting))
        if isinstance(decision, Use):
            lane = self._places[decision.key].process.open_lane()
            self._tend()
            return lane
        if isinstance(decision, Refuse):
            raise Fault(Failure(kind=FaultKind.UNAVAILABLE, message=decision.reason, retry_after=1))
        future: asyncio.Future[HubLane] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._tend()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                await self.release(future.result(), settled=True)
            raise
        finally:
            if future in self._waiting:
                self._waiting.remove(future)
            del future  # its exception holds this frame: no cycle stays behind

    async def release(self, lane: HubLane, *, settled: bool) -> None:
        """Gives a lane back."""
        await lane.release(settled=settled)
        self._turn_over()

    @property
    def processes(self) -> list[AppServerProcess]:
        """The processes that are there, starting ones left out."""
        return [each.process for each in self._places.values() if each.state is not State.STARTING]

    def trouble(self) -> Failure | None:
        """Why a turn would not work just now: no process starts, or none lives for long."""
        if self.last_failure is not None:
            return self.last_failure
        now = self._clock.monotonic()
        steady = any(is_steady(now - each.ready) for each in self._places.values())
        if (self._failed.looping and not steady) or (self._failed.pause(now) and not self._serving()):
            return self._crash
        return None

    def retire(self, process: AppServerProcess) -> None:
        """No further turn on this process; it ends when it is idle."""
        for each in self._places.values():
            if each.process is process:
                each.drain()
        self._changed()

    async def close(self) -> None:
        """Ends every process, and returns when they are gone."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiting(STOPPING)
        processes = [each.process for each in self._places.values()]
        # First what may still start a process, then the processes: in the other order one could be missed.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(process.end() for process in processes))

    def kill(self) -> None:
        """Ends every process at once, without waiting."""
        for each in self._places.values():
            each.process.kill()

    # --- performing the plan --------------------------------------------------------------------

    def _seats(self) -> tuple[Seat, ...]:
        now = self._clock.monotonic()
        return tuple(
            Seat(each.key, each.state, each.process.turns, each.process.served, now - each.born, each.memory)
            for each in self._places.values()
        )

    def _changed(self) -> None:
        """Places who waits, then looks after the processes."""
        for each in list(self._places.values()):
            if each.process.proven:
                self._failed = self._failed.served(each.born)
            if each.state is not State.STARTING and not each.process.alive:
                del self._places[each.key]
                if each.state is State.READY and not self._closed:
                    self.restarts += 1
                    self._crashed(each)
            elif each.state is State.READY and each.process.suspect:
                each.drain()
                each.process.give_up_unheard()
        while self._waiting:
            decision = place(self._seats(), self._limits, len(self._waiting) - 1)
            if not isinstance(decision, Use):
                break
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._places[decision.key].process.open_lane())
        self._tend()

    def _tend(self) -> None:
        if self._closed:
            return
        upkeep = tend(self._seats(), self._limits, len(self._waiting))
        for key in upkeep.drain:
            self._places[key].drain()
        for key in upkeep.retire:
            leaving = self._places[key]
            leaving.drain()
            if not leaving.leaving:
                leaving.leaving = True
                self._spawn(self._end(leaving))
        if upkeep.start:
            self._start_another()
        self._look_again(TEND_SECONDS)

    def _start_another(self) -> None:
        """Starts a process, unless too many have failed; then who waits for it is told why, and when to come back."""
        now = self._clock.monotonic()
        pause = self._failed.pause(now)
        if not pause:
            self._next_key += 1
            starting = _Place(self._next_key, self._new_process(), now)
            self._places[starting.key] = starting
            self._spawn(self._start(starting))
            return
        self._look_again(pause)
        reason = self.last_failure or self._crash
        if reason is not None and not self._serving():
            self._fail_waiting(msgspec.structs.replace(reason, retry_after=pause))

    def _serving(self) -> bool:
        """Whether there is a process that takes turns, or will in a moment."""
        return any(each.state is not State.DRAINING for each in self._places.values())

    def _crashed(self, place: _Place) -> None:
        now = self._clock.monotonic()
        self._failed = self._failed.failed(now, now - place.ready, at_work=place.process.ended_at_work)
        how = place.process.how_it_ended
        self._crash = Failure(kind=FaultKind.UNAVAILABLE, message=f"{KEEPS_ENDING}{how}")
        log.warning("agent_ended", reason=how.strip(" .()"), in_a_row=self._failed.failures)

    def _turn_over(self) -> None:
        self._changed()
        self._turn_ended = asyncio.get_running_loop().time()
        self._look_again(STRAY_SECONDS)

    def _look_again(self, seconds: float) -> None:
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
        self._weigh()
        for each in self._places.values():
            if each.state is State.READY and each.process.has_strays:
                each.drain()  # its warden ends whatever a turn has left
        self._changed()
        since = asyncio.get_running_loop().time() - self._turn_ended
        if since < STRAY_SECONDS:  # of the last turn it was too early
            self._look_again(STRAY_SECONDS - since)

    def _weigh(self) -> None:
        now = self._clock.monotonic()
        if now - self._weighed >= WEIGH_SECONDS:
            self._weighed = now
            for each in self._places.values():
                each.memory = each.process.memory

    async def _start(self, starting: _Place) -> None:
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
            self._places.pop(starting.key, None)
            raise
        else:
            self.last_failure = None
            starting.state = State.READY
            starting.ready = self._clock.monotonic()
            starting.process.on_change = self._turn_over
            self._changed()

    def _start_failed(self, starting: _Place, failure: Failure) -> None:
        del self._places[starting.key]
        self._failed = self._failed.failed(self._clock.monotonic())
        self.last_failure = failure
        log.warning(
            "agent_start_failed",
            reason=failure.unquoted,
            in_a_row=self._failed.failures,
            said=failure.message,
        )
        if not self._serving():  # else somebody may still come and take who waits
            self._fail_waiting(failure)
        self._tend()

    async def _end(self, leaving: _Place) -> None:
        await leaving.process.end()
        self._places.pop(leaving.key, None)
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
