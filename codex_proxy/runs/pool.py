"""The pool of app-server processes: performs what `process.plan` decides.

Turns that cannot be placed wait here in the order in which they came. It owns its hubs from the first
moment of their start, and every hub's end is awaited in `close`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.ids import Clock
from codex_proxy.process.plan import Limits, Refuse, Seat, State, Use, place, tend
from codex_proxy.runs.hub import Hub, HubLane

log = structlog.get_logger(__name__)

STOPPING = Failure(kind=FaultKind.UNAVAILABLE, message="The server is stopping.", retry_after=5)

BROKEN_START = Failure(
    kind=FaultKind.INTERNAL, message="The agent could not be started. The server's log has the reason."
)

TEND_SECONDS = 30.0
"""How often the pool looks at itself when nothing happens: ages pass slowly."""


STRAY_SECONDS = 1.0
"""How long after a turn what it has left running is looked for: the agent ends its own commands in less. Nor are
two looks closer together, however many turns end: each reads several files of the system's."""


class _Place:
    """A hub and its seat in the plan."""

    def __init__(self, key: int, hub: Hub, born: float) -> None:
        self.key = key
        self.hub = hub
        self.born = born
        self.state = State.STARTING
        self.leaving = False
        """Somebody sees to its end already."""

    def drain(self) -> None:
        """No further turn comes here, neither a new one nor one on a thread that rests here."""
        self.state = State.DRAINING
        self.hub.give_up_resting()


class Pool:
    """`start_hub` gives a hub that was started, or raises a `Fault`; it is given the empty hub to start."""

    def __init__(
        self,
        new_hub: Callable[[], Hub],
        start_hub: Callable[[Hub], Awaitable[None]],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self._new_hub = new_hub
        self._start_hub = start_hub
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
            lane = self._places[decision.key].hub.open_lane()
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

    async def release(self, lane: HubLane, *, settled: bool) -> None:
        """Gives a lane back."""
        await lane.release(settled=settled)
        self._turn_over()

    @property
    def hubs(self) -> list[Hub]:
        """The processes that are there, starting ones left out."""
        return [each.hub for each in self._places.values() if each.state is not State.STARTING]

    def retire(self, hub: Hub) -> None:
        """No further turn on this process; it ends when it is idle."""
        for each in self._places.values():
            if each.hub is hub:
                each.drain()
        self._changed()

    async def close(self) -> None:
        """Ends every process, and returns when they are gone."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._fail_waiting(STOPPING)
        hubs = [each.hub for each in self._places.values()]
        # First what may still start a process, then the processes: in the other order one could be missed.
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(hub.end() for hub in hubs))

    def kill(self) -> None:
        """Ends every process at once, without waiting."""
        for each in self._places.values():
            each.hub.kill()

    # --- performing the plan --------------------------------------------------------------------

    def _seats(self) -> tuple[Seat, ...]:
        now = self._clock.monotonic()
        return tuple(
            Seat(each.key, each.state, each.hub.turns, each.hub.served, now - each.born)
            for each in self._places.values()
        )

    def _changed(self) -> None:
        """Places who waits, then looks after the processes."""
        for each in list(self._places.values()):
            if each.state is not State.STARTING and not each.hub.alive:
                del self._places[each.key]
                self.restarts += each.state is State.READY
            elif each.state is State.READY and each.hub.suspect:
                each.drain()
        while self._waiting:
            decision = place(self._seats(), self._limits, len(self._waiting) - 1)
            if not isinstance(decision, Use):
                break
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(self._places[decision.key].hub.open_lane())
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
            self._next_key += 1
            starting = _Place(self._next_key, self._new_hub(), self._clock.monotonic())
            self._places[starting.key] = starting
            self._spawn(self._start(starting))
        self._look_again(TEND_SECONDS)

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
        for each in self._places.values():
            if each.state is State.READY and each.hub.has_strays:
                each.drain()  # its warden ends whatever a turn has left
        self._changed()
        since = asyncio.get_running_loop().time() - self._turn_ended
        if since < STRAY_SECONDS:  # of the last turn it was too early
            self._look_again(STRAY_SECONDS - since)

    async def _start(self, starting: _Place) -> None:
        try:
            await self._start_hub(starting.hub)
        except Fault as fault:
            del self._places[starting.key]
            self.last_failure = fault.failure
            log.warning("agent_start_failed", reason=fault.failure.message)
            # Others may still come and take who waits; whether to start one more is the next turn's affair.
            if not any(each.state is not State.DRAINING for each in self._places.values()):
                self._fail_waiting(fault.failure)
            return
        except BaseException:
            starting.hub.kill()
            self._places.pop(starting.key, None)
            self._fail_waiting(BROKEN_START)
            raise
        self.last_failure = None
        starting.state = State.READY
        starting.hub.on_change = self._turn_over
        self._changed()

    async def _end(self, leaving: _Place) -> None:
        await leaving.hub.end()
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
