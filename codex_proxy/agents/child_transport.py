"""The transport of a child that serves one session only."""

from __future__ import annotations

from codex_proxy.agents.base import Ended
from codex_proxy.agents.lines import Chunks, LineFramer, LineTooLong
from codex_proxy.agents.session import TransportReader, broken_protocol
from codex_proxy.process.child import Child, Command, Exit, spawn


class ChildTransport:
    """A `Transport` over the stdin and stdout of one child, which is ended when its turn is released."""

    exclusive = True

    def __init__(self, framer: LineFramer | Chunks | None = None) -> None:
        """`framer` cuts stdout into the pieces that the dialect reads: lines by default."""
        self._child: Child | None = None
        self._reader: TransportReader | None = None
        self._framer = framer or LineFramer()

    async def start(self, command: Command) -> None:
        """Starts the child. Raises `SpawnError` where that fails."""
        self._child = await spawn(command, self)

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader

    def kill(self) -> None:
        """Kills the child at once, and does not wait for its end."""
        if self._child is not None:
            self._child.kill()

    # --- the child's sink -----------------------------------------------------------------------

    def received(self, chunk: bytes) -> None:
        if self._reader is None:
            return
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as fault:
            self._reader.received(fault.before, len(chunk))
            self._reader.fail(broken_protocol(str(fault)))
            return
        if lines:
            self._reader.received(lines, len(chunk))

    def ended(self, exit: Exit) -> None:
        if self._reader is None:
            return
        rest = self._framer.close()
        if rest:
            self._reader.received([rest], len(rest))
        self._reader.ended(Ended(exit.code, exit.signal, exit.stderr_tail))

    # --- what a session calls -------------------------------------------------------------------------

    def send(self, writes: bytes) -> None:
        if self._child is not None:
            self._child.write(writes)

    def close_stdin(self) -> None:
        if self._child is not None:
            self._child.close_stdin()

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume()

    def set_idle(self, idle: bool) -> None:
        """Does nothing: the child serves this session alone, and idle children are not counted."""

    async def release(self, *, finished: bool) -> None:
        # `codex proto` does not exit when its stdin closes, so there is nothing to wait for.
        if self._child is not None:
            await self._child.end(grace=0)
        self._child = self._reader = None  # each of them holds this transport
