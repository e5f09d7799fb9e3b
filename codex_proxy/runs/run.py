"""A run owns one turn of a client: it drives a dialect over a lane and appends to a log.

There is no task in it: what the child says arrives by a call, is read, repaired and logged in that call, and
the readers of the log are woken. An HTTP request never owns a child; it reads the log, and may `interrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from codex_proxy.agents.base import Decision, Dialect, Ended, Step
from codex_proxy.core.events import (
    VISIBLE,
    ApprovalAsked,
    Event,
    InputAsked,
    Stop,
    TurnEnded,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.limits import MaxTokens, StopSequences
from codex_proxy.core.rules import Rules
from codex_proxy.core.turn import Turn
from codex_proxy.runs.deadlines import Deadlines, DeadlineWatch, Scheduler, TimerHandle
from codex_proxy.runs.event_log import CUT_WATER, HIGH_WATER, LOW_WATER, EventLog
from codex_proxy.runs.lane import Lane

SETTLE_SECONDS = 5.0
"""How long an agent may take to forget a turn that is over: it takes milliseconds unless it hangs."""

NO = Decision(approve=False)


class Run:
    """One turn under way. `over(settled)` is called once, when the lane is no longer needed."""

    def __init__(
        self,
        turn: Turn,
        dialect: Dialect[Any],
        lane: Lane,
        scheduler: Scheduler,
        deadlines: Deadlines,
        over: Callable[[bool], None],
    ) -> None:
        self.log = EventLog(self._backlog)
        self.turn = turn
        self._dialect = dialect
        self._lane = lane
        self._scheduler = scheduler
        self._rules = Rules()
        self._limits: list[StopSequences | MaxTokens] = []
        if turn.stop:
            self._limits.append(StopSequences(turn.stop))
        if turn.max_tokens:
            self._limits.append(MaxTokens(turn.max_tokens))
        self._over: Callable[[bool], None] | None = over
        self._paused = False
        self._settle_timer: TimerHandle | None = None
        self._watch = DeadlineWatch(deadlines, scheduler, self.fail)

    def begin(self) -> None:
        """Starts the turn."""
        self._take(self._dialect.begin(self.turn), 0)

    # --- what the child says --------------------------------------------------------------------

    def received(self, messages: Sequence[Any], size: int) -> None:
        self._take(self._dialect.receive(messages), size)

    def ended(self, ended: Ended) -> None:
        self._take(self._dialect.eof(ended), 0)
        self._let_go(settled=True)

    # --- what others want -----------------------------------------------------------------------

    def interrupt(self) -> None:
        """Nobody wants the rest: the agent is stopped, and the log ends."""
        if not self._rules.ended:
            self._end(TurnEnded(Stop.INTERRUPTED))

    def fail(self, failure: Failure) -> None:
        """Something outside of the agent ends the turn."""
        if not self._rules.ended:
            self._end(TurnEnded(Stop.FAILED, "provider", failure))

    # --- the way of a step ----------------------------------------------------------------------

    def _take(self, step: Step, size: int) -> None:
        if step.writes:
            self._lane.send(step.writes)
        if step.events and not self._rules.ended:
            self._log_events(step.events, size)
        if self._rules.ended:
            self._stop_agent()

    def _log_events(self, said: list[Event], size: int) -> None:
        events = self._rules.feed(said)
        visible = False
        for event in events:
            kind = type(event)
            if kind in VISIBLE:
                visible = True
            elif kind is ApprovalAsked or kind is InputAsked:
                self._decline(event)  # type: ignore[arg-type]
        self._watch.alive(visible=visible)
        for limit in self._limits:
            events, hit = limit.feed(events)
            if hit is not None:
                stop = Stop.STOP if isinstance(limit, StopSequences) else Stop.LENGTH
                self._cut(events, size, stop)
                return
        if events:
            self.log.append(events, size, ended=type(events[-1]) is TurnEnded)

    def _cut(self, events: list[Event], size: int, stop: Stop) -> None:
        """A limit was hit: it has closed the open items itself, and the turn ends here."""
        self._rules.feed([TurnEnded(stop)])
        self.log.append([*events, TurnEnded(stop, "provider")], size, ended=True)

    def _decline(self, ask: ApprovalAsked | InputAsked) -> None:
        """The policy `never`: the agent is told no at once, and its turn goes on."""
        step = self._dialect.answer(ask.ask_id, NO)
        if step.writes:
            self._lane.send(step.writes)

    def _end(self, ended: TurnEnded) -> None:
        """Ends the turn from outside: closes the log first, then tells the agent."""
        events = self._rules.feed([ended])
        for limit in self._limits:
            events, _ = limit.feed(events)
        self.log.append(events, 0, ended=True)
        self._stop_agent()

    def _stop_agent(self) -> None:
        """The turn is over for us; an agent that does not know it yet is told."""
        step = self._dialect.interrupt()
        if step.writes:
            self._lane.send(step.writes)
        self._settle()

    def _settle(self) -> None:
        self._watch.stop()
        if self._dialect.settled or self._lane.alone:
            self._let_go(settled=True)
        elif self._settle_timer is None and self._over is not None:
            when = self._scheduler.time() + SETTLE_SECONDS
            self._settle_timer = self._scheduler.call_at(when, lambda: self._let_go(settled=False))
            self._resume()

    def _let_go(self, *, settled: bool) -> None:
        if self._settle_timer is not None:
            self._settle_timer.cancel()
            self._settle_timer = None
        self._watch.stop()
        over, self._over = self._over, None
        if over is not None:
            self._resume()
            over(settled)

    # --- readers that are slow ------------------------------------------------------------------

    def _backlog(self, size: int) -> None:
        if self._rules.ended:
            return
        if self._lane.alone:
            if size > HIGH_WATER and not self._paused:
                self._paused = True
                self._lane.pause()
            elif size < LOW_WATER:
                self._resume()
        elif size > CUT_WATER:
            self.interrupt()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._lane.resume()
