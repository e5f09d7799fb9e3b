"""Clock, timers and ids, which code without IO gets as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """The clock of the server, or of a test."""

    def monotonic(self) -> float:
        """Returns seconds from an arbitrary start; never fewer than before."""

    def epoch(self) -> float:
        """Returns seconds since 1970."""


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """What timers need of an asyncio event loop."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...


class IdSource(Protocol):
    """Makes ids for objects of this server."""

    def new(self, prefix: str) -> str:
        """Returns a new unique id: `new("chatcmpl-")` is `chatcmpl-` and 32 characters."""
