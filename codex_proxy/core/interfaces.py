"""Interfaces of the clock, the timers and the source of ids, which code without IO gets as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Clock(Protocol):
    """A clock; an argument, so that a test can set the time."""

    def monotonic(self) -> float:
        """Returns seconds from an arbitrary start; the value never decreases."""
        ...

    def epoch(self) -> float:
        """Returns seconds since 1970, the unit of OpenAI's `created`."""
        ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The methods of an asyncio event loop that timers need."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> TimerHandle: ...


class IdSource(Protocol):
    """The interface for making new ids for objects of this server."""

    def new(self, prefix: str) -> str:
        """Returns a new unique id that begins with `prefix`: `new("chatcmpl-")` returns `chatcmpl-` and 32
        characters.
        """
        ...
