"""A circuit breaker: decides when nothing more is sent to an upstream (a model server) that keeps failing, and when
it is tried again.

Input: the outcome of each attempt, and the time. Output: whether the next attempt may be made. Pure.

After `failures` failures in a row the breaker is open: no attempt is made for `seconds`. Then it is half open: a
single attempt is made. If that fails, the breaker opens again; any success closes it.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

BreakerState: TypeAlias = Literal["closed", "open", "half-open"]
STATES: Final[tuple[BreakerState, ...]] = ("closed", "open", "half-open")


class Breaker:
    """The circuit breaker of one upstream. `now` is always in seconds of a monotonic clock."""

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

    def succeeded(self) -> None:
        """Records that the upstream has answered an attempt, and closes the breaker."""
        self._failures, self._opened_at, self._probing = 0, None, False

    def failed(self, now: float) -> None:
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
