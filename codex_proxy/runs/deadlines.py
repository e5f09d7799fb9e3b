"""How long a turn may take: until its first visible event, between two signs of life, and in all.

One timer for all three, moved lazily: a sign of life costs one comparison, not a timer.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.ids import Scheduler, TimerHandle


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds. `first`: until something visible; `idle`: between two signs of life; `total`: in all."""

    first: float = 60.0
    idle: float = 300.0
    total: float = 3600.0


class DeadlineWatch:
    """Calls `expired` once, with the failure, when one of the deadlines passes."""

    def __init__(
        self, deadlines: Deadlines, scheduler: Scheduler, expired: Callable[[Failure], None]
    ) -> None:
        self._deadlines = deadlines
        self._scheduler = scheduler
        self._expired: Callable[[Failure], None] | None = expired
        self._began = self._last = scheduler.time()
        self._visible = False
        self.held = False
        """The agent is made to wait."""
        self._timer: TimerHandle | None = None
        self._arm()

    def alive(self, *, visible: bool) -> None:
        """Notes that the agent did something; `visible`: something that the client sees."""
        self._last = self._scheduler.time()
        self._visible = self._visible or visible

    def hold(self) -> None:
        """Stops the idle deadline while the agent waits for this server. The other deadlines go on."""
        self.held = True

    def go_on(self) -> None:
        """Starts the idle deadline anew."""
        self.held = False
        self._last = self._scheduler.time()
        if self._timer is not None:
            self._timer.cancel()
            self._arm()

    def stop(self) -> None:
        """Stops all deadlines, and drops the reference to `expired`."""
        self._expired = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> tuple[float, str, float]:
        limits = self._deadlines
        candidates = [(self._began + limits.total, "the whole answer", limits.total)]
        if not self.held:
            candidates.append((self._last + limits.idle, "the next sign of life", limits.idle))
        if not self._visible:
            candidates.append((self._began + limits.first, "the first word", limits.first))
        return min(candidates)

    def _arm(self) -> None:
        self._timer = self._scheduler.call_at(self._next()[0], self._check)

    def _check(self) -> None:
        when, what, seconds = self._next()
        if when > self._scheduler.time():
            self._arm()
            return
        self._timer = None
        message = f"The agent took longer than {seconds:g} s for {what}. Try again, or raise the time limit."
        if self._expired is not None:
            self._expired(Failure(kind=FaultKind.TIMED_OUT, message=message))
