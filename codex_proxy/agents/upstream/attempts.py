"""Decides which upstream gets the next attempt of a turn, and when, after an attempt has failed (`AttemptPlan`); and
when nothing more is sent to an upstream that keeps failing (`Breaker`).

Input: the upstreams for the turn, in order, and the failure of each attempt; for the breaker the outcomes of attempts
at one upstream, and the time. Output: the next attempt, or None; whether an attempt may be made. Pure: random numbers
come from an argument. The caller must not make another attempt if a part of the answer was sent to the client already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure, FaultKind

K = FaultKind

FIRST_WAIT: Final = 0.5
"""Seconds before the first repetition of an attempt. Doubled for each one after it."""
MAX_WAIT: Final = 8.0

RETRIED: Final = frozenset(
    {
        *(K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UNAVAILABLE),
        K.AGENT_RATE_LIMITED,
    }
)
"""Kinds of failures after which the same upstream is asked again, because it may answer the next time."""
RETRIED_ELSEWHERE: Final = RETRIED | {
    *(K.UPSTREAM_TIMEOUT, K.UPSTREAM_UNAUTHORIZED, K.USAGE_LIMIT_REACHED, K.INSUFFICIENT_QUOTA),
    *(K.CONCURRENCY_EXCEEDED, K.AGENT_MISCONFIGURED, K.AGENT_NOT_AUTHENTICATED),
}
"""Kinds of failures after which another upstream is asked."""
BLAMED: Final = frozenset(
    {
        *(K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UNAVAILABLE),
        K.UPSTREAM_TIMEOUT,
    }
)
"""Kinds of failures that the circuit breaker counts, because they mean that the upstream does not work. A usage
limit or an invalid key does not count."""


Outcome: TypeAlias = Literal["answered", "failed", "left"]
"""The outcome of an attempt: the upstream has `answered`, the attempt has `failed`, or the client has `left` before
that."""


class UpstreamTarget(msgspec.Struct, frozen=True):
    """One upstream for a turn: its name, its own name for the turn's `model`, and how many times a failed attempt
    at it is repeated (`retries`).
    """

    name: str
    model: str
    retries: int = 0
    max_retry_after: float = 30.0
    """If the upstream answers with a `Retry-After` of more than this many seconds, this upstream is not tried
    again in this turn."""


class NextAttempt(msgspec.Struct, frozen=True):
    """The upstream for the next attempt, and the number of seconds to wait before it."""

    target: UpstreamTarget
    wait: float = 0.0


class AttemptPlan:
    """Decides which upstream gets each attempt of one turn, and when. `target` is the upstream of the current
    attempt.
    """

    def __init__(self, targets: Sequence[UpstreamTarget], chance: Callable[[], float]) -> None:
        """`targets` are the upstreams, at least one, in the order in which they are tried. `chance` returns a
        random number from 0 to 1, which varies the waits, so that turns that failed at the same time are not
        repeated at the same time.
        """
        self.target, *self._others = targets
        self.attempts = 1
        """The number of attempts made, including the current one."""
        self._chance = chance
        self._retried = 0

    @property
    def is_last(self) -> bool:
        """Whether there is no further upstream after the current one."""
        return not self._others

    def after(self, failure: Failure, *, not_asked: bool = False) -> NextAttempt | None:
        """Returns the next attempt, given the `failure` of the current one: at the same upstream, or else at the
        next one. Returns None if the turn fails with this failure, because its kind (`RETRIED`,
        `RETRIED_ELSEWHERE`) allows no other attempt, or no upstream is left. `not_asked`: this server made no
        attempt, for example because the upstream's circuit breaker is open, so the same upstream is not tried
        again.
        """
        wait = None if not_asked else self._wait_here(failure)
        if wait is not None:
            self._retried += 1
            self.attempts += 1
            return NextAttempt(self.target, wait)
        if not self._others or not (not_asked or failure.kind in RETRIED_ELSEWHERE):
            return None
        self.target = self._others.pop(0)
        self._retried = 0
        self.attempts += not not_asked
        return NextAttempt(self.target)

    def _wait_here(self, failure: Failure) -> float | None:
        """Returns the number of seconds to wait before the attempt is repeated at the same upstream. Returns None
        if it is not repeated there: the kind of failure does not allow it, all `retries` are made, the upstream
        asks for too long a wait, or it is at its rate limit and another upstream is left.
        """
        if failure.kind not in RETRIED or self._retried >= self.target.retries:
            return None
        if failure.kind is K.AGENT_RATE_LIMITED and self._others:
            return None  # another one need not be waited for
        asked = failure.retry_after or 0.0
        if asked > self.target.max_retry_after:
            return None
        backoff = min(FIRST_WAIT * 2.0**self._retried, MAX_WAIT)
        return max(asked, backoff * (0.5 + self._chance() / 2))


BreakerState: TypeAlias = Literal["closed", "open", "half-open"]
STATES: Final[tuple[BreakerState, ...]] = ("closed", "open", "half-open")


class Breaker:
    """The circuit breaker of one upstream. After some failures in a row it is open: no attempt is made for a time. Then
    it is half open: a single attempt is made. If that fails, the breaker opens again; any success closes it. `now` is
    always in seconds of a monotonic clock.
    """

    def __init__(self, failures: int, seconds: float) -> None:
        """`failures` is the number of failures in a row that opens the breaker (0: never); `seconds` is how long it
        stays open.
        """
        self._max_failures = failures
        self._seconds = seconds
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False

    def state(self, now: float) -> BreakerState:
        """Returns whether the breaker is closed, open or half open at the time `now`."""
        if self._opened_at is None:
            return "closed"
        return "open" if self.seconds_left(now) > 0 else "half-open"

    def seconds_left(self, now: float) -> float:
        """Returns the seconds until the next attempt may be made; 0 if one may be made now."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._seconds - now)

    def admits(self, now: float) -> bool:
        """Returns whether an attempt may be made now. If so, the caller must make it, and report its outcome by
        `succeeded`, `failed` or `gave_up`: a half-open breaker admits no other attempt until then.
        """
        if self._opened_at is None:
            return True
        if self._probing or self.seconds_left(now) > 0:
            return False
        self._probing = True
        return True

    def note_success(self) -> None:
        """Records that the upstream has answered an attempt, and closes the breaker."""
        self._failures, self._opened_at, self._probing = 0, None, False

    def note_failure(self, now: float) -> None:
        """Records that an attempt failed because the upstream does not work. Opens the breaker if it was half open,
        or if this was the last failure in a row that it allows.
        """
        self._failures += 1
        if self._probing or (self._max_failures and self._failures >= self._max_failures):
            self._opened_at, self._probing = now, False

    def gave_up(self) -> None:
        """Records that an attempt ended before it was known whether the upstream works. The state stays; a
        half-open breaker admits another attempt.
        """
        self._probing = False
