"""The frames of one response (encoded, numbered events), for any number of readers; dropped when all have taken
them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from codex_proxy.runs.event_log import TAKEN_AT_ONCE, Push, Wakeup
from codex_proxy.store.values import Frame


def _nothing() -> None: ...


class FrameBuffer:
    """The frames of one response. `on_drained` is called when no reader has frames left."""

    def __init__(self, on_drained: Callable[[], None] = _nothing) -> None:
        self.next = 0
        """The next frame's sequence number."""
        self.ended = False
        self._on_drained = on_drained
        self._readers: list[FrameReader] = []

    def append(self, frames: list[Frame], *, last: bool = False) -> None:
        """Adds frames for all readers. After the `last`, `end` must follow."""
        if frames:
            self.next = frames[-1][0] + 1
            for reader in self._readers:
                reader.put(frames, last=last)
        self.report_drained()

    def end(self) -> None:
        """Wakes all readers: no frame will follow."""
        self.ended = True
        self._on_drained = _nothing  # its owner holds this buffer: no cycle outlives the response
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.wakeup.wake(last=True)

    def reader(self, max_bytes: int | None = None) -> FrameReader:
        """Returns a reader of later frames. `max_bytes`: see `FrameReader`; None: no limit."""
        reader = FrameReader(self, max_bytes)
        if not self.ended:
            self._readers.append(reader)
        return reader

    def remove(self, reader: FrameReader) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
        self.report_drained()

    def report_drained(self) -> None:
        if not any(reader.has_frames for reader in self._readers):
            self._on_drained()


class FrameReader:
    """The frames that wait for one reader. Above `max_bytes` all are dropped until the next `take`."""

    def __init__(self, buffer: FrameBuffer, max_bytes: int | None) -> None:
        self.finished = False
        """Whether all frames were taken and none will follow."""
        self.overrun = False
        """Whether frames were lost since the last `take`."""
        self._buffer = buffer
        self._max_bytes = max_bytes
        self._took_part = False
        """Whether the last `take` has left frames."""
        self._frames: deque[Frame] = deque()
        self._size = 0
        self.wakeup = Wakeup()
        """Wakes the reader for each batch, and at the end."""

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    async def wait(self, push: Push | None = None) -> None:
        """Waits for frames that `push` has not delivered, an `overrun` or the end. May be cancelled and called
        again.
        """
        if not (self._frames or self.overrun or self._buffer.ended):
            await self.wakeup.wait(push)
        elif self._took_part:
            await asyncio.sleep(0)  # others are served first

    def take(self) -> list[Frame]:
        """Returns new frames without waiting; of many only `TAKEN_AT_ONCE` bytes, or one longer frame."""
        taken = self._next()
        self._took_part = bool(self._frames)
        self.overrun, self.finished = False, self._buffer.ended and not self._frames
        if taken and not self._frames:
            self._buffer.report_drained()
        return taken

    def _next(self) -> list[Frame]:
        frames = self._frames
        if self._size <= TAKEN_AT_ONCE:
            taken = list(frames)
            frames.clear()
            self._size = 0
            return taken
        taken = [frames.popleft()]
        size = len(taken[0][1])
        while frames and size + len(frames[0][1]) <= TAKEN_AT_ONCE:
            taken.append(frames.popleft())
            size += len(taken[-1][1])
        self._size -= size
        return taken

    def close(self) -> None:
        self._forget()
        self._buffer.remove(self)

    def put(self, frames: list[Frame], *, last: bool) -> None:
        if not self.overrun:
            self._frames += frames
            self._size += sum([len(frame) for _, frame in frames])
            if self._max_bytes is not None and self._size > self._max_bytes:
                self._forget()
                self.overrun = True
        self.wakeup.wake(last=last or self._size > TAKEN_AT_ONCE)  # more than a push may send at once

    def _forget(self) -> None:
        self._frames.clear()
        self._size = 0
