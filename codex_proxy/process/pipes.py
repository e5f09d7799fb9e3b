"""The proxy's ends of a child's pipes: reads with real backpressure, writes that never block.

Decides how bytes move and when an end is closed. It does not know what a child is, or why a pipe ended.
Everything runs synchronously on the event loop through add_reader and add_writer: no task and no await per
chunk. Both classes own their descriptor and close it.
"""

import asyncio
import os
from collections.abc import Callable

# A pipe holds 64 KiB by default, so a larger buffer would seldom be filled and would always be allocated.
READ_BYTES = 64 * 1024
# What fills a pipe gains nothing by waiting for company.
GATHERED_BYTES = 64 * 1024


class PipeReader:
    """Hands every chunk of a pipe to `received`, then says `closed()` once.

    A paused reader does not read: the pipe fills and the writer at its other end waits.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        received: Callable[[bytes], None],
        closed: Callable[[], None],
    ) -> None:
        """Take over the descriptor and start reading at the loop's next turn."""
        self._loop = loop
        self._descriptor = descriptor
        self._received = received
        self._closed = closed
        self._reading = False
        self.at_end = False
        os.set_blocking(descriptor, False)
        self.resume()

    def pause(self) -> None:
        """Stop reading; nothing is received until `resume`."""
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        """Read again; without effect at the end or when it is reading."""
        if not self._reading and not self.at_end:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._readable)

    def take(self, most: int) -> None:
        """Hand over at once what the pipe holds, at most about `most` bytes; does not wait."""
        while not self.at_end and most > 0:
            chunk = self._read()
            if chunk is None:
                return
            most -= len(chunk)

    def close(self) -> None:
        """Stop for good and close the descriptor; `closed` is not called for this. Harmless to repeat."""
        if not self.at_end:
            self.pause()
            self.at_end = True
            self._received, self._closed = (
                _drop,
                _ignore,
            )  # their owners hold this reader: no cycle stays behind
            os.close(self._descriptor)

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bytes | None:
        try:
            chunk = os.read(self._descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            chunk = b""  # a pipe that cannot be read has nothing more to say
        if chunk:
            self._received(chunk)
        else:
            closed = self._closed
            self.close()
            closed()
        return chunk


def _drop(chunk: bytes) -> None:
    """What is read when nobody listens any more."""


def _ignore() -> None:
    """Nobody is left to be told of the end."""


class PipeWriter:
    """Writes what the pipe takes and keeps the rest until it takes more.

    What is written in one turn of the loop goes out together, at the next: each write wakes its reader, which costs
    more than that turn, and the requests of many turns come to a shared child at once.

    There is no limit here: `unsent` is for the owner to look at, who knows what is too much. A reader that
    has gone away is not an error: what is written to it is dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        """Take over the descriptor."""
        self._loop = loop
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._writing = False
        """The loop tells when the pipe takes more."""
        self._due = False
        """The loop's next turn writes."""
        self._open = True
        self._close_when_sent = False
        os.set_blocking(descriptor, False)

    @property
    def unsent(self) -> int:
        """The bytes that the pipe has not taken yet."""
        return len(self._buffer)

    def write(self, data: bytes) -> None:
        """Send the data after all earlier data; dropped once the pipe is closed or about to be."""
        if not self._open or self._close_when_sent:
            return
        self._buffer += data
        if self._writing:
            return
        if len(self._buffer) >= GATHERED_BYTES:
            self._send()
        elif not self._due:
            self._due = True
            self._loop.call_soon(self._write_due)

    def close_when_sent(self) -> None:
        """Close as soon as all data is sent; at once if it is."""
        self._close_when_sent = True
        if not self._buffer:
            self.close()

    def close(self) -> None:
        """Close at once and drop what is unsent. Harmless to repeat."""
        if not self._open:
            return
        self._open = False
        self._buffer.clear()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)

    def _write_due(self) -> None:
        self._due = False
        if self._buffer and not self._writing:
            self._send()

    def _send(self) -> None:
        try:
            sent = os.write(self._descriptor, self._buffer)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()  # nobody reads any more
            return
        del self._buffer[:sent]  # moves a pointer, not the data
        if self._buffer:
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._descriptor, self._send)
            return
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        if self._close_when_sent:
            self.close()
