"""A turn that may take several attempts: which upstream gets the next one, and when (`AttemptPlan`); when an upstream
that keeps failing gets nothing more (`Breaker`); and the dialect, which holds back an attempt's events until its answer
begins. If it fails before, they are dropped, and another attempt is made or the turn fails; later the client has read a
part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, TypeAlias

import msgspec

from codex_proxy.agents.agent import BreakerState
from codex_proxy.agents.dialect import NOTHING, Dialect, Ended, Reply, SingleTurn, Step
from codex_proxy.agents.shared.history_items import OriginMarks
from codex_proxy.core.events import (
    AccountLimitsReported,
    Event,
    Notice,
    RawItem,
    ServedBy,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.stream import Message
from codex_proxy.parts.upstream.turn import ExchangeTurn

K = FaultKind

FIRST_WAIT: Final = 0.5
"""Seconds before the first repetition; doubled for each later one."""
MAX_WAIT: Final = 8.0

RETRIED_KINDS: Final = frozenset({
    K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UNAVAILABLE,
    K.AGENT_RATE_LIMITED,
})  # fmt: skip
"""Failures after which the same upstream is asked again."""
KINDS_RETRIED_ELSEWHERE: Final = RETRIED_KINDS | {
    K.UPSTREAM_TIMEOUT, K.UPSTREAM_UNAUTHORIZED, K.USAGE_LIMIT_REACHED, K.INSUFFICIENT_QUOTA,
    K.CONCURRENCY_EXCEEDED, K.AGENT_MISCONFIGURED, K.AGENT_NOT_AUTHENTICATED,
}  # fmt: skip
"""Failures after which another upstream is asked."""
BLAMED_KINDS: Final = frozenset({
    K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UNAVAILABLE, K.UPSTREAM_TIMEOUT,
})  # fmt: skip
"""Failures that the breaker counts; a usage limit or an invalid key is not counted."""


Outcome: TypeAlias = Literal["answered", "failed", "left"]
"""How an attempt ended. `left`: the client left before."""


class AttemptOwner(Protocol):
    """The upstream at which an attempt is made."""

    def record(self, outcome: Outcome, failure: Failure | None = None) -> None:
        """Reports the attempt's outcome to the breaker, which counts only failures that are the upstream's fault."""

    def leave(self) -> None:
        """Frees the attempt's place."""


class UpstreamTarget(msgspec.Struct, frozen=True):
    """An upstream, its name for the `model`, and how often a failed attempt is repeated."""

    name: str
    model: str
    retries: int = 0
    max_retry_after: float = 30.0
    """The longest `Retry-After`, in seconds, after which the upstream is asked again in this turn."""


class AttemptPlan:
    """The attempts of one turn. `target` is the current upstream."""

    def __init__(self, targets: Sequence[UpstreamTarget], chance: Callable[[], float]) -> None:
        """`targets`: the upstreams to try, in order, at least one. `chance` returns a random number from 0 to 1,
        which varies the waits.
        """
        self.target, *self._others = targets
        self.attempts = 1
        """Number of attempts, the current one included."""
        self._chance = chance
        self._retried = 0

    @property
    def is_last(self) -> bool:
        return not self._others

    def choose_next(self, failure: Failure, *, not_asked: bool = False) -> float | None:
        """Chooses the `target` after a failure: the same upstream, else the next. Returns the seconds to wait, or None
        if the turn fails. `not_asked`: this server made no attempt, so the same upstream is not tried again.
        """
        wait = None if not_asked else self._wait_here(failure)
        if wait is not None:
            self._retried += 1
            self.attempts += 1
            return wait
        if not self._others or not (not_asked or failure.kind in KINDS_RETRIED_ELSEWHERE):
            return None
        self.target = self._others.pop(0)
        self._retried = 0
        self.attempts += not not_asked
        return 0.0

    def _wait_here(self, failure: Failure) -> float | None:
        """Returns the seconds before another attempt at the same upstream. None: no attempt there, by the failure's
        kind, `retries`, or too long a wait, or because another upstream has no rate limit to wait for.
        """
        if failure.kind not in RETRIED_KINDS or self._retried >= self.target.retries:
            return None
        if failure.kind is K.AGENT_RATE_LIMITED and self._others:
            return None  # another one need not be waited for
        asked = failure.retry_after or 0.0
        if asked > self.target.max_retry_after:
            return None
        backoff = min(FIRST_WAIT * 2.0**self._retried, MAX_WAIT)
        return max(asked, backoff * (0.5 + self._chance() / 2))


class Breaker:
    """An upstream's circuit breaker: open for a time after some failures in a row, then half open, when it admits one
    attempt, whose failure opens it again. A success closes it. `now`: seconds of a monotonic clock.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        """`failures` in a row open it (0: never), for `seconds`."""
        self._max_failures = failures
        self._seconds = seconds
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    def state(self, now: float) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "open" if self.seconds_left(now) > 0 else "half-open"

    def seconds_left(self, now: float) -> float:
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._seconds - now)

    def admits(self, now: float) -> bool:
        """Whether an attempt may be made. If so, the caller must make it and report the outcome: a half-open breaker
        admits no other until then.
        """
        if self._opened_at is None:
            return True
        if self._probing or self.seconds_left(now) > 0:
            return False
        self._probing = True
        return True

    def note_success(self) -> None:
        self._failures, self._opened_at, self._probing = 0, None, False

    def note_failure(self, now: float) -> None:
        """Notes a failed attempt, which opens a breaker that is half open or has reached its number of failures."""
        self._failures += 1
        if self._probing or (self._max_failures and self._failures >= self._max_failures):
            self._opened_at, self._probing = now, False

    def note_no_result(self) -> None:
        """Notes an attempt without a result: a half-open breaker admits another."""
        self._probing = False


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
        step = self._dialect.receive(messages)  # type: ignore[arg-type]  # by the first one
        return step if self._is_answering and self._marks is None else self._pass_on(step)

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
