"""A turn's time limits, with one timer for the earliest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from codex_proxy.core.events import Retrying
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.interfaces import TimerHandle, Timers


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds: `first` until the client sees something, `idle` without output for the turn, `total` for the
    turn. Output that no dialect knows counts as well: it may be the progress of a newer agent.
    """

    first: float = 60.0
    idle: float = 300.0
    total: float = 3600.0


class DeadlineWatch:
    """Calls `on_expired` once, with a TIMED_OUT failure. The time begins with `start`."""

    def __init__(self, deadlines: Deadlines, timers: Timers, on_expired: Callable[[Failure], None]) -> None:
        self._deadlines = deadlines
        self._timers = timers
        self._on_expired: Callable[[Failure], None] | None = on_expired
        self._began = self._last = 0.0
        self.visible = False
        """Whether there was an event that the client sees."""
        self.paused = False
        """Whether the agent waits for this server."""
        self.stopped = False
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        self._began = self._last = self._timers.time()
        self._arm()

    def note_event(self, *, visible: bool) -> None:
        """Notes an event; a `visible` one meets `first`."""
        self._last = self._timers.time()
        self.visible = self.visible or visible

    def pause(self) -> None:
        """Stops the idle deadline until `resume`."""
        self.paused = True

    def resume(self) -> None:
        """Starts the idle deadline again, with its full time."""
        self.paused = False
        self._last = self._timers.time()
        if self._timer is not None:
            self._timer.cancel()
            self._arm()

    def stop(self) -> None:
        self.stopped = True
        self._on_expired = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> tuple[float, str, float]:
        limits = self._deadlines
        candidates = [(self._began + limits.total, "the whole answer", limits.total)]
        if not self.paused:
            candidates.append((self._last + limits.idle, "the next sign of life", limits.idle))
        if not self.visible:
            candidates.append((self._began + limits.first, "the first word", limits.first))
        return min(candidates)

    def _arm(self) -> None:
        self._timer = self._timers.call_at(self._next()[0], self._check)

    def _check(self) -> None:
        when, what, seconds = self._next()
        if when > self._timers.time():
            self._arm()
            return
        self._timer = None
        message = f"The agent took longer than {seconds:g} s for {what}. Try again, or raise the time limit."
        if self._on_expired is not None:
            self._on_expired(Failure(FaultKind.TIMED_OUT, message))


def deadline_failure(late: Failure, retrying: Retrying | None, retries: int, hint: str) -> Failure:
    """Returns the failure of a turn that a deadline (`late`) ends: that of the agent's last unanswered retry
    (`retrying`), if any. `hint` says what the agent may be doing.
    """
    if retrying is None:
        return msgspec.structs.replace(late, message=f"{late.message} {hint}") if hint else late
    times = "once" if retries == 1 else f"{retries} times"
    if retrying.failure is None:
        message = f"{late.message} It had retried its model request {times}: {retrying.message}"
        return msgspec.structs.replace(late, message=message)
    reason = retrying.failure.message.rstrip(".")
    message = f"{reason}. The agent retried {times} and ran out of time: {late.message}"
    return msgspec.structs.replace(retrying.failure, message=message)
