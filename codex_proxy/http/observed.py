"""What an exchange sees go by: for the log, for the metrics of a usage chunk, and for those of the
server. Source: docs/contract.md#streams.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from codex_proxy.core.events import (
    VISIBLE,
    ArgumentsDelta,
    Event,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.ids import Clock
from codex_proxy.core.items import McpTools
from codex_proxy.surfaces.chat.render import StreamMetrics

SHOWN = VISIBLE - {TurnEnded}
"""What a client can be shown something of."""


def _shows(event: Event) -> bool:
    """Lists of tools wait for the first word: they are no beginning of an answer."""
    return type(event) in SHOWN and not (isinstance(event, ItemStarted) and isinstance(event.item, McpTools))


DELTAS = (TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, OutputDelta)


class Tally:
    """What is counted of one request's events: its deltas, and the tokens that were told last."""

    __slots__ = ("deltas", "usage")

    def __init__(self) -> None:
        self.deltas = 0
        self.usage: Usage | None = None

    def see(self, events: Sequence[Event]) -> None:
        """Counts a batch, without a step of Python for each of its deltas."""
        kinds = list(map(type, events))
        self.deltas += sum(map(kinds.count, DELTAS))
        if UsageReported in kinds:
            self.usage = next(event.usage for event in reversed(events) if isinstance(event, UsageReported))


TALLY: ContextVar[Tally | None] = ContextVar("tally", default=None)
"""The tally of the request that is being handled; None where nobody counts."""


class Observed:
    """Times from the request's arrival on, and how the turn ended."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._first: float | None = None
        self._tally = TALLY.get()
        self.ended_by: str | None = None
        """The agent's event that gave the finish reason."""

    def see(self, events: Sequence[Event]) -> None:
        """Looks at a batch, before it is rendered. A turn's end is the last of its events."""
        if self._tally is not None:
            self._tally.see(events)
        if self._first is None and any(map(_shows, events)):
            self._first = self._clock.monotonic()
        if events and isinstance(events[-1], TurnEnded):
            self.ended_by = events[-1].trigger

    @property
    def first_ms(self) -> float | None:
        """Milliseconds until there was something to show."""
        return None if self._first is None else round((self._first - self._began) * 1000, 1)

    def measure(self, tokens: int) -> StreamMetrics:
        """The metrics of a stream that ends now. A rate needs time to have passed: an answer that came in one
        piece has none."""
        if self._first is None:
            return StreamMetrics()
        passed = self._clock.monotonic() - self._first
        return StreamMetrics(self.first_ms, round(tokens / passed, 2) if passed > 0 else None)
