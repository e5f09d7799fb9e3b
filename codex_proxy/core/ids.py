"""Where time, timers and names come from. Core, dialects and surfaces take these as arguments and own none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """The time, injected, so that a test can turn the hands."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...

    def epoch(self) -> float:
        """Seconds since 1970, as OpenAI's `created` counts them."""
        ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What is needed of an event loop's clock; a test turns the hands itself."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...


class IdSource(Protocol):
    """New names for things of ours."""

    def new(self, prefix: str) -> str:
        """Returns a new unique id: `new("chatcmpl-")` returns `chatcmpl-` and 32 characters."""
        ...
