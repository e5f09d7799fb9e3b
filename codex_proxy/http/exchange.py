"""Answers an HTTP request with the bytes of a `Reader`: as a whole, or as a stream. When the request is over, also
because the client has left, the reader is closed.

A `Source` returns the events of one answer: those of one run (one turn of an agent), or of several runs that are
choices of one answer. A `Reader` returns the bytes of an answer; `LogReader` renders them from a `Source`.

`TurnTimings` measures when the events of a turn arrive: for the log, the metrics in a usage chunk, and the server's
metrics. Source: docs/contract.md#streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Protocol

from aiohttp import web

from codex_proxy.core.empty_answers import EmptyReason
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
    Stop,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.items import McpTools
from codex_proxy.http.replies import log_unforeseen
from codex_proxy.http.sse import EventStream, IdleTimer
from codex_proxy.runs.event_log import Cursor, Push
from codex_proxy.runs.run import Run
from codex_proxy.surfaces.chat.render import StreamMetrics
from codex_proxy.surfaces.ollama.render import TurnTimes
from codex_proxy.surfaces.samples import Samples

DELTAS = (TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, OutputDelta)
SHOWN = VISIBLE - {TurnEnded}
"""The types of events of which a client can see something."""


def _is_first_visible(event: Event) -> bool:
    """Whether the client can see something of this event (text, reasoning, a call), so that it counts as the first
    event of an answer. A list of MCP tools does not count, because it is sent together with the first output.
    """
    return type(event) in SHOWN and not (isinstance(event, ItemStarted) and isinstance(event.item, McpTools))


class EventCounts:
    """Counts the deltas of one request, and keeps the newest usage that the agent reported. For the server's
    metrics.
    """

    __slots__ = ("deltas", "usage")

    def __init__(self) -> None:
        self.deltas = 0
        self.usage: Usage | None = None

    def count(self, events: Sequence[Event]) -> None:
        """Counts the deltas in a batch of events, and keeps the last reported usage in it, if there is one."""
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
"""The counts of the request that is being handled; None if metrics are off."""


class TurnTimings:
    """Measures the times of a turn, beginning when this object is created."""

    def __init__(
        self,
        clock: Clock,
        on_served: Callable[[ServedBy], None] | None = None,
        on_empty: Callable[[EmptyReason], None] | None = None,
    ) -> None:
        """`on_served` is called with the upstream that answers, as soon as that is known; `on_empty` at the end of
        an answer without text, refusal and call, with the reason.
        """
        self._clock = clock
        self._began = clock.monotonic()
        self._started: float | None = None
        self._first: float | None = None
        self._counts = EVENT_COUNTS.get()
        self._on_served = on_served
        self._on_empty = on_empty
        self.ended_by: str | None = None
        """The name of the agent's event that determined the finish reason."""

    def record(self, events: Sequence[Event]) -> None:
        """Records the times of a batch of events that has just arrived. Call it with each batch of the turn, in
        order.
        """
        if self._counts is not None:
            self._counts.count(events)
        if self._on_served is not None and ServedBy in map(type, events):
            self._on_served(next(event for event in events if isinstance(event, ServedBy)))
        if self._started is None and events:
            self._started = self._clock.monotonic()
        if self._first is None and any(map(_is_first_visible, events)):
            self._first = self._clock.monotonic()
        if events and isinstance(events[-1], TurnEnded):
            self.ended_by = events[-1].trigger
            if events[-1].empty and self._on_empty is not None:
                self._on_empty(events[-1].empty)

    @property
    def first_ms(self) -> float | None:
        """Milliseconds until the first event that the client can see (text, reasoning or an item such as a call);
        None if there has been none yet.
        """
        return None if self._first is None else round((self._first - self._began) * 1000, 1)

    def durations(self) -> TurnTimes:
        """Returns the times of a turn that ends now: until the agent's first event, from then until the first one
        that the client can see, and from then on.
        """
        now = self._clock.monotonic()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        spans = (now - self._began, started - self._began, first - started, now - first)
        return TurnTimes(*(int(span * 1_000_000_000) for span in spans))

    def stream_metrics(self, tokens: int) -> StreamMetrics:
        """Returns the metrics of a stream that ends now and has `tokens` tokens: the time until its first event,
        and the tokens per second since then. Each is None if it cannot be computed.
        """
        if self._first is None:
            return StreamMetrics()
        passed = self._clock.monotonic() - self._first
        return StreamMetrics(self.first_ms, round(tokens / passed, 2) if passed > 0 else None)


class Source(Protocol):
    """The interface of a source of the events of one answer. It has a single reader."""

    @property
    def continued(self) -> bool:
        """Whether the turn continues a session of the agent that has seen the earlier messages, so that they are
        not sent to it again.
        """
        ...

    @property
    def finished(self) -> bool:
        """Whether the answer has ended and `take` has returned all of its events."""
        ...

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        """Waits until `take` would return events, or the answer has ended. May be cancelled and called again.

        A source may call `push` when there are new events. If `push` returns True, it has taken and sent them, and
        the wait continues. An exception of `push` is raised here.
        """
        ...

    def take(self) -> list[Event]:
        """Returns the events that have arrived since the last call, without waiting."""
        ...

    def close(self) -> None:
        """Stops reading, and interrupts the turns that have not ended."""
        ...


class OneRun:
    """The events of one run, for the answer to one HTTP request. `close` interrupts the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cursor = run.log.cursor()

    @property
    def continued(self) -> bool:
        """Whether the run continues a session of the agent that was kept after an earlier turn."""
        return self._run.continued

    @property
    def finished(self) -> bool:
        return self._cursor.finished

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        return self._cursor.wait(push)

    def take(self) -> list[Event]:
        return self._cursor.take()

    def close(self) -> None:
        self._cursor.detach()
        self._run.interrupt()


class SampledRuns:
    """The events of several runs of the same turn, combined into one answer with a choice for each run. If one run
    fails, the answer fails, and `close` interrupts the others.
    """

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self._samples = Samples(len(runs))
        self._cursors: list[Cursor] = [run.log.cursor() for run in runs]
        self._waiting: dict[int, asyncio.Task[None]] = {}

    continued = False
    """Always false: each choice is a turn of its own."""

    @property
    def finished(self) -> bool:
        return self._samples.ended

    async def wait(self, push: Push | None = None) -> None:
        for index, cursor in enumerate(self._cursors):
            if not cursor.finished and index not in self._waiting:
                self._waiting[index] = asyncio.ensure_future(cursor.wait())
        if self._waiting:
            await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)

    def take(self) -> list[Event]:
        for index in [index for index, task in self._waiting.items() if task.done()]:
            del self._waiting[index]
        events: list[Event] = []
        for index, cursor in enumerate(self._cursors):
            events += self._samples.feed(index, cursor.take())
        return events

    def close(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        for cursor, run in zip(self._cursors, self._runs, strict=True):
            cursor.detach()
            run.interrupt()


class Reader(Protocol):
    """The interface with which one HTTP request reads the bytes of an answer while the answer is made."""

    @property
    def finished(self) -> bool:
        """Whether the answer has ended and `take` has returned all of its bytes."""
        ...

    @property
    def refusal(self) -> Failure | None:
        """Why the turn failed, if it failed before anything visible was rendered; else None. Such a failure can
        still be answered with an HTTP status.
        """
        ...

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        """Waits until `take` would return bytes, or the answer has ended. May be cancelled and called again.

        A reader may call `push` when there is something to take. If `push` returns True, it has taken and sent
        everything, and the wait continues. An exception of `push` is raised here.
        """
        ...

    def take(self) -> bytes:
        """Returns the bytes rendered since the last call; always empty if the answer is not streamed."""
        ...

    def open(self) -> bytes:
        """Returns the first bytes of the stream (such as its opening event); empty if `take` has already returned
        them. Called when a keepalive is due, which may be before the first event.
        """
        ...

    def break_off(self, failure: Failure) -> bytes:
        """Ends the answer with this failure and returns the bytes for the client. Returns no bytes and has no
        effect if another task of the server renders the answer.
        """
        ...

    def close(self) -> None:
        """Stops reading, because the request is over. Interrupts an unfinished turn, unless other clients may read
        its answer.
        """
        ...


class WholeReader(Reader, Protocol):
    """A reader of an answer that can also be returned as a whole."""

    def result(self) -> bytes:
        """Returns the body of the whole answer. Call it when `finished`. Raises `Fault` if the turn has failed."""
        ...


class Renderer(Protocol):
    """The interface of a renderer: it turns events into the bytes of one API's answer. `feed` returns the next
    bytes of a stream, `open` its first bytes, and `result` the body of a whole answer. `failure` is why the turn
    failed, None if it did not; `visible`: something that the client can see was rendered.
    """

    failure: Failure | None
    visible: bool

    def feed(self, events: list[Event]) -> bytes: ...

    def open(self) -> bytes: ...

    def result(self) -> bytes: ...


class LogReader:
    """Reads the events of a turn from a `Source` and renders them as bytes, for an answer that is not stored."""

    def __init__(self, source: Source, renderer: Renderer, timings: TurnTimings) -> None:
        self._source = source
        self._renderer = renderer
        self._timings = timings

    @property
    def finished(self) -> bool:
        return self._source.finished

    @property
    def refusal(self) -> Failure | None:
        return None if self._renderer.visible else self._renderer.failure

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        return self._source.wait(push)

    def take(self) -> bytes:
        events = self._source.take()
        self._timings.record(events)
        return self._renderer.feed(events)

    def open(self) -> bytes:
        return self._renderer.open()

    def break_off(self, failure: Failure) -> bytes:
        return self._renderer.feed([TurnEnded(Stop.FAILED, "provider", failure)])

    def result(self) -> bytes:
        return self._renderer.result()

    def close(self) -> None:
        self._source.close()


async def whole_response(reader: WholeReader, headers: Callable[[], Mapping[str, str]]) -> web.Response:
    """Waits until the answer has ended, closes the reader, and returns the answer as one HTTP response. `headers`
    is called at the end, and returns the response headers. Raises `Fault` if the turn has failed. If the wait is
    cancelled, because the client has left, the reader is closed, too.
    """
    try:
        while not reader.finished:
            await reader.wait()
            reader.take()
    finally:
        reader.close()
    return web.Response(body=reader.result(), content_type="application/json", headers=headers())


async def stream_response(
    reader: Reader, stream: EventStream, *, keepalive: float, comment: Callable[[], bytes]
) -> web.StreamResponse:
    """Sends the answer to the client as a stream. Raises `Fault` if the turn failed before the first byte was sent,
    and `ConnectionError` if the client has left. After any other error in the middle of the stream, the stream ends
    with the failure `UNFORESEEN`.

    `keepalive` is a number of seconds: whenever nothing was sent for so long, the bytes that `comment` returns are
    sent; 0 for never.

    Once the stream has begun, the code that receives events from the agent also writes their bytes to the client,
    through `push`, as long as the client reads fast enough. This coroutine handles everything else: the beginning,
    a slow client, silence, failures and the end.
    """
    silence = IdleTimer(keepalive)
    first = b""  # taken by `push`: most turns begin with events without bytes, which need no step of this coroutine

    def push() -> bool:
        nonlocal first
        if not stream.begun:
            first = reader.take()
            return not first and reader.refusal is None
        if not stream.writable:
            return False
        if data := reader.take():
            stream.write_now(data)
            silence.reset()
        return True

    try:
        while not reader.finished:
            has_more = await silence.wait_for(reader.wait(push))
            data = first or (reader.take() if has_more else reader.open() + comment())
            first = b""
            if not stream.begun and reader.refusal is not None:
                raise Fault(reader.refusal)
            if reader.finished:
                return await stream.close(data)
            if data:
                await stream.write(data)
                silence.reset()
        return await stream.close()
    except (Fault, ConnectionError):
        raise
    except Exception as error:
        if not stream.begun:
            raise
        # Its status has gone out: the rest of the stream says that the turn has failed.
        log_unforeseen(error)
        return await stream.close(reader.break_off(UNFORESEEN))
    finally:
        silence.stop()
        stream.stop()
        reader.close()
