"""A run owns one turn of a client: it drives a dialect over a lane and appends to a log.

There is no task in it: what the child says arrives by a call, is read, repaired and logged in that call, and
the readers of the log are woken. An HTTP request never owns a child; it reads the log, and may `interrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from codex_proxy.agents.base import Decision, Dialect, Ended, Step
from codex_proxy.core.events import (
    VISIBLE,
    ApprovalAsked,
    Event,
    InputAsked,
    Stop,
    TurnEnded,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.limits import MaxTokens, StopSequences
from codex_proxy.core.rules import Rules
from codex_proxy.core.turn import Turn
from codex_proxy.runs.deadlines import Deadlines, DeadlineWatch, Scheduler, TimerHandle
from codex_proxy.runs.event_log import CUT_WATER, HIGH_WATER, LOW_WATER, EventLog
from codex_proxy.runs.lane import Lane

log = structlog.get_logger(__name__)

SETTLE_SECONDS = 5.0
"""How long an agent may take to forget a turn that is over: it takes milliseconds unless it hangs."""

NO = Decision(approve=False)

TOO_SLOW = Failure(
    kind=FaultKind.TIMED_OUT,
    message=f"The client left {CUT_WATER >> 20} MiB of the answer unread. Read faster, or ask for less.",
)
OUR_FAULT = Failure(
    kind=FaultKind.INTERNAL,
    message="The server failed in an unforeseen way. Its log has the reason under this request's id.",
)


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
        """Starts the turn. Never raises: whatever goes wrong from here on ends the log."""
        try:
            self._take(self._dialect.begin(self.turn), 0)
        except Exception:
            log.exception("turn_broke")
            self._broke()

    # --- what the child says --------------------------------------------------------------------

    def received(self, messages: Sequence[Any], size: int) -> None:
        try:
            self._take(self._dialect.receive(messages), size)
        except Exception:  # a fault of ours in one turn must not reach the others on the same child
            log.exception("turn_broke")
            self._broke()

    def ended(self, ended: Ended) -> None:
        try:
            self._take(self._dialect.eof(ended), 0)
        except Exception:
            log.exception("turn_broke")
            self._broke()
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
        self._append(events, size)

    def _append(self, events: list[Event], size: int) -> None:
        """Logs what the limits let through. One that is hit has closed the open items; the turn ends there.

        Every limit sees what the one before it let through, so the last that is hit came first in the text.
        """
        stop: Stop | None = None
        for limit in self._limits:
            events, hit = limit.feed(events)
            if hit is not None:
                stop = Stop.STOP if isinstance(limit, StopSequences) else Stop.LENGTH
        if stop is not None:
            self._rules.feed([TurnEnded(stop)])
            events = [*events, TurnEnded(stop, "provider")]
        if events:
            self.log.append(events, size, ended=type(events[-1]) is TurnEnded)

    def _decline(self, ask: ApprovalAsked | InputAsked) -> None:
        """The policy `never`: the agent is told no at once, and its turn goes on."""
        step = self._dialect.answer(ask.ask_id, NO)
        if step.writes:
            self._lane.send(step.writes)

    def _end(self, ended: TurnEnded) -> None:
        """Ends the turn from outside: closes the log first, then tells the agent."""
        self._append(self._rules.feed([ended]), 0)
        self._stop_agent()

    def _broke(self) -> None:
        """After a fault of ours nothing is known of the agent's state: the lane is not used again."""
        if not self.log.ended:
            self.log.append(self._rules.feed([TurnEnded(Stop.FAILED, "provider", OUR_FAULT)]), 0, ended=True)
        self._let_go(settled=False)

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
                self._watch.hold()
                self._lane.pause()
            elif size < LOW_WATER:
                self._resume()
        elif size > CUT_WATER:
            self.fail(TOO_SLOW)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._watch.go_on()
            self._lane.resume()
