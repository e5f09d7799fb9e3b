"""The frames of one response (encoded, numbered events), for any number of readers.

A batch that all readers have taken, or that nobody reads, is dropped; later readers find it in the store, if it is
stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from codex_proxy.runs.event_log import Push, Wakeup

Frames: TypeAlias = list[tuple[int, bytes]]
"""Frames of a stream, each with its sequence number."""


def _nothing() -> None:
    """The default of `on_drained`; does nothing."""


class FrameBuffer:
    """Gives each batch to every reader. `on_drained` is called when none has frames left."""

    def __init__(self, on_drained: Callable[[], None] = _nothing) -> None:
        self.next = 0
        """The sequence number that the next frame will have."""
        self.ended = False
        """Whether no frame will follow."""
        self._on_drained = on_drained
        self._readers: list[FrameReader] = []

    def append(self, frames: Frames, *, last: bool = False) -> None:
        """Adds a batch and wakes the readers. After the `last`, `end` must follow."""
        if frames:
            self.next = frames[-1][0] + 1
            for reader in self._readers:
                reader.put(frames, last=last)
        self.report_drained()

    def end(self) -> None:
        """Records that no frame will follow, and wakes all readers."""
        self.ended = True
        self._on_drained = _nothing  # its owner holds this buffer: no cycle outlives the response
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.wakeup.wake(last=True)

    def reader(self, max_bytes: int | None = None) -> FrameReader:
        """Returns a reader of later frames. Above `max_bytes` (None: no limit) it loses them, and `overrun` is set."""
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
    """The frames that wait for one reader. Above `max_bytes` they and later ones are dropped (`overrun`), until the
    next `take`.
    """

    def __init__(self, buffer: FrameBuffer, max_bytes: int | None) -> None:
        self.finished = False
        """Whether all frames were taken and no frame will follow."""
        self.overrun = False
        """Whether frames were lost since the last `take`, which resets this."""
        self._buffer = buffer
        self._max_bytes = max_bytes
        self._batches: list[Frames] = []
        self._size = 0
        self.wakeup = Wakeup()
        """Woken by the buffer for each batch, and at its end."""

    @property
    def has_frames(self) -> bool:
        return bool(self._batches)

    async def wait(self, push: Push | None = None) -> None:
        """Returns when there are frames that `push` has not delivered, an `overrun`, or the end. `push` gets each batch
        meanwhile (`Wakeup`); what it raises is raised. May be cancelled and called again.
        """
        if not (self._batches or self.overrun or self._buffer.ended):
            await self.wakeup.wait(push)

    def take(self) -> Frames:
        """Returns the frames since the last call, without waiting."""
        batches, self._batches, self._size = self._batches, [], 0
        self.overrun, self.finished = False, self._buffer.ended
        if batches:
            self._buffer.report_drained()
        return batches[0] if len(batches) == 1 else [frame for batch in batches for frame in batch]

    def close(self) -> None:
        """Stops reading: the buffer keeps no more frames for this reader."""
        self._batches = []
        self._buffer.remove(self)

    def put(self, frames: Frames, *, last: bool) -> None:
        """Adds a batch, for the buffer."""
        if self._max_bytes is not None:
            self._size += sum([len(frame) for _, frame in frames])
            if self._size > self._max_bytes:
                self._batches, self._size, self.overrun = [], 0, True
        if not self.overrun:
            self._batches.append(frames)
        self.wakeup.wake(last=last)
