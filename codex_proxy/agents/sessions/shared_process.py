"""A process that serves many sessions, each on a channel of its connection, which assigns messages to channels."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from codex_proxy.agents.dialect import ChannelConnection, Ended
from codex_proxy.agents.process_pool.processes import RENEWED, PooledProcess
from codex_proxy.agents.sessions.session import (
    LineFramer,
    LineTooLong,
    TransportReader,
    broken_protocol,
    ended_from,
    rest_of,
)
from codex_proxy.agents.shared.failures import describe_end, last_useful_line
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.own_errors import breaks_off, release_all
from codex_proxy.process.child import Command, Exit, spawn

C = TypeVar("C", bound=ChannelConnection)
S = TypeVar("S", bound="SharedProcess[Any]")


class SharedProcess(PooledProcess, ABC, Generic[C]):
    """Passes each message to its channel's reader, and tells all readers when the process ends."""

    def __init__(self, connection: C) -> None:
        super().__init__()
        self.connection = connection
        self.on_limits: Callable[[bytes], None] | None = None
        self._framer = LineFramer()
        self._readers: dict[int, TransportReader] = {}
        self._silent_channels: set[int] = set()
        """Channels without a message since their turn began."""
        self._progress = asyncio.Event()
        self._had_parallel_turns = False
        """Whether turns have overlapped since the last time without one. If not, stderr belongs to one turn."""

    async def _start_and_ask(
        self,
        command: Command,
        *questions: tuple[bytes, Callable[[], bool], float],
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        """Starts the process, and writes each question when the one before is answered. A question is its line, a
        function that tells whether it is answered, and the seconds for that. `on_stderr` None: stderr's end is kept
        for failures. Raises `Fault`, after which no process is left.
        """
        child = self._child = await spawn(command, self, on_stderr=on_stderr)
        try:
            for line, is_answered, seconds in questions:
                child.write(line)
                await self._wait_until(is_answered, seconds)
        except Fault:
            await self.end()
            raise
        self._note_agent(child)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition() and self.exit is None and self.connection.fault is None:
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            message = f"The agent did not answer within {seconds:g} s of starting. Try again."
            raise Fault.of(FaultKind.SPAWN_FAILED, message) from None
        if not condition():
            raise Fault(self._start_failure())

    def _start_failure(self) -> Failure:
        if self.connection.fault is not None:
            return self._refusal(self.connection.fault)
        ended = Ended() if self.exit is None else ended_from(self.exit)
        message = f"The agent's process ended while it was starting{describe_end(ended)}"
        quoted = last_useful_line(ended.stderr_tail)
        return Failure(FaultKind.SPAWN_FAILED, message, quoted=quoted)

    @abstractmethod
    def _refusal(self, fault: str) -> Failure: ...

    def attach(self, channel: int, reader: TransportReader) -> None:
        """Sets a channel's reader, which soon learns it if the process takes no more turns."""
        self._readers[channel] = reader
        if self.exit is not None or self.unhealthy:  # since the channel was opened
            asyncio.get_running_loop().call_soon(self._report_end, channel)

    def set_idle(self, channel: int, idle: bool) -> None:
        """Sets whether a channel is idle. The pool may end a process with only idle channels."""
        if channel not in self._readers:
            return
        if idle:
            self.completed_turn = True
            self._silent_channels.discard(channel)
            self._turn_ended(channel)
        else:
            self._turn_began(channel)
        self._note_change()

    def end_idle_channels(self) -> None:
        self._report_renewal(channel for channel in self._readers if channel not in self._turn_starts)

    def end_silent_channels(self) -> None:
        """Ends the sessions that the process may never answer."""
        self._report_renewal(self._silent_channels & self._readers.keys())

    def _report_renewal(self, channels: Iterable[int]) -> None:
        for channel in list(channels):
            if channel in self._readers:
                self._readers[channel].on_end(RENEWED)

    def close_channel(self, channel: int) -> None:
        self._readers.pop(channel, None)
        self._silent_channels.discard(channel)
        self._turn_ended(channel)
        self.write(self.connection.close_channel(channel))
        self._note_change()

    def _turn_began(self, channel: int) -> None:
        """Notes a turn's beginning. A turn quotes stderr only if it had the process to itself."""
        self._had_parallel_turns = self.turns_running > 0
        if not self._had_parallel_turns and self._child is not None:
            self._child.clear_stderr()
        self._silent_channels.add(channel)
        super()._turn_began(channel)

    def write(self, writes: bytes) -> None:
        if writes and self._child is not None:
            self._child.write(writes)

    # --- called by the child (see ChildListener) ------------------------------------------------

    @breaks_off
    def on_output(self, chunk: bytes) -> None:
        too_long: LineTooLong | None = None
        try:
            lines = self._lines_in(chunk)
        except LineTooLong as fault:
            lines, too_long = fault.before, fault
        received = self.connection.receive(lines)
        self.write(received.writes)
        if received.limits is not None and self.on_limits is not None:
            self.on_limits(received.limits)
        for channel, messages in received.messages_by_channel:
            self._deliver(channel, messages, len(chunk) * len(messages) // max(1, len(lines)))
        self._progress.set()
        if too_long is not None:
            self._give_up(*(partial(reader.on_long_line, too_long) for reader in self._readers.values()))
        elif received.lost:
            self._fail_turns(broken_protocol(received.lost))

    def _lines_in(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that a chunk of stdout completes. Raises `LineTooLong`."""
        return self._framer.feed(chunk)

    def _deliver(self, channel: int, messages: Sequence[Any], size: int) -> None:
        """Passes messages to their channel's reader. `size`: their bytes."""
        self._silent_channels.discard(channel)
        reader = self._readers.get(channel)
        if reader is not None:
            reader.on_messages(messages, size)
        else:
            self._on_messages_without_reader(messages)

    def break_off(self) -> None:
        """Fails all turns on the process, since a part of the output is lost, and kills it."""
        self._fail_turns(UNFORESEEN)

    def _fail_turns(self, failure: Failure) -> None:
        self._give_up(*(partial(reader.fail, failure) for reader in self._readers.values()))

    def _give_up(self, *ends: Callable[[], None]) -> None:
        """Ends the turns by `ends`, and kills the process."""
        self.unhealthy = True
        release_all(*ends, self.kill)
        self._note_change()

    def _on_messages_without_reader(self, messages: Sequence[Any]) -> None:
        """Ignores messages of a channel without a reader."""

    @breaks_off
    def on_end(self, exit: Exit) -> None:
        for line in rest_of(self._framer, exit):
            self.on_output(line + b"\n")
        self.exit, self.ended_during_turn = exit, self.turns_running > 0
        self._progress.set()
        for channel in list(self._readers):
            self._report_end(channel)
        self._note_change()

    def _report_end(self, channel: int) -> None:
        reader, exit = self._readers.get(channel), self.exit
        if reader is not None and exit is None:
            reader.on_end(RENEWED)
        elif reader is not None and exit is not None:
            is_sole_turn = not self._had_parallel_turns and channel in self._turn_starts
            reader.on_end(ended_from(exit) if is_sole_turn else Ended(exit.code, exit.signal))


class SharedTransport(Generic[S]):
    """A `Transport` on a channel of a process with other sessions."""

    exclusive = False

    def __init__(self, process: S, channel: int) -> None:
        self.process = process
        self.channel = channel
        self.has_begun = False

    def attach(self, reader: TransportReader) -> None:
        self.has_begun = True
        self.process.attach(self.channel, reader)

    def set_idle(self, idle: bool) -> None:
        self.process.set_idle(self.channel, idle)

    async def release(self, *, finished: bool) -> None:
        process = self.process
        try:
            process.unhealthy = process.unhealthy or not finished
            process.completed_turn = process.completed_turn or (self.has_begun and finished and process.alive)
        finally:  # whatever has broken, the turn ends
            process.close_channel(self.channel)

    def close_stdin(self) -> None:
        raise RuntimeError("stdin of a process that serves several turns stays open")

    def pause_reading(self) -> None:
        """Does nothing: other sessions read the same pipe. A slow client is disconnected instead."""

    def resume_reading(self) -> None: ...
