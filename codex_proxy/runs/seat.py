"""A seat: a lane with the dialect that speaks on it, for one try of a turn or several turns of one thread.

It carries steps both ways and sees to it that the agent forgets the turn before the lane is let go. What the
events mean, and who hears them, is its listener's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from codex_proxy.agents.agent import Opened, outline
from codex_proxy.agents.base import Ended, Reply, Step
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem
from codex_proxy.core.turn import Turn
from codex_proxy.runs.deadlines import Scheduler, TimerHandle

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 5.0
"""How long an agent may take to forget a turn that is over: it takes milliseconds unless it hangs."""


class Listener(Protocol):
    """Who hears what the agent does. Called synchronously on the event loop."""

    def stepped(self, seat: Seat, events: list[Event], size: int) -> None: ...

    def failed(self, seat: Seat, failure: Failure) -> None:
        """The child is no longer to be trusted."""
        ...

    def broke(self, seat: Seat) -> None:
        """A fault of ours: nothing is known of the agent's state any more."""
        ...


class Seat:
    """`released(settled)` is called once, when the lane may be given back."""

    def __init__(
        self, opened: Opened, listener: Listener, scheduler: Scheduler, released: Callable[[bool], None]
    ) -> None:
        self.opened = opened
        self.listener = listener
        self.gone = False
        """The child has ended."""
        self._dialect = opened.dialect
        self._lane = opened.lane
        self._scheduler = scheduler
        self._released: Callable[[bool], None] | None = released
        self._timer: TimerHandle | None = None
        self._closing = False
        self._paused = False

    # --- what the owner wants -------------------------------------------------------------------

    def begin(self) -> None:
        """Starts the turn that the seat was opened for."""
        self._lane.attach(self)
        turn, self.opened = self.opened.turn, outline(self.opened)
        self._do(self._dialect.begin, turn)

    def proceed(self, turn: Turn, fresh: Sequence[HistoryItem]) -> None:
        """Another turn on the same thread, which `fresh` is new to; or the outputs that it waits for."""
        self._do(self._dialect.proceed, turn, fresh)

    def answer(self, ask_id: str, reply: Reply) -> None:
        self._do(self._dialect.answer, ask_id, reply)

    @property
    def alone(self) -> bool:
        """The child serves nobody else."""
        return self._lane.alone

    @property
    def resting(self) -> bool:
        """The agent has nothing to do here until it is told: the thread may be kept."""
        return not self.gone and not self._closing and self._dialect.resting

    def close(self) -> None:
        """Nothing more is wanted: the agent is stopped, forgets the turn, and the lane is given back."""
        if self._closing:
            return
        self._closing = True
        self.resume()
        self._do(self._dialect.interrupt)
        self._settle()

    def rest(self, resting: bool) -> None:
        """Whether the thread is only kept."""
        self._lane.rest(resting)

    def pause(self) -> bool:
        """Makes the child wait; False where it serves others too and cannot."""
        if self._lane.alone and not self._paused and not self._closing:
            self._paused = True
            self._lane.pause()
        return self._lane.alone

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._lane.resume()

    # --- what the lane says ---------------------------------------------------------------------

    def received(self, messages: Sequence[Any], size: int) -> None:
        self._do(self._dialect.receive, messages, size=size)

    def ended(self, ended: Ended) -> None:
        self.gone = True
        self._do(self._dialect.eof, ended)
        self._let_go(settled=True)

    def fail(self, failure: Failure) -> None:
        self.listener.failed(self, failure)

    # --- both ways ------------------------------------------------------------------------------

    def _do(self, act: Callable[..., Step], *given: Any, size: int = 0) -> None:
        """One step. A fault of ours in it must not reach the other turns on the same child."""
        try:
            step = act(*given)
            if step.writes:
                self._lane.send(step.writes)
            if step.close_stdin:
                self._lane.close_stdin()
            if step.events or size:
                self.listener.stepped(self, step.events, size)
        except Exception:
            log.exception("turn_broke")
            self.listener.broke(self)
            self._let_go(settled=False)
        if self._closing:
            self._settle()

    def _settle(self) -> None:
        if self._dialect.settled or self._lane.alone:
            self._let_go(settled=True)
        elif self._timer is None and self._released is not None:
            when = self._scheduler.time() + SETTLE_SECONDS
            self._timer = self._scheduler.call_at(when, lambda: self._let_go(settled=False))

    def _let_go(self, *, settled: bool) -> None:
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume()
        released, self._released = self._released, None
        if released is not None:
            released(settled)
