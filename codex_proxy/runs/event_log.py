"""The log of a turn: batches of events, appended once, read by any number of cursors.

Its memory is bounded: batches that every reader has taken are dropped. If the slowest reader falls too far behind,
the agent is paused, or the turn fails if the agent's process cannot be paused (see `Run._backlog`). The log is
independent of agents and HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final, TypeAlias

import msgspec

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)

HIGH_WATER = 1 << 20
"""The bytes that the slowest reader may be behind before the agent is paused: a second or two of the fastest agent."""
EVENTS_AT_ONCE = 250
"""The most events of a batch. What comes after them in one read of the agent's pipe is a batch of its own."""
TAKEN_AT_ONCE = 1 << 16
"""The bytes of agent output after which a reader that is behind is given no further batch at once: about one read of
the pipe. To render and send its events takes some milliseconds, in which no other client is served."""
_TEXTS: Final = frozenset({TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, OutputDelta})
TEXT_AT_ONCE = 1 << 18
"""The most characters of a text in one event. A longer one becomes several events, each a batch of its own."""
LOW_WATER = 1 << 18
"""The bytes of backlog below which a paused agent is resumed."""
CUT_WATER = 32 << 20
"""The bytes that the slowest reader may be behind if the agent's process cannot be paused, because it serves other
turns, too. A turn whose reader is further behind is cut off."""


Push: TypeAlias = Callable[[], bool]
"""Passes new events or frames on to the client at once, without waiting. Returns False, and passes nothing on, if
it would have to wait."""


class Wakeup:
    """Lets one reader of a log or buffer wait until there is more to read.

    A reader that waits may pass a `Push`: a function that the code that adds events calls directly, so that a delta
    reaches the client before the reader's task runs. If the push returns False or raises, or at the end of the log,
    the reader's task is resumed instead. Pushes happen only while the task waits, so the two never write at the
    same time.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._push: Push | None = None
        self._broke: Exception | None = None
        """The exception that the push has raised; None if it has not."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop, looked up at the first wait and kept, because looking it up costs a system call (until
        Python 3.12)."""

    async def wait(self, push: Push | None = None) -> None:
        """Returns after a `wake` at which `push` has not delivered the new events (None: after any `wake`). Raises
        what `push` has raised. May be cancelled and called again.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._waiter, self._push = self._loop.create_future(), push
        try:
            await self._waiter
        finally:
            self._waiter = self._push = None
        broke, self._broke = self._broke, None
        if broke is not None:
            raise broke

    def wake(self, *, last: bool = False) -> None:
        """Calls the waiting reader's push, or resumes the reader; does nothing if no reader waits. `last` is True
        at the end of the log: the reader is always resumed. Never raises: an exception that the push raises is
        raised by `wait`.
        """
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        push, self._push = self._push, None  # so that what comes while it runs is not pushed before its bytes
        if push is not None and not last:
            try:
                if push():
                    self._push = push
                    return
            except Exception as error:  # noqa: BLE001 - raised by `wait`
                self._broke = error
        if not waiter.done():
            waiter.set_result(None)


class Batch(msgspec.Struct, frozen=True):
    """The events that were made from one read of the agent's pipe, and the number of bytes of that read."""

    events: list[Event]
    size: int
    chars: int = 0
    """The characters of its texts, if it is a part of what came from one read."""


def _has_long_text(events: list[Event]) -> bool:
    return True in [type(event) in _TEXTS and len(event.text) > TEXT_AT_ONCE for event in events]  # type: ignore[union-attr]


def _parts(events: list[Event], size: int) -> list[Batch]:
    """Returns the events, with long texts in several events, as batches of at most `EVENTS_AT_ONCE` events and
    `TEXT_AT_ONCE` characters.
    """
    parts: list[tuple[list[Event], int]] = []
    part: list[Event] = []
    chars = 0
    for event in chain.from_iterable(map(_pieces, events)):
        length = len(event.text) if type(event) in _TEXTS else 0  # type: ignore[union-attr]
        if part and (len(part) == EVENTS_AT_ONCE or chars + length > TEXT_AT_ONCE):
            parts.append((part, chars))
            part, chars = [], 0
        part.append(event)
        chars += length
    parts.append((part, chars))
    share, rest = divmod(size, len(parts))
    return [
        Batch(part, share + (rest if not place else 0), chars) for place, (part, chars) in enumerate(parts)
    ]


def _pieces(event: Event) -> Iterator[Event]:
    """Yields the event or, if its text is long, events with its pieces."""
    if type(event) not in _TEXTS or len(event.text) <= TEXT_AT_ONCE:  # type: ignore[union-attr]
        yield event
        return
    text: str = event.text  # type: ignore[union-attr]
    start = 0
    while start < len(text):
        end = start + TEXT_AT_ONCE - 1
        end += "\ud800" <= text[end - 1 : end] <= "\udbff"  # both halves of a surrogate pair stay together
        yield msgspec.structs.replace(event, text=text[start:end])
        start = end


class EventLog:
    """An append-only log of events. The backlog is the number of bytes of agent output whose events the slowest
    reader has not delivered yet. When it changes, `on_backlog` is called with it, but only if it or the last
    reported value is at least `LOW_WATER`; so a fall below `LOW_WATER` is reported once.
    """

    def __init__(self, on_backlog: Callable[[int], None] | None = None) -> None:
        self.ended = False
        self.appended = 0
        """The bytes of all batches that were appended."""
        self._batches: deque[Batch] = deque()
        self._dropped = 0
        """The number of batches that every reader has seen, and that were dropped."""
        self._cursors: list[Cursor] = []
        self._on_backlog = on_backlog
        self._reported = 0
        """The backlog in bytes that was last reported to `on_backlog`."""

    def append(self, events: list[Event], size: int, *, ended: bool = False) -> None:
        """Adds a batch and wakes the readers. `size` is the number of bytes of agent output that the events were
        made from. `ended` is True for the last batch. Of very many events, and of long texts, several batches are
        made.
        """
        is_long = len(events) > EVENTS_AT_ONCE or _has_long_text(events)
        for batch in _parts(events, size) if is_long else (Batch(events, size),):
            self._batches.append(batch)
            self.appended += batch.size
        self.ended = self.ended or ended
        for cursor in self._cursors:
            cursor.wakeup.wake(
                last=self.ended or is_long
            )  # the reader's task takes one batch after the other
        self.report()
        if self.ended:
            self._on_backlog = None  # its owner holds this log: no cycle outlives the turn

    def cursor(self) -> Cursor:
        """Returns a reader that begins with the first event that the log still holds."""
        cursor = Cursor(self, self._dropped, self.appended - sum(batch.size for batch in self._batches))
        self._cursors.append(cursor)
        return cursor

    @property
    def backlog(self) -> int:
        """The number of bytes of agent output whose events the slowest reader has not delivered; 0 without readers."""
        if len(self._cursors) == 1:
            return self.appended - self._cursors[0].seen
        return max((self.appended - cursor.seen for cursor in self._cursors), default=0)

    def after(self, position: int) -> Iterator[Batch]:
        """Iterates over the batches from `position` on, which counts the batches since the start of the log. Used by
        cursors.
        """
        # An index in the middle of a deque would have to be looked for each time.
        return islice(self._batches, max(0, position - self._dropped), None)

    @property
    def end(self) -> int:
        """The position after the last batch, as a count of batches since the start of the log."""
        return self._dropped + len(self._batches)

    def trim(self) -> None:
        """Removes the batches that every reader has taken. Called by a cursor that has taken events."""
        if not self._cursors:
            return
        oldest = self._cursors[0].position
        if len(self._cursors) > 1:
            oldest = min(cursor.position for cursor in self._cursors)
        while self._dropped < oldest:
            self._batches.popleft()
            self._dropped += 1
        self.report()

    def detach(self, cursor: Cursor) -> None:
        if cursor in self._cursors:
            self._cursors.remove(cursor)
            self.report()

    def report(self) -> None:
        """Calls `on_backlog` with the slowest reader's backlog in bytes, if it or the last reported value is at
        least `LOW_WATER`. Called when the backlog may have changed.
        """
        size = self.backlog
        if self._on_backlog is not None and (size >= LOW_WATER or self._reported >= LOW_WATER):
            self._reported = size
            self._on_backlog(size)


class Cursor:
    """A reader of a log. `position` is the number of batches that it has taken, including those that the log had
    dropped before the reader was made; `seen` is the number of bytes whose events were delivered.
    """

    def __init__(self, log: EventLog, position: int, seen: int) -> None:
        self.position = position
        self.seen = seen
        self._taken = seen
        self._took_part = False
        """Whether the last `take` has left something, because there was very much."""
        self.wakeup = Wakeup()
        """Woken by the log for each batch."""
        self._log = log

    def take(self, *, passed_on: bool = True) -> list[Event]:
        """Returns the events that were added since the last call, without waiting; of very many only the first ones,
        and the next call of `wait` returns at once. With `passed_on=False` they count as the reader's backlog until
        `pass_on` is called.
        """
        batches = self._next()
        if not batches:
            return []
        self.position += len(batches)
        self._took_part = self.position != self._log.end
        for batch in batches:
            self._taken += batch.size
        if passed_on:
            self.seen = self._taken
        self._log.trim()
        if len(batches) == 1:
            return batches[0].events
        return [event for batch in batches for event in batch.events]

    def _next(self) -> list[Batch]:
        """Returns the next batches: no more than `TAKEN_AT_ONCE` bytes or `EVENTS_AT_ONCE` events, but at least one
        batch if there is any.
        """
        batches: list[Batch] = []
        size = events = 0
        for batch in self._log.after(self.position):
            size += max(batch.size, batch.chars)
            events += len(batch.events)
            if batches and (size > TAKEN_AT_ONCE or events > EVENTS_AT_ONCE):
                break
            batches.append(batch)
        return batches

    def pass_on(self) -> None:
        """Reports that the client was given all events taken so far, so that they no longer count as backlog."""
        if self.seen != self._taken:
            self.seen = self._taken
            self._log.report()

    async def wait(self, push: Push | None = None) -> None:
        """Returns when there are events to take that `push` has not delivered, or when the log has ended. `push` is
        called for each batch while this waits (see `Wakeup`). Raises what `push` raises.
        """
        if self.position == self._log.end:
            if not self._log.ended:
                await self.wakeup.wait(push)
        elif self._took_part:
            await asyncio.sleep(0)  # others are served first

    @property
    def finished(self) -> bool:
        """Whether all events were taken and the log has ended."""
        return self._log.ended and self.position == self._log.end

    def detach(self) -> None:
        """Stops reading: the log no longer keeps batches for this cursor."""
        self._log.detach(self)
