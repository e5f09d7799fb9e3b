"""Reads the stored log of a background response's stream, and ends it where no server runs the response any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from codex_proxy.core.events import TurnEnded
from codex_proxy.responses.saving import end_stored_response
from codex_proxy.responses.service import ResponsesService
from codex_proxy.store.store import Store
from codex_proxy.store.values import Frame, NotStored
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses.kept_log import FIRST, LAST, LogReplay, LogWriter, NotRenderableError
from codex_proxy.surfaces.responses.profile import is_last
from codex_proxy.surfaces.responses.render import ResponsesRenderer

ROWS_AT_ONCE: Final = 500
SLICE: Final = 1 << 16
"""Bytes of rows that are read and rendered at once, in some 20 ms."""
LARGE: Final = 1 << 20
"""Bytes of a log above which the rest is rendered in a thread: its last frames have whole texts."""
MAX_FRAMES: Final = 1 << 20
"""Bytes of frames that are read at once, of a log from before there were rows."""
BEFORE_ALL: Final = FIRST - 1


async def has_stream(store: Store, owner: str, id: str) -> bool:
    """Whether a response has a log that can be followed. Raises `NotStored`."""
    first = await store.frames(owner, id, after=BEFORE_ALL, limit=1)
    return bool(first) and (first[0][0] == FIRST or first[0][0] >= 0)


class StoredLog:
    """The frames above the number `after`, rendered from the stored log in slices."""

    def __init__(self, store: Store, owner: str, id: str, after: int = -1) -> None:
        self._store = store
        self._owner = owner
        self._id = id
        self._after = after
        self._replay = LogReplay()
        self._size = 0
        """Bytes of the rows that were read."""
        self._rendering: asyncio.Task[list[Frame]] | None = None
        """The rendering of the next rows in a thread."""
        self._ended = False
        self._has_frames = False
        """Whether a release before rows has written the log: as frames, which are read until they are removed."""

    @property
    def last(self) -> int:
        """The number of the last row that was read."""
        return self._replay.last

    @property
    def next(self) -> int:
        """The number of the stream's next frame."""
        return self._after + 1 if self._has_frames else self._replay.next

    @property
    def ended(self) -> bool:
        """Whether the stream's end was read."""
        return self._ended or self._replay.ended

    async def read(self) -> list[Frame] | None:
        """Returns the frames of the next rows, of which none may be above `after`; None if no more rows are stored.
        Raises `NotStored`, `NotRenderableError`.
        """
        if self._has_frames:
            return await self._read_frames()
        if self._rendering is None:
            rows = await self._store.frames(
                self._owner, self._id, after=self._replay.last, limit=ROWS_AT_ONCE, max_bytes=SLICE
            )
            if rows and rows[0][0] >= 0 and self._replay.renderer is None:
                self._has_frames = True
                return await self._read_frames()
            if not rows:
                return None
            self._size += sum([len(data) for _, data in rows])
            if self._size < LARGE:
                return self._new(self._replay.read(rows))
            self._rendering = asyncio.create_task(asyncio.to_thread(self._replay.read, rows))
        rendering = self._rendering
        frames = await asyncio.shield(rendering)  # whoever waits may be cancelled, and calls again
        self._rendering = None
        return self._new(frames)

    def _new(self, frames: list[Frame]) -> list[Frame]:
        return [frame for frame in frames if frame[0] > self._after]

    async def _read_frames(self) -> list[Frame] | None:
        frames = await self._store.frames(
            self._owner, self._id, after=self._after, limit=ROWS_AT_ONCE, max_bytes=MAX_FRAMES
        )
        if frames:
            self._after = frames[-1][0]
            self._ended = is_last(frames[-1][1])
        return frames or None

    @property
    def rendered(self) -> ResponsesRenderer | None:
        """The renderer of what was read."""
        return self._replay.renderer

    def read_unstored(self, rows: Sequence[Frame]) -> list[Frame]:
        """Returns the frames of rows that are not stored yet."""
        new = [row for row in rows if row[0] > self.last]
        return self._new(self._replay.read(new))

    async def renderer(self) -> ResponsesRenderer | None:
        """Returns the renderer that has rendered the whole log; None if there is none that it can render."""
        try:
            while await self.read() is not None:
                """Nobody wants its frames."""
        except (NotRenderableError, NotStored):  # it was deleted a moment ago
            return None
        return self._replay.renderer


async def end_for_another(
    service: ResponsesService,
    store: Store,
    owner: str,
    object: dict[str, Any],
    ended: TurnEnded,
    *,
    epoch: int | None = None,
) -> None:
    """Ends a response whose server is another one, or is lost: with this end in the log of its stream, and with what it
    has said. `object` is the final one of a response without a log. Raises `StoreError`.
    """
    id = object["id"]
    log = StoredLog(store, owner, id)
    renderer = await log.renderer()
    if renderer is None:
        await end_stored_response(service, store, owner, object, epoch=epoch)
        return
    renderer.feed([ended])
    writer = LogWriter(after=log.last)
    final, rows = renderer.response(), writer.ended_by([ended], renderer)
    if not await end_stored_response(service, store, owner, final, frames=rows, epoch=epoch):
        return
    # What its server had written meanwhile is in front of the end, and belongs into the object.
    try:
        after = await store.frames(owner, id, after=log.last, limit=1)
    except NotStored:  # deleted since
        return
    renderer = None if not after or after[0][0] == LAST else await StoredLog(store, owner, id).renderer()
    if renderer is not None:
        final = renderer.response()
        status = final["status"]
        await store.update_response(owner, id, status=status, json=json_bytes(final), only_from=(status,))
