"""The log of a background response's stream as rows, from which the stream is rendered anew, byte for byte. Pure.

A row is `encode_row` of events. The first row also has the request's values that a renderer needs (`Rendering`), the
last one (`LAST`) those that a renderer reads at the end, such as the time. Only what the response shows is kept
(`ResponsesRenderer.events_to_keep`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from codex_proxy.core.event_rows import decode_row, encode_row
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.items import ClientName
from codex_proxy.core.json_values import encode_json
from codex_proxy.surfaces.responses.compaction import CompactionRenderer
from codex_proxy.surfaces.responses.profile import OpenResponsesRenderer, Profile
from codex_proxy.surfaces.responses.render import ResponsesRenderer


class DerivedIds:
    """The ids of one response's items: as unique and as hard to guess as the id that they are made from."""

    def __init__(self, id: str, run: str = "") -> None:
        """`run` tells several runs of one response apart, so that none has the ids of another."""
        self._seed = f"{id} {run} ".encode()
        self._count = 0

    def new(self, prefix: str) -> str:
        seed = b"%b%d" % (self._seed, self._count)
        self._count += 1
        return prefix + blake2b(seed, digest_size=16).hexdigest()


Numbered: TypeAlias = tuple[int, bytes]

RENDERER: Final = 1
"""The renderer's number. It grows with each change of the frames that the same events become: a stream that another
renderer has begun cannot be continued by this one, whose events have other numbers.
"""
FIRST: Final = -(1 << 60)
"""The number of a log's first row. All are below 0, and so not there for servers of releases that store frames, which
have numbers from 0 on: they would send rows as events.
"""
LAST: Final = -1
"""The number of the row with the turn's end, whoever writes it."""


class NotRenderableError(Exception):
    """The log was written by another release, or is not whole any more."""


class _OpenResponsesCompaction(CompactionRenderer, OpenResponsesRenderer):
    pass


class Rendering(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="row", tag="head"):
    """What a renderer needs besides the events."""

    renderer: int
    id: str
    run: str
    created_at: int
    profile: Profile
    compacts: bool
    background: bool
    activity: str
    encrypted_reasoning: bool
    max_tokens: int | None
    client_names: dict[str, ClientName]
    echo: dict[str, msgspec.Raw]

    def new_renderer(
        self,
        *,
        clock: Clock,
        prompt_tokens: Callable[[], int],
        stream: bool = False,
        keep_frames: bool = False,
    ) -> ResponsesRenderer:
        kind = ResponsesRenderer
        if self.profile == "open-responses-server":
            kind = _OpenResponsesCompaction if self.compacts else OpenResponsesRenderer
        elif self.compacts:
            kind = CompactionRenderer
        return kind(
            id=self.id,
            created_at=self.created_at,
            echo=self.echo,
            ids=DerivedIds(self.id, self.run),
            clock=clock,
            stream=stream,
            background=self.background,
            activity=self.activity,
            encrypted_reasoning=self.encrypted_reasoning,
            prompt_tokens=prompt_tokens,
            max_tokens=self.max_tokens,
            keep_frames=keep_frames,
            client_names=self.client_names,
        )


class _End(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="row", tag="end"):
    after: int
    """The number of a row before it: the last one that its writer knew."""
    events: msgspec.Raw
    completed_at: int | None = None
    prompt_tokens: int = 0
    """The estimate, where the agent has told no number."""


class LogWriter:
    """Makes the rows of a log. Those that are not stored yet are `unstored`."""

    def __init__(self, after: int = FIRST - 1) -> None:
        self.unstored: list[Numbered] = []
        self._last = after
        self._events: list[Event] = []

    def begin(self, rendering: Rendering) -> None:
        """Begins the log of a turn with how it is rendered. A second call begins it again for another turn, whose
        events replace the unstored events of the first.
        """
        self._events.clear()
        self._add(encode_json(rendering))

    def add(self, events: Iterable[Event]) -> None:
        self._events += events

    def rows(self) -> Sequence[Numbered]:
        """Returns all that is unstored, with the events so far."""
        if self._events:
            self._add(encode_row(self._events))
            self._events.clear()
        return tuple(self.unstored)

    def ended_by(self, ends: Iterable[TurnEnded], renderer: ResponsesRenderer) -> Sequence[Numbered]:
        """Returns all that is unstored with the end, which `renderer` has rendered."""
        end = _End(
            self._last,
            msgspec.Raw(encode_row([*self._events, *ends])),
            renderer.completed_at,
            renderer.estimated_prompt(),
        )
        return *self.unstored, (LAST, encode_json(end))

    def note_stored(self) -> None:
        self.unstored.clear()

    def _add(self, row: bytes) -> None:
        self._last += 1
        self.unstored.append((self._last, row))


class _EndOfRow:
    """The clock and the estimate of a renderer whose turn has ended before."""

    end: _End | None = None

    def epoch(self) -> float:
        # None: a failure takes the place of this end.
        return 0 if self.end is None or self.end.completed_at is None else self.end.completed_at

    def monotonic(self) -> float:
        raise NotImplementedError

    def prompt_tokens(self) -> int:
        return 0 if self.end is None else self.end.prompt_tokens


class LogReplay:
    """Renders a log anew, row by row."""

    def __init__(self) -> None:
        self.renderer: ResponsesRenderer | None = None
        """None before the first row."""
        self.last = FIRST - 1
        """The number of the last row that was read."""
        self.next = 0
        """The next frame's sequence number."""
        self._end = _EndOfRow()

    @property
    def ended(self) -> bool:
        return self.renderer is not None and self.renderer.ended

    def read(self, rows: Iterable[Numbered]) -> list[Numbered]:
        """Returns the frames of the next rows. Raises `NotRenderableError`."""
        frames: list[Numbered] = []
        for number, data in rows:
            if number not in (self.last + 1, LAST):
                raise NotRenderableError
            frames += self._read(data)
            self.last = number
        if frames:
            self.next = frames[-1][0] + 1
        return frames

    def _read(self, data: bytes) -> Sequence[Numbered]:
        try:
            if not data.startswith(b"{"):
                return self._render(decode_row(data))
            found = _decode(data)
            if isinstance(found, _End):
                if found.after > self.last:
                    raise NotRenderableError  # rows between are gone
                self._end.end = found
                return self._render(decode_row(bytes(found.events)))
        except ValueError as error:  # also msgspec's
            raise NotRenderableError from error
        if found.renderer != RENDERER:
            raise NotRenderableError
        end = self._end
        self.renderer = found.new_renderer(clock=end, prompt_tokens=end.prompt_tokens, keep_frames=True)
        return ()

    def _render(self, events: Sequence[Event]) -> Sequence[Numbered]:
        if self.renderer is None:
            raise NotRenderableError
        self.renderer.feed(events)
        return self.renderer.take_frames()


_decode: Final = partial(msgspec.json.decode, type=Rendering | _End)
