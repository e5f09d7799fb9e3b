"""Where time and names come from. Core, agents and surfaces take these as arguments and own neither."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """The time, injected, so that a test can turn the hands."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start, never going back."""
        ...

    def epoch(self) -> float:
        """Seconds since 1970, as OpenAI's `created` counts them."""
        ...


class IdSource(Protocol):
    """New names for things of ours."""

    def new(self, prefix: str) -> str:
        """A name that was not given before: `new("chatcmpl-")` gives `chatcmpl-` and 32 characters."""
        ...
