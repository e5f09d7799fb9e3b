"""The dialect of a turn that may take several attempts, each with a dialect for its upstream's API. An attempt's events
are held back until its answer begins. If it fails before, they are dropped, and another attempt is made or the turn
fails; later the client has read a part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import msgspec

from codex_proxy.agents.dialect import NOTHING, Dialect, Ended, Reply, SingleTurn, Step
from codex_proxy.agents.shared.marks import OriginMarks
from codex_proxy.core.events import (
    AccountLimitsReported,
    Event,
    Notice,
    RawItem,
    ServedBy,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.stream import Message
from codex_proxy.parts.upstream.turn import ExchangeTurn

HELD_EVENTS: Final = frozenset({TurnStarted, Notice, RawItem, AccountLimitsReported})
"""Types of events that are no part of an answer, and are held back."""


class UpstreamAttempt(msgspec.Struct, frozen=True):
    """An attempt that its upstream has admitted."""

    name: str
    """The upstream's name; empty for the only agent."""
    turn: Turn
    """The turn as the upstream gets it."""
    dialect: Dialect[Message]
    begun: Step
    """The step with which the dialect has begun the turn."""

    @property
    def marks(self) -> OriginMarks | None:
        """What marks encrypted content, so that no other upstream gets it; None if there is only one upstream."""
        return OriginMarks(self.name) if self.name else None


class NoAttempt(msgspec.Struct, frozen=True):
    failure: Failure | None = None
    """Why the last attempt could not be opened; None: the turn fails as the attempt before did."""


AttemptMessage: TypeAlias = Message | UpstreamAttempt | NoAttempt


class AttemptedTurn(SingleTurn):
    """Passes calls on to the current attempt's dialect."""

    def __init__(
        self, first: UpstreamAttempt, on_failure: Callable[[Failure], bool], on_answer: Callable[[], int]
    ) -> None:
        """`on_failure` is called when an attempt fails before its answer, and returns whether an `UpstreamAttempt` or
        `NoAttempt` follows. `on_answer` is called when an answer begins or the turn fails, and returns the number of
        attempts.
        """
        self._name = first.name
        self._marks = first.marks
        self._dialect = first.dialect
        self._first = first.begun
        self._on_failure = on_failure
        self._on_answer = on_answer
        self._held: list[Event] = []
        self._is_answering = False
        self._is_waiting = False
        """Whether the next attempt is being opened."""

    @property
    def finished(self) -> bool:
        return self._is_answering and self._dialect.finished

    def begin(self, turn: Turn) -> Step:
        """Returns the first step of the first attempt, whose dialect has begun already. `turn` is not used."""
        first, self._first = self._first, NOTHING
        return self._pass_on(first)

    def receive(self, messages: Sequence[AttemptMessage]) -> Step:
        """Reads the current attempt's messages, or begins the next one. What comes after a failure is ignored."""
        first = messages[0]
        if isinstance(first, UpstreamAttempt):
            self._name, self._marks, self._dialect = first.name, first.marks, first.dialect
            self._held.clear()
            self._is_waiting = False
            return self._pass_on(first.begun)
        if isinstance(first, NoAttempt):
            if first.failure is not None:
                self._held[-1] = TurnEnded.with_failure(first.failure)
            return self._begin_answer(Step([], close_stdin=True))
        if self._is_waiting:
            return NOTHING
        return self._pass_on(self._dialect.receive(messages))  # type: ignore[arg-type]  # by the first one

    def answer(self, request_id: str, reply: Reply) -> Step:
        return self._pass_on(self._dialect.answer(request_id, reply))

    def eof(self, ended: Ended) -> Step:
        return self._pass_on(self._dialect.eof(ended))

    def _pass_on(self, step: Step) -> Step:
        """Returns the step without events while they are held back."""
        if self._marks is not None:
            step = Step(self._marks.mark(step.events), step.writes, step.close_stdin)
        if self._is_answering:
            return step
        self._held += step.events
        last = step.events[-1] if step.events else None
        if isinstance(last, TurnEnded) and last.failure is not None:
            self._is_waiting = self._on_failure(last.failure)
            return NOTHING if self._is_waiting else self._begin_answer(step)
        if HELD_EVENTS.issuperset(map(type, step.events)):
            return Step([], step.writes, step.close_stdin)
        return self._begin_answer(step)

    def _begin_answer(self, step: Step) -> Step:
        self._is_answering = True
        events, self._held = self._held, []
        starts = [event for event in events if type(event) is TurnStarted]
        rest = [event for event in events if type(event) is not TurnStarted]
        changed = self._dialect.changed if isinstance(self._dialect, ExchangeTurn) else ()
        served_by = ServedBy(self._name, self._on_answer(), changed)
        return Step([*starts, served_by, *rest], step.writes, step.close_stdin)
