"""The server's ends of a child's pipes, in callbacks of the event loop. Reader and writer each own their descriptor."""

import asyncio
import os
from collections.abc import Callable

# A pipe holds 64 KiB by default: a larger buffer would always be allocated and seldom be filled.
READ_BYTES = 64 * 1024
# So much fills a pipe: waiting for more to write with it gains nothing.
MAX_GATHERED_BYTES = 64 * 1024


class PipeReader:
    """Passes each chunk to `on_chunk`, and calls `on_close` at the end or an error. While it is paused, the process at
    the other end has to wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        descriptor: int,
        on_chunk: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        """Takes over the descriptor, and reads from the next iteration of the loop on."""
        self._loop = loop
        self._descriptor = descriptor
        self.on_chunk = on_chunk
        self._on_close = on_close
        self._reading = False
        self.at_end = False
        os.set_blocking(descriptor, False)
        self.resume()

    def pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._descriptor)

    def resume(self) -> None:
        if not self._reading and not self.at_end:
            self._reading = True
            self._loop.add_reader(self._descriptor, self._read)

    def read_available(self, limit: int) -> None:
        """Passes what the pipe holds now, about `limit` bytes, to `on_chunk`."""
        while not self.at_end and limit > 0:
            chunk = self._read()
            if chunk is None:
                return
            limit -= len(chunk)

    def take_available(self, limit: int) -> bytes:
        """Returns what the pipe holds now, about `limit` bytes; its end is left to the next read."""
        chunks: list[bytes] = []
        while not self.at_end and limit > 0:
            try:
                chunk = os.read(self._descriptor, READ_BYTES)
            except OSError:
                break
            if not chunk:
                break
            chunks.append(chunk)
            limit -= len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Stops reading, without calling `on_close`. May be called again."""
        if not self.at_end:
            self.pause()
            self.at_end = True
            # The callbacks' owner holds this reader: without them no reference cycle is left.
            self.on_chunk, self._on_close = lambda chunk: None, lambda: None
            os.close(self._descriptor)

    def _read(self) -> bytes | None:
        """Reads a chunk: empty at the end, None if there is nothing yet. At the end or an error, closes and calls
        `on_close`.
        """
        try:
            chunk = os.read(self._descriptor, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return None
        except OSError:
            chunk = b""  # a pipe that cannot be read counts as ended
        if chunk:
            self.on_chunk(chunk)
        else:
            on_close = self._on_close
            self.close()
            on_close()
        return chunk


class PipeWriter:
    """Writes without blocking, and buffers the rest; its owner watches `unsent`. All writes of one iteration of the
    loop go out together in the next, because waking the reader is expensive. Data for a closed pipe is dropped.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        self._loop = loop
        self._descriptor = descriptor
        self._buffer = bytearray()
        self._waiting_for_pipe = False
        """Whether the event loop calls `_send` when there is room."""
        self._write_scheduled = False
        self._open = True
        self._close_when_sent = False
        os.set_blocking(descriptor, False)

    @property
    def unsent(self) -> int:
        return len(self._buffer)

    def write(self, data: bytes) -> None:
        """Buffers data; drops it after `close` or `close_when_sent`."""
        if not self._open or self._close_when_sent:
            return
        self._buffer += data
        if self._waiting_for_pipe:
            return
        if len(self._buffer) >= MAX_GATHERED_BYTES:
            self._send()
        elif not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write_gathered)

    def close_when_sent(self) -> None:
        self._close_when_sent = True
        if not self._buffer:
            self.close()

    def close(self) -> None:
        """Closes at once, and drops unsent data. May be called again."""
        if not self._open:
            return
        self._open = False
        self._buffer.clear()
        if self._waiting_for_pipe:
            self._waiting_for_pipe = False
            self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)

    def _write_gathered(self) -> None:
        self._write_scheduled = False
        if self._buffer and not self._waiting_for_pipe:
            self._send()

    def _send(self) -> None:
        """Writes what the pipe takes. If that breaks, closes the pipe: else the reader would wait for the rest."""
        try:
            self._write()
        except BaseException:
            self.close()
            raise

    def _write(self) -> None:
        try:
            sent = os.write(self._descriptor, self._buffer)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.close()  # the reader is gone
            return
        del self._buffer[:sent]  # moves a pointer, not the data
        if self._buffer:
            if not self._waiting_for_pipe:
                self._waiting_for_pipe = True
                self._loop.add_writer(self._descriptor, self._send)
            return
        if self._waiting_for_pipe:
            self._waiting_for_pipe = False
            self._loop.remove_writer(self._descriptor)
        if self._close_when_sent:
            self.close()
