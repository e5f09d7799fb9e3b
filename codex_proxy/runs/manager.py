"""Who may run, and for how long: slots, the queue before them, and the end of every run.

A slot is taken before anything is spawned, and is given back when the turn is over and its lane is let go;
that happens once, whichever way the turn ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Coroutine
from typing import Any

import msgspec
import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.runs.agent import Agent, Opened
from codex_proxy.runs.deadlines import Deadlines
from codex_proxy.runs.run import Run

log = structlog.get_logger(__name__)


STOPPING = Failure(kind=FaultKind.UNAVAILABLE, message="The server is stopping.", retry_after=5)


class RunLimits(msgspec.Struct, frozen=True):
    """How many turns run at once, how many wait for that, and how long (seconds)."""

    running: int = 16
    waiting: int = 64
    wait: float = 30.0


class _Slot:
    """One running turn's share. Given back once."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = True


class RunManager:
    """Starts runs on one agent and sees them to their end."""

    def __init__(self, agent: Agent, limits: RunLimits, deadlines: Deadlines) -> None:
        self.agent = agent
        self._limits = limits
        self._deadlines = deadlines
        self._running = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._runs: set[Run] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._clean_ups: set[asyncio.Task[None]] = set()
        self._draining = False
        self._stopped = False
        """The time of grace is over: what begins now ends at once."""

    @property
    def running(self) -> int:
        """Slots that are taken."""
        return self._running

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def start(self, turn: Turn) -> Run:
        """A run that has begun. A `Fault` where there is no room, or the agent cannot take the turn."""
        slot = await self._slot()
        try:
            opened = await self.agent.open(turn)
        except BaseException:
            self._give_back(slot)
            raise
        # No await between here and `begin`: the run owns the lane from now on, and its end gives it back.
        loop = asyncio.get_running_loop()
        run: Run = Run(
            opened.turn,
            opened.dialect,
            opened.lane,
            loop,
            self._deadlines,
            lambda settled: self._over(run, slot, opened, settled),
        )
        self._runs.add(run)
        opened.lane.attach(run)
        run.begin()
        if self._stopped:
            run.fail(STOPPING)
        return run

    # --- slots ----------------------------------------------------------------------------------

    async def _slot(self) -> _Slot:
        if self._draining:
            raise Fault(STOPPING)
        if self._running < self._limits.running and not self._queue:
            self._running += 1
            self._idle.clear()
            return _Slot()
        if len(self._queue) >= self._limits.waiting:
            raise Fault(
                Failure(
                    kind=FaultKind.CONCURRENCY_EXCEEDED,
                    message=f"{self._running} turns run and {len(self._queue)} wait. Try again later.",
                    retry_after=5,
                )
            )
        turn_comes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn_comes)
        try:
            async with asyncio.timeout(self._limits.wait):
                await turn_comes
        except TimeoutError:
            if _was_given(turn_comes):  # in the very moment in which the time was up
                return _Slot()
            message = f"No place became free within {self._limits.wait:g} s. Try again later."
            raise Fault(
                Failure(kind=FaultKind.CONCURRENCY_EXCEEDED, message=message, retry_after=5)
            ) from None
        except asyncio.CancelledError:
            if _was_given(turn_comes):
                self._give_back(_Slot())
            raise
        finally:
            if turn_comes in self._queue:
                self._queue.remove(turn_comes)
        return _Slot()

    def _give_back(self, slot: _Slot) -> None:
        if not slot.held:
            return
        slot.held = False
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)  # the slot goes on to who waited longest
                return
        self._running -= 1
        if not self._running:
            self._idle.set()

    # --- the end of a run -----------------------------------------------------------------------

    def _over(self, run: Run, slot: _Slot, opened: Opened, settled: bool) -> None:
        if not settled:
            log.warning("agent_did_not_settle", agent=self.agent.name)
        self._runs.discard(run)
        self._give_back(slot)
        self._clean_up(self.agent.release(opened, settled=settled))

    def _clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._clean_ups.add(task)
        task.add_done_callback(self._clean_ups.discard)

    async def drain(self, within: float) -> None:
        """Takes no new turn, lets those that have a slot finish for `within` seconds, then fails them.

        Not an interruption, which is whose client has left: a client that is there has to see that its answer
        is not whole.
        """
        self._draining = True
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_exception(Fault(STOPPING))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._idle.wait()
        self._end_runs()

    def _end_runs(self) -> None:
        self._draining = self._stopped = True
        for run in list(self._runs):
            run.fail(STOPPING)

    async def close(self) -> None:
        """Ends the agent's children and waits for every clean-up."""
        self._end_runs()
        await self.agent.close()
        if self._clean_ups:
            await asyncio.gather(*self._clean_ups, return_exceptions=True)


def _was_given(slot: asyncio.Future[None]) -> bool:
    return slot.done() and not slot.cancelled() and slot.exception() is None
