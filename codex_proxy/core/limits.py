"""The limits that agents cannot enforce: stop sequences, output tokens (estimated) and size. Each class's `feed` takes
well-formed events, and returns those before the limit and which limit was reached, if any. The caller then interrupts
the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from codex_proxy.core.events import (
    MODEL_DELTAS,
    AnnotationAdded,
    EmptyReason,
    Event,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    RawItem,
    RefusalDelta,
    Stop,
    TextDelta,
)
from codex_proxy.core.items import CALLS, ItemStatus
from codex_proxy.core.tokens import TokenLimit

MAX_TURN_CHARS: Final = 32 << 20
"""Maximum characters of a turn: a longer one could not be sent back in a body."""
ITEM_SIZE: Final = 512
"""Characters that an item counts for beside its text: its size in the final object."""

DELTA_SIZE: Final = 16
"""Characters that a delta counts for beside its text, since it may be stored as a frame."""


class StopSequences:
    """Ends an answer before its first stop sequence, in the assistant's text of each message. A text that may begin one
    is held back. The sequence that is complete first wins (of those, the longest), however the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held: dict[str, str] = {}
        self._open: dict[str, None] = {}
        self.hit: str | None = None
        self.has_content = False
        """Whether the client got text or a call."""

    def feed(self, events: Iterable[Event]) -> tuple[list[Event], str | None]:
        """Returns the events before the first stop sequence, and that sequence or None; afterwards nothing."""
        out: list[Event] = []
        for event in events:
            if self.hit is not None:
                break
            if isinstance(event, TextDelta):
                self._limit_text(event, out)
                continue
            if isinstance(event, ItemStarted):
                self._open[event.item.id] = None
                self.has_content = self.has_content or isinstance(event.item, CALLS)
            elif isinstance(event, ItemEnded):
                self._release(event.id, out)
                self._open.pop(event.id, None)
            out.append(event)
        return out, self.hit

    def _limit_text(self, event: TextDelta, out: list[Event]) -> None:
        text = self._held.pop(event.id, "") + event.text
        found = self._first_in(text)
        if found is not None:
            start, self.hit = found
            if start:
                self._emit(event.id, text[:start], out)
            for id in list(self._held):
                self._release(id, out)
            out += _closings(self._open, "completed")
            return
        held = self._count_undecided(text)
        if held:
            self._held[event.id] = text[-held:]
        if held < len(text):
            self._emit(event.id, text[: len(text) - held], out)

    def _emit(self, id: str, text: str, out: list[Event]) -> None:
        self.has_content = True
        out.append(TextDelta(id, text))

    def _first_in(self, text: str) -> tuple[int, str] | None:
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1:] if found else None

    def _count_undecided(self, text: str) -> int:
        """Returns how many characters at the end may begin a stop sequence."""
        longest = 0
        for stop in self._stops:
            end = text[-(len(stop) - 1) :] if len(stop) > 1 else ""
            start = end.find(stop[0])
            while 0 <= start < len(end) - longest:
                if stop.startswith(end[start:]):
                    longest = len(end) - start
                    break
                start = end.find(stop[0], start + 1)
        return longest

    def _release(self, id: str, out: list[Event]) -> None:
        held = self._held.pop(id, "")
        if held:
            # It was no part of a stop sequence.
            self._emit(id, held, out)


class MaxTokens:
    """Ends a turn when one of its choices has `tokens` tokens (estimated) of answer or refusal."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._limits: dict[int | None, TokenLimit] = {}
        self._open: dict[str, int | None] = {}
        self.hit = False

    def feed(self, events: Iterable[Event]) -> tuple[list[Event], str | None]:
        """Returns the events within the limit, and `length` or None; afterwards nothing."""
        out: list[Event] = []
        for event in events:
            if self.hit:
                break
            if isinstance(event, TextDelta | RefusalDelta):
                choice = self._open.get(event.id)
                limit = self._limits.get(choice)
                if limit is None:
                    limit = self._limits[choice] = TokenLimit(self._tokens)
                room = limit.take_delta(event.text)
                if room is not None:
                    self.hit = True
                    if room:
                        out.append(type(event)(event.id, event.text[:room]))
                    out += _closings(self._open, "incomplete")
                    break
            elif isinstance(event, ItemStarted):
                self._open[event.item.id] = event.item.choice
            elif isinstance(event, ItemEnded):
                self._open.pop(event.id, None)
            out.append(event)
        return out, "length" if self.hit else None


class MaxSize:
    """Ends a turn that is too large for the memory, between two events. A command's output counts an eighth, because it
    is mostly not kept.
    """

    def __init__(self, size: int) -> None:
        self._left = size
        self._open: dict[str, None] = {}

    def feed(self, events: list[Event]) -> tuple[list[Event], str | None]:
        """Returns the events within the limit, and `length` if these exceed it, with open items ended as
        `incomplete`.
        """
        if MODEL_DELTAS.issuperset(map(type, events)):
            # Most batches are pieces of texts, which need no further look.
            left = self._left - DELTA_SIZE * len(events)
            for event in events:
                left -= len(event.text)  # type: ignore[union-attr]
            if left >= 0:
                self._left = left
                return events, None
        left = self._left
        for index, event in enumerate(events):
            kind = type(event)
            if kind in MODEL_DELTAS:
                left -= len(event.text) + DELTA_SIZE  # type: ignore[union-attr]
            elif kind is OutputDelta:
                left -= len(event.text) // 8 + 1  # type: ignore[union-attr]
            elif kind is RawItem:
                left -= len(event.json)  # type: ignore[union-attr]
            elif kind is AnnotationAdded or kind is HostedEvent:
                left -= len(event.json) + DELTA_SIZE  # type: ignore[union-attr]
            elif kind is ItemStarted:
                left -= ITEM_SIZE
                self._open[event.item.id] = None  # type: ignore[union-attr]
            elif kind is ItemEnded:
                self._open.pop(event.id, None)  # type: ignore[union-attr]
            if left < 0:
                if kind is ItemStarted:
                    self._open.pop(event.item.id)  # type: ignore[union-attr]
                return [*events[:index], *_closings(self._open, "incomplete")], "length"
        self._left = left
        return events, None


class TurnLimits:
    """Applies the limits of one turn, one after the other: each gets the events that the one before left. So when
    several are reached, the last of them ends the text first, and gives the reason of the end.
    """

    def __init__(self, *, chars: int, stop: Sequence[str] = (), max_tokens: int | None = None) -> None:
        """`chars`: the largest size (see `MaxSize`). `stop` and `max_tokens` are the client's."""
        self._limits: list[MaxSize | StopSequences | MaxTokens] = [MaxSize(chars)]
        self.stop_sequence: str | None = None
        self.empty: EmptyReason = ""
        """The reason `stop-sequence` if the answer began with one; else empty."""
        if stop:
            self._limits.append(StopSequences(stop))
        if max_tokens:
            self._limits.append(MaxTokens(max_tokens))

    def feed(self, events: list[Event]) -> tuple[list[Event], Stop | None]:
        """Returns the events within the limits, and why the turn ends, if it does."""
        stop: Stop | None = None
        for limit in self._limits:
            events, hit = limit.feed(events)
            if hit is not None:
                stop, self.stop_sequence, self.empty = Stop.LENGTH, None, ""
                if isinstance(limit, StopSequences):
                    stop, self.stop_sequence = Stop.STOP, hit
                    self.empty = "" if limit.has_content else "stop-sequence"
        return events, stop


def _closings(open_ids: Iterable[str], status: ItemStatus) -> list[Event]:
    return [ItemEnded(id, status) for id in open_ids]
