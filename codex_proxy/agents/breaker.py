"""A circuit breaker: decides when an upstream that keeps failing is left alone, and when it is tried again.

In: the outcome of each attempt, and the time. Out: whether the next one may be made. Pure.

After `failures` failures in a row it is open: no attempt is made for `seconds`. Then it is half open: one attempt is
made, and decides. Each success closes it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

BreakerState: TypeAlias = Literal["closed", "open", "half-open"]
STATES: Final[tuple[BreakerState, ...]] = ("closed", "open", "half-open")


class Breaker:
    """The breaker of one upstream. Times are in seconds of a monotonic clock."""

    def __init__(self, failures: int, seconds: float) -> None:
        """`failures`: 0 for a breaker that never opens."""
        self._most = failures
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
        """Returns the seconds until an attempt may be made."""
        return 0.0 if self._opened_at is None else max(0.0, self._opened_at + self._seconds - now)

    def admits(self, now: float) -> bool:
        """Returns whether an attempt may be made. The half-open state admits one, whose outcome the caller must
        report."""
        if self._opened_at is None:
            return True
        if self._probing or self.seconds_left(now) > 0:
            return False
        self._probing = True
        return True

    def succeeded(self) -> None:
        """Notes that an attempt got an answer."""
        self._failures, self._opened_at, self._probing = 0, None, False

    def failed(self, now: float) -> None:
        """Notes that an attempt failed through the upstream's fault."""
        self._failures += 1
        if self._probing or (self._most and self._failures >= self._most):
            self._opened_at, self._probing = now, False

    def gave_up(self) -> None:
        """Notes that an attempt ended without showing whether the upstream works, because its client left."""
        self._probing = False
