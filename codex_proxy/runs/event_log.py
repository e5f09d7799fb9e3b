"""The log of a turn: batches of events, read by any number of cursors, and dropped when all have taken them. If the
slowest falls too far behind, the agent is paused, or the turn fails. Observers (the page's record, spans) take each
batch at once, so that they are never behind; one that raises gets only the end after it, and the turn goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol, TypeAlias

import msgspec

from codex_proxy.core.events import DELTAS, Event, ItemEnded, TurnEnded
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.own_errors import call_observer

HIGH_WATER = 1 << 20
"""Bytes that the slowest reader may be behind before the agent is paused: a second or two of the fastest agent."""
EVENTS_AT_ONCE = 250
"""Maximum events of a batch; the rest of one read is another batch."""
TAKEN_AT_ONCE = 1 << 16
"""Bytes of agent output after which a reader gets no further batch at once: some milliseconds, in which nobody else is
served.
"""
TEXT_AT_ONCE = 1 << 18
"""Maximum characters of an event; a longer text becomes several."""
LOW_WATER = 1 << 18
"""The backlog in bytes below which a paused agent is resumed."""
CUT_WATER = 32 << 20
"""Bytes that the slowest reader may be behind if the agent's process serves other turns and cannot be paused; then the
turn fails.
"""
TOO_SLOW = Failure(
    FaultKind.TIMED_OUT,
    f"The client left {CUT_WATER >> 20} MiB of the answer unread. Read faster, or ask for less.",
)
LONG_ANSWER = 1 << 20
"""Bytes of an answer's events from which on what repeats all of it takes long."""
_ENDS = frozenset({ItemEnded, TurnEnded})
"""Events whose frames may repeat a whole text."""


Push: TypeAlias = Callable[[], bool]
"""Passes new events on without waiting. Returns False if it would have to wait: then the reader's task
passes them on.
"""


class Wakeup:
    """Lets one reader wait. New events are passed to its `Push`, so that a delta reaches the client before the reader's
    task runs; if that returns False or raises, or at the end, the task is resumed. Pushes happen only while it waits.
    """

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None
        self._push: Push | None = None
        self._broke: Exception | None = None
        """The exception that the push has raised."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """Looked up once: that costs a system call until Python 3.12."""

    async def wait(self, push: Push | None = None) -> None:
        """Returns after a `wake` whose events `push` has not delivered; raises what that raised. May be cancelled and
        called again.
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
        """Calls the waiting reader's push, or resumes it (always at the `last` event)."""
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


def have_an_end(events: Iterable[Event]) -> bool:
    """Whether an item or the turn ends, so that frames may repeat a whole text."""
    return not _ENDS.isdisjoint(map(type, events))


class Batch(msgspec.Struct, frozen=True):
    """Events of one read of the agent's pipe; `size` is its bytes."""

    events: list[Event]
    size: int
    chars: int = 0
    """The characters of its texts; 0 if the read was not split."""


def _has_long_text(events: list[Event]) -> bool:
    for event in events:  # noqa: SIM110 - a generator costs more than one delta
        if type(event) in DELTAS and len(event.text) > TEXT_AT_ONCE:  # type: ignore[union-attr]
            return True
    return False


def _parts(events: list[Event], size: int) -> list[Batch]:
    """Splits events into batches of at most `EVENTS_AT_ONCE` events and `TEXT_AT_ONCE` characters."""
    parts: list[tuple[list[Event], int]] = []
    part: list[Event] = []
    chars = 0
    for event in chain.from_iterable(map(_pieces, events)):
        length = len(event.text) if type(event) in DELTAS else 0  # type: ignore[union-attr]
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
    if type(event) not in DELTAS or len(event.text) <= TEXT_AT_ONCE:  # type: ignore[union-attr]
        yield event
        return
    text: str = event.text  # type: ignore[union-attr]
    start = 0
    while start < len(text):
        end = start + TEXT_AT_ONCE - 1
        end += "\ud800" <= text[end - 1 : end] <= "\udbff"  # both halves of a surrogate pair stay together
        yield msgspec.structs.replace(event, text=text[start:end])
        start = end


class TurnObserver(Protocol):
    def add(self, events: Sequence[Event]) -> None:
        """Takes the next events, after the repair, until a `TurnEnded`."""


class EventLog:
    """A turn's events and readers. The backlog is the bytes that the slowest reader has not delivered;
    `on_backlog(bytes)` is called when it changes above `LOW_WATER`, and once when it falls below.
    """

    def __init__(self, on_backlog: Callable[[int], None] | None = None) -> None:
        self.ended = False
        self.appended = 0
        self.end = 0
        """The position behind the last batch."""
        self.batches: deque[Batch] = deque()
        """The batches that some reader has not taken."""
        self._dropped = self._dropped_size = 0
        """Number of batches that every reader has seen, and their bytes."""
        self._cursors: list[Cursor] = []
        self._observers: list[TurnObserver] = []
        self._broken: list[TurnObserver] = []
        """Observers that have raised."""
        self._on_backlog = on_backlog
        self._reported = 0

    def append(self, events: list[Event], size: int, *, ended: bool = False) -> None:
        """Adds events from `size` bytes of agent output. `ended`: whether these events are the last."""
        if events and (self._observers or self._broken):
            self._tell_observers(events)
        is_long = len(events) > EVENTS_AT_ONCE or _has_long_text(events)
        for batch in _parts(events, size) if is_long else (Batch(events, size),):
            self.batches.append(batch)
            self.end += 1
            self.appended += batch.size
        self.ended = self.ended or ended
        for cursor in self._cursors:
            cursor.wakeup.wake(
                last=self.ended or is_long
            )  # the reader's task takes one batch after the other
        if self.batches:  # else the readers have taken all, and `trim` has reported that
            self.report()
        if self.ended:
            self._on_backlog = None  # its owner holds this log: no cycle outlives the turn

    def _tell_observers(self, events: list[Event]) -> None:
        for observer in tuple(self._observers):
            if call_observer(observer.add, events) is None:
                self._observers.remove(observer)
                self._broken.append(observer)
        if type(events[-1]) is TurnEnded:  # without it they would have the turn run for ever
            for observer in self._broken:
                call_observer(observer.add, events[-1:])

    def observe(self, observers: Iterable[TurnObserver]) -> None:
        """Adds observers of later events."""
        self._observers += observers

    def cursor(self) -> Cursor:
        """Returns a reader from the first event that is still held."""
        return Cursor(self)

    @property
    def backlog(self) -> int:
        """The backlog in bytes; 0 without readers."""
        if len(self._cursors) == 1:
            return self.appended - self._cursors[0].seen
        return max((self.appended - cursor.seen for cursor in self._cursors), default=0)

    def attach(self, cursor: Cursor) -> tuple[int, int]:
        """Adds a reader. Returns the position of the first batch that is still held, and the bytes before it."""
        self._cursors.append(cursor)
        return self._dropped, self._dropped_size

    def next_batches(self, position: int) -> list[Batch]:
        """Returns the batches from a position, counted from the log's start: at least one, if it is there, up to
        `TAKEN_AT_ONCE` bytes or `EVENTS_AT_ONCE` events.
        """
        found: list[Batch] = []
        size = events = 0
        # An index in the middle of a deque would have to be looked for each time.
        for batch in islice(self.batches, max(0, position - self._dropped), None):
            size += max(batch.size, batch.chars)
            events += len(batch.events)
            if found and (size > TAKEN_AT_ONCE or events > EVENTS_AT_ONCE):
                break
            found.append(batch)
        return found

    def trim(self) -> None:
        """Removes the batches that every reader has taken."""
        if not self._cursors:
            return
        oldest = self._cursors[0].position
        if len(self._cursors) > 1:
            oldest = min(cursor.position for cursor in self._cursors)
        while self._dropped < oldest:
            self._dropped_size += self.batches.popleft().size
            self._dropped += 1
        self.report()

    def detach(self, cursor: Cursor) -> None:
        if cursor in self._cursors:
            self._cursors.remove(cursor)
            self.report()

    def report(self) -> None:
        """Calls `on_backlog` if the backlog, or the last reported, is at least `LOW_WATER`."""
        if self._on_backlog is None:
            return
        size = self.backlog
        if size >= LOW_WATER or self._reported >= LOW_WATER:
            self._reported = size
            self._on_backlog(size)


class Cursor:
    """A reader, from the first event that is still held. `position` counts the batches taken or dropped, `seen` the
    bytes delivered.
    """

    def __init__(self, log: EventLog) -> None:
        self.wakeup = Wakeup()
        """Wakes the reader for each batch."""
        self.position, self.seen = log.attach(self)  # from now on it is woken
        self.weight = 0
        """About how many bytes the taken events have."""
        self.has_long_answer = False
        """Whether so much was taken that frames which repeat all of it take long to make."""
        self._taken = self.seen
        self._took_part = False
        """Whether the last `take` left some events."""
        self._log = log

    def take(self, *, passed_on: bool = True) -> list[Event]:
        """Returns new events without waiting; of very many the first ones. With `passed_on=False` they count as backlog
        until `pass_on`.
        """
        batches = self._log.next_batches(self.position)
        if not batches:
            return []
        self.position += len(batches)
        self._took_part = self.position != self._log.end
        for batch in batches:
            self._taken += batch.size
            self.weight += max(batch.size, batch.chars)
        self.has_long_answer = self.weight > LONG_ANSWER
        if passed_on:
            self.seen = self._taken
        self._log.trim()
        if len(batches) == 1:
            return batches[0].events
        return [event for batch in batches for event in batch.events]

    def pass_on(self) -> None:
        """Notes that the client has all events taken so far."""
        if self.seen != self._taken:
            self.seen = self._taken
            self._log.report()

    async def wait(self, push: Push | None = None) -> None:
        """Waits for events that `push` has not delivered, or the end. Raises what `push` raises."""
        if self.position == self._log.end:
            if not self._log.ended:
                await self.wakeup.wait(push)
        elif self._took_part:
            await asyncio.sleep(0)  # others are served first

    async def wait_for_end_or_long_text(self, *, until: float) -> None:
        """Waits until the log has ended or has a long text, at most until a time of the event loop."""
        if self._log.ended or asyncio.get_running_loop().time() >= until:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self.wakeup.wait(lambda: True)

    @property
    def at_end(self) -> bool:
        """Whether all events that are there were taken."""
        return self.position == self._log.end

    @property
    def finished(self) -> bool:
        """Whether the log has ended, and all was taken."""
        return self._log.ended and self.position == self._log.end

    def detach(self) -> None:
        self._log.detach(self)
