"""A process of an agent that serves many sessions at once, each on a channel of its connection.

The connection (pure) assigns the messages in the output of the process to the channels; here they are passed to the
readers of the channels. A subclass starts the process and says what is done on its channels.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from codex_proxy.agents.dialect import ChannelConnection, Ended
from codex_proxy.agents.failures import how_it_ended, last_useful_line
from codex_proxy.agents.session import (
    LineFramer,
    LineTooLong,
    TransportReader,
    broken_protocol,
    ended_from,
    spawn_failure,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn

RENEWED = Ended(stderr_tail="The process was renewed before the turn began on it.")
C = TypeVar("C", bound=ChannelConnection)


class SharedProcess(ABC, Generic[C]):
    """A process that serves many sessions at once, each on a channel of its `connection`. Reads the output of the
    process, passes the messages of each channel to the channel's reader, and tells all readers when the process
    ends. A subclass starts the process and manages its channels.
    """

    def __init__(self, connection: C) -> None:
        self.connection = connection
        self.exit: Exit | None = None
        """How the process ended; None before that."""
        self.unhealthy = False
        """Whether the process gets no further turns, because it violated the protocol or did not finish a turn."""
        self.on_change: Callable[[], None] | None = None
        """Called when the process has ended, becomes unhealthy, or a channel's use changes."""
        self.on_limits: Callable[[bytes], None] | None = None
        """Called with the account's limits as JSON when they are reported."""
        self._child: Child | None = None
        self._framer = LineFramer()
        self._readers: dict[int, TransportReader] = {}
        self._idle_channels: set[int] = set()
        self._silent_channels: set[int] = set()
        """The channels for which no message has come since a turn began on them, if the subclass adds them."""
        self._progress = asyncio.Event()
        """Set when the process has printed something, or has ended."""
        self._had_parallel_turns = False
        """Whether turns have overlapped since the process last had none. If not, its stderr belongs to one turn."""

    @property
    def alive(self) -> bool:
        return self.exit is None and self._child is not None

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def turns_running(self) -> int:
        """The number of channels in use by a turn; idle channels do not count."""
        return self.connection.channel_count - len(self._idle_channels)

    async def _spawn(self, command: Command, on_stderr: Callable[[bytes], None] | None = None) -> Child:
        """Starts the process and returns it. `on_stderr` is called with each chunk of stderr; None to keep only the
        last part, for failures. Raises `Fault` if the process cannot be started.
        """
        try:
            self._child = await spawn(command, self, on_stderr=on_stderr)
        except SpawnError as error:
            raise Fault(spawn_failure(error)) from error
        return self._child

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Returns when the starting process has met the condition. Raises `Fault` if that takes more than
        `seconds`, the process ends, or the connection reports a fault.
        """
        try:
            async with asyncio.timeout(seconds):
                while not condition() and self.exit is None and self.connection.fault is None:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            message = f"The agent did not answer within {seconds:g} s of starting. Try again."
            raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=message)) from None
        if not condition():
            raise Fault(self._start_failure())

    def _start_failure(self) -> Failure:
        if self.connection.fault is not None:
            return self._refusal(self.connection.fault)
        ended = Ended() if self.exit is None else ended_from(self.exit)
        message = f"The agent's process ended while it was starting{how_it_ended(ended)}"
        quoted = last_useful_line(ended.stderr_tail)
        return Failure(kind=FaultKind.SPAWN_FAILED, message=message, quoted=quoted)

    @abstractmethod
    def _refusal(self, fault: str) -> Failure:
        """Returns the failure of a start that the connection has given up; `fault` is the connection's reason."""

    def attach(self, channel: int, reader: TransportReader) -> None:
        """Sets the reader of a channel. If the process has ended or takes no further turns, the reader is told so
        in the next iteration of the event loop.
        """
        self._readers[channel] = reader
        if self.exit is not None or self.unhealthy:  # since the channel was opened
            asyncio.get_running_loop().call_soon(self._report_end, channel)

    def end_idle_channels(self) -> None:
        """Reports the process as ended to the readers of the idle channels, because it takes no further turns."""
        for channel in list(self._idle_channels):
            if channel in self._readers:
                self._readers[channel].ended(RENEWED)

    def _note_turn_start(self) -> None:
        """Discards the stderr text of earlier turns if no other turn is running. Only the error of a turn that had
        the process to itself quotes stderr.
        """
        self._had_parallel_turns = self.turns_running > 0
        if not self._had_parallel_turns and self._child is not None:
            self._child.clear_stderr()

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _write(self, writes: bytes) -> None:
        if writes and self._child is not None:
            self._child.write(writes)

    async def end(self) -> None:
        """Closes stdin and returns when the process and all its descendants have ended; they are killed if they do
        not end within a grace period.
        """
        if self._child is not None:
            await self._child.end()

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    # --- called by the child (see ChildListener) ------------------------------------------------

    def received(self, chunk: bytes) -> None:
        broken: Failure | None = None
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as fault:
            lines, broken = fault.before, broken_protocol(str(fault))
        received = self.connection.receive(lines)
        self._write(received.writes)
        if received.limits is not None and self.on_limits is not None:
            self.on_limits(received.limits)
        for channel, messages in received.messages_by_channel:
            self._silent_channels.discard(channel)
            reader = self._readers.get(channel)
            if reader is not None:
                reader.received(messages, len(chunk) * len(messages) // max(1, len(lines)))
            else:
                self._received_without_reader(messages)
        self._progress.set()
        if broken is not None:
            for reader in list(self._readers.values()):
                reader.fail(broken)
            self.unhealthy = True
            self.kill()
            self._note_change()

    def _received_without_reader(self, messages: Sequence[Any]) -> None:
        """Handles messages of a channel that has no reader: ignores them."""

    def ended(self, exit: Exit) -> None:
        self.exit = exit
        self._progress.set()
        for channel in list(self._readers):
            self._report_end(channel)
        self._note_change()

    def _report_end(self, channel: int) -> None:
        """Tells the channel's reader that the process has ended or, if it still runs, that it takes no further
        turns. Only a turn that had the process to itself gets the text of stderr.
        """
        reader, exit = self._readers.get(channel), self.exit
        if reader is not None and exit is None:
            reader.ended(RENEWED)
        elif reader is not None and exit is not None:
            is_sole_turn = not self._had_parallel_turns and channel not in self._idle_channels
            reader.ended(ended_from(exit) if is_sole_turn else Ended(exit.code, exit.signal))


class SharedTransport:
    """The methods that all `Transport`s of a shared process have in common."""

    exclusive = False

    def close_stdin(self) -> None:
        raise RuntimeError("stdin of a process that serves several turns stays open")

    def pause_reading(self) -> None:
        """Does nothing, because other sessions read from the same pipe. A client that reads too slowly is
        disconnected instead.
        """

    def resume_reading(self) -> None:
        """Does nothing: reading is never paused."""
