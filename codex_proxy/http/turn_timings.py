"""When the events of a turn came and how many there were: for the log, the metrics in a usage chunk, and those of the
server. Source: docs/contract.md#streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

from aiohttp import web

from codex_proxy.core.events import (
    VISIBLE,
    ArgumentsDelta,
    Event,
    ForwardedBytes,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    ServedBy,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.ids import Clock
from codex_proxy.core.items import McpTools
from codex_proxy.http.app_keys import CLOCK
from codex_proxy.http.middleware.request_context import NOTES, REPLY_HEADERS
from codex_proxy.surfaces.chat.render import StreamMetrics

DELTAS = (TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, OutputDelta)
SHOWN = VISIBLE - {TurnEnded}
"""Events of which a client can be shown something."""


def _shows(event: Event) -> bool:
    """Whether the answer begins with this event. Lists of tools wait for the first word: they are no beginning."""
    return type(event) in SHOWN and not (isinstance(event, ItemStarted) and isinstance(event.item, McpTools))


class EventCounts:
    """What is counted of one request's events: its deltas, and the tokens that were reported last."""

    __slots__ = ("deltas", "usage")

    def __init__(self) -> None:
        self.deltas = 0
        self.usage: Usage | None = None

    def count(self, events: Sequence[Event]) -> None:
        """Counts a batch, without a step of Python for each of its deltas."""
        if len(events) == 1 and isinstance(events[0], ForwardedBytes):
            self.deltas += events[0].deltas
            return
        kinds = list(map(type, events))
        self.deltas += sum(map(kinds.count, DELTAS))
        if ForwardedBytes in kinds:
            self.deltas += sum(event.deltas for event in events if isinstance(event, ForwardedBytes))
        if UsageReported in kinds:
            self.usage = next(event.usage for event in reversed(events) if isinstance(event, UsageReported))


EVENT_COUNTS: ContextVar[EventCounts | None] = ContextVar("event_counts", default=None)
"""The counts of the request that is being handled; None where nothing is counted."""


class TurnTimings:
    """Measures a turn from the arrival of its request on, which is when this is made."""

    def __init__(self, clock: Clock, told: Callable[[ServedBy], None] | None = None) -> None:
        """`told` is called with the upstream that answers, as soon as that is known."""
        self._clock = clock
        self._began = clock.monotonic()
        self._first: float | None = None
        self._counts = EVENT_COUNTS.get()
        self._told = told
        self.ended_by: str | None = None
        """The agent's event that gave the finish reason."""

    def record(self, events: Sequence[Event]) -> None:
        """Takes a batch of events, before it is rendered. A turn's end is the last of its events."""
        if self._counts is not None:
            self._counts.count(events)
        if self._told is not None and ServedBy in map(type, events):
            self._told(next(event for event in events if isinstance(event, ServedBy)))
        if self._first is None and any(map(_shows, events)):
            self._first = self._clock.monotonic()
        if events and isinstance(events[-1], TurnEnded):
            self.ended_by = events[-1].trigger

    @property
    def first_ms(self) -> float | None:
        """Milliseconds until there was something to show."""
        return None if self._first is None else round((self._first - self._began) * 1000, 1)

    def stream_metrics(self, tokens: int) -> StreamMetrics:
        """The metrics of a stream that ends now. A rate needs time to have passed: an answer that came in one
        piece has none."""
        if self._first is None:
            return StreamMetrics()
        passed = self._clock.monotonic() - self._first
        return StreamMetrics(self.first_ms, round(tokens / passed, 2) if passed > 0 else None)


def timings_of(request: web.Request) -> TurnTimings:
    """Measures the request's turn. The upstream that answers, of several, gets into its headers and its log line."""

    def served_by(event: ServedBy) -> None:
        request[REPLY_HEADERS]["x-codex-upstream"] = event.upstream
        request[REPLY_HEADERS]["x-codex-attempts"] = str(event.attempts)
        request[NOTES] |= {"upstream": event.upstream, "attempts": event.attempts}

    return TurnTimings(request.app[CLOCK], served_by)
