"""Answers a request with the bytes of a `Reader`, whole or as a stream. Source: docs/contract.md#streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from aiohttp import web

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.events import (
    DELTAS,
    VISIBLE_OUTPUT,
    ApprovalRequested,
    EmptyReason,
    Event,
    ForwardedBytes,
    ItemStarted,
    ServedBy,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.items import McpTools
from codex_proxy.core.own_errors import release_all
from codex_proxy.http.endpoint import log_unforeseen
from codex_proxy.http.sse import EventStream, IdleTimer
from codex_proxy.responses.foreground import ResponseReader
from codex_proxy.runs.event_log import EVENTS_AT_ONCE, LONG_ANSWER, Cursor, Push, have_an_end
from codex_proxy.runs.run import Run
from codex_proxy.surfaces.answers.renderer import Renderer
from codex_proxy.surfaces.answers.samples import Samples
from codex_proxy.surfaces.chat.render import StreamMetrics
from codex_proxy.surfaces.ollama.render import TurnTimes

_NOTED: Final = frozenset({ServedBy, ApprovalRequested})
"""The events of which an answer's headers tell."""


def declined_in(events: Sequence[Event], before: str = "") -> str:
    """Returns the kinds of what the agent asked for and did not get, separated by commas. `before`: those of earlier
    events.
    """
    asked = [event for event in events if isinstance(event, ApprovalRequested)]
    kinds = [event.kind for event in asked if not (event.asked or event.allowed)]
    return ", ".join(dict.fromkeys([*filter(None, before.split(", ")), *kinds]))


class TurnTimings:
    """The times of a turn that begins now."""

    def __init__(
        self,
        clock: Clock,
        on_served: Callable[[ServedBy], None] | None = None,
        on_empty: Callable[[EmptyReason], None] | None = None,
        on_declined: Callable[[str], None] | None = None,
        *,
        counts: bool = False,
    ) -> None:
        """`on_served` gets the upstream that answers; `on_empty` why an answer is empty; `on_declined` what
        the agent was not permitted. `counts`: whether deltas and usage are kept, for metrics.
        """
        self._clock = clock
        self._began = clock.monotonic()
        self._started: float | None = None
        self._first: float | None = None
        self._counts = counts
        self._on_served = on_served
        self._on_empty = on_empty
        self._on_declined = on_declined
        self._declined = ""
        self.deltas = 0
        self.usage: Usage | None = None
        self.response_model: str | None = None
        """The agent's name of the model that answers, once it has told any."""
        self.ended_by: str | None = None
        """The agent's event that determined the finish reason."""

    def record(self, events: Sequence[Event]) -> None:
        """Takes each batch of the turn, in order."""
        if self._counts:
            self._count(events)
        if not _NOTED.isdisjoint(map(type, events)):
            self._note(events)
        if self._first is None:
            self._record_begin(events)
        if events and isinstance(events[-1], TurnEnded):
            self.ended_by = events[-1].trigger
            if events[-1].empty and self._on_empty is not None:
                self._on_empty(events[-1].empty)

    def _note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, ServedBy) and self._on_served is not None:
                self._on_served(event)
        if ApprovalRequested not in map(type, events):
            return
        self._declined = declined_in(events, self._declined)
        if self._declined and self._on_declined is not None:
            self._on_declined(self._declined)

    def _record_begin(self, events: Sequence[Event]) -> None:
        """Takes a batch of a turn of which the client has seen nothing. A list of MCP tools is sent with the first
        output.
        """
        if self._started is None and events:
            self._started = self._clock.monotonic()
        for event in events:
            if isinstance(event, TurnStarted):
                self.response_model = event.model
            elif type(event) in VISIBLE_OUTPUT and not (
                isinstance(event, ItemStarted) and isinstance(event.item, McpTools)
            ):
                self._first = self._clock.monotonic()
                return

    def _count(self, events: Sequence[Event]) -> None:
        kinds = list(map(type, events))
        self.deltas += sum(map(kinds.count, DELTAS))
        if ForwardedBytes in kinds:
            self.deltas += sum(event.deltas for event in events if isinstance(event, ForwardedBytes))
        if UsageReported in kinds:
            self.usage = next(event.usage for event in reversed(events) if isinstance(event, UsageReported))

    @property
    def first_ms(self) -> float | None:
        """Milliseconds until the first event that the client sees."""
        return None if self._first is None else round((self._first - self._began) * 1000, 1)

    def durations(self) -> TurnTimes:
        now = self._clock.monotonic()
        started = now if self._started is None else self._started
        first = now if self._first is None else self._first
        spans = (now - self._began, started - self._began, first - started, now - first)
        return TurnTimes(*(int(span * 1_000_000_000) for span in spans))

    def stream_metrics(self, tokens: int) -> StreamMetrics:
        """Returns the speed of a stream of `tokens` tokens that ends now."""
        if self._first is None:
            return StreamMetrics()
        passed = self._clock.monotonic() - self._first
        return StreamMetrics(self.first_ms, round(tokens / passed, 2) if passed > 0 else None)


TIMINGS: Final = web.RequestKey("timings", TurnTimings)
"""The times of the request's turn; not set without one."""


class Source(Protocol):
    """The events of one run, or of several as choices of one answer, for one reader."""

    @property
    def continued(self) -> bool:
        """Whether the agent's session has seen the earlier messages."""

    @property
    def finished(self) -> bool:
        """Whether `take` has returned all events of the answer."""

    @property
    def has_long_answer(self) -> bool:
        """Whether what repeats all that was taken takes long."""

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        """Waits for events or the end; may be cancelled and called again. It may call `push`, and waits for further
        events if `push` has sent these.
        """

    def take(self) -> list[Event]:
        """Returns what has arrived since the last call, without waiting."""

    def close(self) -> None:
        """Stops reading, and interrupts the turns that have not ended."""


class OneRun(Cursor):
    """Reads the log of a run that ends with its reader."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.log)
        self._run = run

    @property
    def continued(self) -> bool:
        return self._run.continued

    def close(self) -> None:
        release_all(self.detach, self._run.interrupt)


class SampledRuns:
    """Several runs of a turn, as the choices of one answer. If one fails, the answer fails."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self._samples = Samples(len(runs))
        self._cursors: list[Cursor] = [run.log.cursor() for run in runs]
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._next = 0

    continued = False

    @property
    def finished(self) -> bool:
        return self._samples.ended

    @property
    def has_long_answer(self) -> bool:
        return sum(cursor.weight for cursor in self._cursors) > LONG_ANSWER

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
        for _ in self._cursors:
            if len(events) >= EVENTS_AT_ONCE:
                break  # the others come first at the next call
            index = self._next
            self._next = (index + 1) % len(self._cursors)
            events += self._samples.feed(index, self._cursors[index].take())
        return events

    def close(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        release_all(*(cursor.detach for cursor in self._cursors), *(run.interrupt for run in self._runs))


class LogReader:
    """Renders the events of a `Source`. `finished`: whether `take` has returned all bytes. `refusal`: why the turn
    failed before anything was visible.
    """

    def __init__(self, source: Source, renderer: Renderer, timings: TurnTimings) -> None:
        self._source = source
        self._renderer = renderer
        self._timings = timings
        self._unrendered: deque[Event] = deque()
        """Events of a long answer, which `wait` renders one by one."""
        self._frames: deque[bytes] = deque()
        """What the next calls of `take` return."""

    @property
    def finished(self) -> bool:
        return self._source.finished and not (self._unrendered or self._frames)

    @property
    def has_long_answer(self) -> bool:
        return self._source.has_long_answer

    @property
    def refusal(self) -> Failure | None:
        return None if self._renderer.visible else self._renderer.failure

    def wait(self, push: Push | None = None) -> Awaitable[None]:
        if self._frames:
            return asyncio.sleep(0)  # others are served first
        if self._unrendered:
            event = self._unrendered.popleft()
            return beside_the_loop(
                lambda: self._frames.extend(self._renderer.pieces([event])), long=type(event) not in DELTAS
            )
        return self._source.wait(None if push is None else lambda: push() and not self._unrendered)

    def take(self) -> bytes:
        """Returns the bytes since the last call; none without a stream."""
        if self._frames:
            return self._frames.popleft()
        if self._unrendered:
            return b""
        events = self._source.take()
        self._timings.record(events)
        if self._source.has_long_answer and have_an_end(events):
            self._unrendered.extend(events)
            return b""
        return self._renderer.feed(events)

    def open(self) -> bytes:
        """Returns the first bytes of the stream, if they are still to come."""
        return self._renderer.open()

    def break_off(self, failure: Failure) -> bytes:
        """Ends the answer with a failure. Returns the bytes that end a begun stream."""
        return self._renderer.break_off(failure)

    def result(self) -> bytes:
        """Returns the whole body. Raises `Fault`."""
        return self._renderer.result()

    def close(self) -> None:
        self._source.close()


WholeReader: TypeAlias = LogReader | ResponseReader


class Reader(Protocol):
    """What a stream is read from: `LogReader`, `ResponseReader`, `Follower`, or a part's. `take` returns the bytes
    since the last call; `open` those that begin the stream, if they are still to come; `break_off` those that end it
    with a failure.
    """

    @property
    def finished(self) -> bool: ...

    @property
    def refusal(self) -> Failure | None: ...

    def wait(self, push: Push | None = None) -> Awaitable[None]: ...

    def take(self) -> bytes: ...

    def open(self) -> bytes: ...

    def break_off(self, failure: Failure) -> bytes: ...

    def close(self) -> None: ...


async def whole_response(reader: WholeReader, headers: Callable[[], Mapping[str, str]]) -> web.Response:
    """Waits for the whole answer, then calls `headers`. Raises `Fault`. Closes the reader."""

    def push() -> bool:
        reader.take()
        return True  # only the end wakes this task

    try:
        while not reader.finished:
            await reader.wait(push)
            reader.take()
    finally:
        reader.close()
    body = await beside_the_loop(reader.result, long=reader.has_long_answer)
    return web.Response(body=body, content_type="application/json", headers=headers())


async def stream_response(
    reader: Reader, stream: EventStream, *, keepalive: float, comment: Callable[[], bytes]
) -> web.StreamResponse:
    """Sends the stream. Raises `Fault` before the first byte, `ConnectionError` if the client has left; any later error
    ends the stream with a failure. After `keepalive` seconds of silence (0: never) `comment` is sent.
    """
    silence = IdleTimer(keepalive)

    def push() -> bool:
        if not stream.writable:
            return False
        if data := reader.take():
            stream.write_now(data)
            silence.reset()
            return True
        return stream.begun or reader.refusal is None

    try:
        with stream.right:
            while True:
                has_more = await silence.wait_for(reader.wait(push))
                data = reader.take() if has_more else reader.open() + comment()
                if not stream.begun and reader.refusal is not None:
                    raise Fault(reader.refusal)
                if reader.finished:
                    return await stream.close(data)
                if data:
                    await stream.write(data)
                    silence.reset()
    except ConnectionError:
        raise
    except Exception as error:
        if not stream.begun:
            raise
        # Its status has gone out: the rest of the stream says that the turn has failed.
        failure = error.failure if isinstance(error, Fault) else log_unforeseen(error)
        return await stream.close(reader.break_off(failure))
    finally:
        release_all(silence.stop, stream.stop, reader.close)
