"""Starts turns, limits how many run at once, and ends them when the server stops. A turn has a slot before any process
is started, until its last event is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

import msgspec

from codex_proxy.agents.agent import Agent
from codex_proxy.core.events import Event
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.limits import MAX_TURN_CHARS
from codex_proxy.core.turn import Turn
from codex_proxy.runs.idle_sessions import IdleLimits
from codex_proxy.runs.observers import TurnPreparer, TurnRecord, TurnRecords, TurnWatcher
from codex_proxy.runs.run import Run
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.runs.services import RunServices
from codex_proxy.runs.steered_inputs import SteeredInputs
from codex_proxy.runs.time_and_tokens import Deadlines
from codex_proxy.runs.whole_history import Replay
from codex_proxy.workers.slots import Slot, Slots

CANCELLED = Failure(
    FaultKind.CANCELLED, "The operator has cancelled this turn on the server's page.", repeatable=False
)


class RunLimits(msgspec.Struct, frozen=True):
    """The limits of runs. `max_running` turns run at once; of each owner (key) at most `max_waiting` turns wait,
    for at most `max_wait_seconds` (0: none waits). Others are refused with CONCURRENCY_EXCEEDED. A turn of
    `max_chars` ends with `Stop.LENGTH`.
    """

    max_running: int = 16
    max_waiting: int = 64
    max_wait_seconds: float = 30.0
    max_chars: int = MAX_TURN_CHARS


class RunScheduler:
    """Starts the runs. `drain` and `close` end them."""

    def __init__(
        self,
        agent: Agent,
        limits: RunLimits,
        deadlines: Deadlines | Callable[[Turn], Deadlines],
        *,
        idle_limits: IdleLimits | None = None,
        owners: Callable[[], int] = lambda: 1,
        records: TurnRecords | None = None,
    ) -> None:
        """`owners` returns how many keys there may be; of several none gets all slots. `records` remembers the turns
        for the page.
        """
        self.agent = agent
        self.services = RunServices(agent, idle_limits or IdleLimits())
        self.records = records
        self.watchers: list[TurnWatcher] = [] if records is None else [records]
        self.preparers: list[TurnPreparer] = []
        self._limits = limits
        self._deadlines = deadlines
        self._slots = Slots(limits.max_running, owners)
        self._runs: set[Run] = set()
        self.draining = False
        """Whether the server stops, and takes no new turns."""
        self._stopped = False
        """Whether running turns must end at once."""

    @property
    def running(self) -> int:
        """How many turns have a slot."""
        return self._slots.running

    @property
    def queued(self) -> int:
        return self._slots.waiting

    def cancel(self, record: TurnRecord) -> bool:
        """Ends a turn with an error. Returns False if it has ended."""
        if record.has_ended:
            return False
        for run in list(self._runs):
            if record in run.observers:
                run.fail(CANCELLED)
        return True

    async def until_draining(self) -> None:
        """Waits until the server begins to stop."""
        await self.services.stopping.wait()

    async def start(
        self,
        turn: Turn,
        owner: str = "",
        *,
        durable: bool = True,
        remembers: bool = True,
        replay: Replay | None = None,
        runner: ToolRunner | None = None,
        first: Sequence[Event] = (),
        inputs: SteeredInputs | None = None,
    ) -> Run:
        """Starts a run. Raises `Fault`: STOPPING, CONCURRENCY_EXCEEDED without a slot in time, or the agent's.
        `remembers`: whether calls go to the step memory, and if `durable` to disk. `replay`: the history as the
        model generated it, if stored. `runner` runs this server's tools; `first` are events before the agent's,
        `inputs` what the client says while the turn runs.
        """
        turn = msgspec.structs.replace(turn, owner=owner)
        slot = await self._slot(owner)
        try:
            prepared = [await preparer.prepare(turn) for preparer in self.preparers]
            watchers = [*self.watchers, *(each for each in prepared if each is not None)]
            deadlines = self._deadlines if isinstance(self._deadlines, Deadlines) else self._deadlines(turn)
            run = Run(
                turn, self.services, slot, self._runs, self._limits.max_chars, deadlines,
                runner=runner, replay=replay, inputs=inputs, remembers=remembers, durable=durable,
            )  # fmt: skip
        except BaseException:
            slot.give_back()
            raise
        try:
            if self._stopped:
                run.fail(STOPPING)
            await run.start(watchers, first)
        except BaseException as error:
            run.end_unbegun(error)
            raise
        return run

    def expect(self, turn: Turn, owner: str, session: str) -> None:
        """Prepares what later turns of a session, which begin as this one would, need not wait for then."""
        for preparer in self.preparers:
            preparer.expect(msgspec.structs.replace(turn, owner=owner), session)

    async def settle(self, session_turn: str) -> None:
        """Returns when a session may tell that its turn with this id has ended, after the last event of its run."""
        for preparer in self.preparers:
            await preparer.settle(session_turn)

    # --- slots ----------------------------------------------------------------------------------

    async def _slot(self, owner: str) -> Slot:
        if self.draining:
            raise Fault(STOPPING)
        slots = self._slots
        slot = slots.take_now(owner)
        if slot is not None:
            return slot
        waiting = slots.waiting_of(owner)
        if waiting >= self._limits.max_waiting or not self._limits.max_wait_seconds:
            raise _no_room(f"{slots.running} requests are running and {waiting} are waiting before this one.")
        try:
            return await slots.take(owner, self._limits.max_wait_seconds)
        except TimeoutError:
            raise _no_room(f"No slot became free within {self._limits.max_wait_seconds:g} s.") from None

    # --- the end --------------------------------------------------------------------------------

    async def drain(self, within: float) -> None:
        """Takes no new turns, waits up to `within` seconds for running ones, then fails them with STOPPING."""
        self.begin_drain()
        await self.services.checks.close()  # the end waits for turns, and for no check
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._slots.wait_until_idle()
        # They fail instead of being interrupted, because their clients must see that the answer is incomplete.
        self._end_runs()

    def begin_drain(self) -> None:
        """Takes no new turns; waiting ones fail with STOPPING."""
        self.draining = True
        self.services.stopping.set()
        self._slots.stop(Fault(STOPPING))

    def _end_runs(self) -> None:
        self.draining = True
        self.services.stopping.set()
        self._stopped = True
        for run in list(self._runs):
            run.fail(STOPPING)

    async def close(self) -> None:
        """Ends all runs and the agent; returns when all sessions are released."""
        self._end_runs()
        await self.services.close()


def _no_room(message: str) -> Fault:
    return Fault.of(FaultKind.CONCURRENCY_EXCEEDED, f"{message} Try again later.", retry_after=5)
