"""One `codex app-server` process, which serves many threads at once. Each thread has a channel, to whose reader the
messages about the thread are passed.

The dialect interprets the messages; the pool decides which process serves a turn.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from codex_proxy.agents.base import Ended
from codex_proxy.agents.codex_app_server.connection import Connection
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.failures import exit_of, how_it_ended, last_useful_line
from codex_proxy.agents.session import LineFramer, LineTooLong, TransportReader, broken_protocol
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn
from codex_proxy.process.descendants import children_of, descendants_of, resident_bytes, seconds_since_boot

RENEWED = Ended(stderr_tail="The process was renewed before the turn began on it.")


class AppServerProcess:
    """A process that serves many turns at once. Call `start`, then `open_channel` for each thread; it returns the
    transport of the thread.
    """

    def __init__(self, client_name: str, client_version: str, *, parallel_calls: bool = True) -> None:
        """`client_name` and `client_version` are sent in `initialize`. `parallel_calls`: whether the model may call
        several tools in one answer, which needs a program that reports the end of each answer of the model.
        """
        self.parallel_calls = parallel_calls
        self.connection = Connection(client_name, client_version)
        self.exit: Exit | None = None
        """How the process ended; None before that."""
        self.turns_served = 0
        self.on_change: Callable[[], None] | None = None
        """Called when the process has ended, becomes unhealthy, or a channel's use changes."""
        self.on_limits: Callable[[bytes], None] | None = None
        """Called with the account's limits as JSON when they are reported."""
        self.unhealthy = False
        """Whether the process gets no further turns, because it violated the protocol or did not finish a turn."""
        self.completed_turn = False
        """Whether a turn on the process has ended without a failure of the process."""
        self.ended_during_turn = False
        """Whether the process ended while a turn was running on it."""
        self._child: Child | None = None
        self._framer = LineFramer()
        self._readers: dict[int, TransportReader] = {}
        self._idle_channels: set[int] = set()
        self._silent_channels: set[int] = set()
        """The channels for which no message has come since they were opened or resumed."""
        self._greeted: asyncio.Event = asyncio.Event()
        self._channel_starts: dict[int, float] = {}
        """When each channel in use was opened or resumed, in seconds since boot."""
        self._had_parallel_turns = False
        """Whether turns have overlapped since the process last had none."""
        self._agent_pids: frozenset[int] = frozenset()
        """The process ids of the agent itself: the children of the warden (its supervisor) before the first turn."""
        self._agent_processes: dict[int, float] = {}
        """The agent and any wrapper it was started through: pid to start time."""

    async def start(self, command: Command, *, timeout_seconds: float) -> None:
        """Starts the process and initializes the connection. Raises `Fault` if the process cannot be started, ends,
        refuses the connection, or does not answer within `timeout_seconds`.
        """
        try:
            self._child = await spawn(command, self)
        except SpawnError as error:
            kind = FaultKind.UNAVAILABLE if error.temporary else FaultKind.SPAWN_FAILED
            raise Fault(Failure(kind=kind, message=str(error))) from error
        self._child.write(self.connection.open())
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._greeted.wait()
        except TimeoutError:
            message = f"The agent did not answer within {timeout_seconds:g} s of its start. Try again."
            await self.end()
            raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=message)) from None
        except asyncio.CancelledError:
            self.kill()
            raise
        if self.connection.fault is not None or self.exit is not None:
            await self.end()
            raise Fault(self._start_failure())
        self._agent_pids = frozenset(children_of(self._child.pid))
        self._agent_processes = descendants_of(self._child.pid)

    def _start_failure(self) -> Failure:
        if self.connection.fault is not None:
            message = self.connection.fault
            quoted = message.partition(": ")[2]
        else:
            ended = Ended() if self.exit is None else _exit_of(self.exit)
            message = f"The agent's process ended while it was starting{how_it_ended(ended)}"
            quoted = last_useful_line(ended.stderr_tail)
        return Failure(kind=FaultKind.SPAWN_FAILED, message=message, quoted=quoted)

    @property
    def exit_suffix(self) -> str:
        """The end of a sentence about the process: how it ended, such as ` (exit code 3).` or ` (signal 9).`; only
        `.` if it still runs.
        """
        return "." if self.exit is None else f"{exit_of(_exit_of(self.exit))}."

    @property
    def memory(self) -> int:
        """The agent's resident memory in bytes; 0 if it does not run. It is read from /proc at each access, so do
        not use it for every turn.
        """
        return resident_bytes(self._agent_processes) if self.alive else 0

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

    def open_channel(self) -> ThreadTransport:
        self._note_turn_start()
        self.turns_served += 1
        channel = self.connection.open_channel()
        self._channel_starts[channel] = seconds_since_boot()
        self._silent_channels.add(channel)
        return ThreadTransport(self, channel)

    def _note_turn_start(self) -> None:
        """Discards the stderr text of earlier turns if no other turn is running. Only the error of a turn that had
        the process to itself quotes stderr.
        """
        self._had_parallel_turns = self.turns_running > 0
        if not self._had_parallel_turns and self._child is not None:
            self._child.clear_stderr()

    @property
    def has_orphans(self) -> bool:
        """Whether a process that an ended turn has left behind is still running. Such a process has lost its
        parent, and was started before every turn that is running now.
        """
        if self._child is None or not self.alive:
            return False
        oldest_turn = min(self._channel_starts.values(), default=math.inf)
        return any(
            started_at < oldest_turn
            for pid, started_at in children_of(self._child.pid).items()
            if pid not in self._agent_pids
        )

    def attach(self, channel: int, reader: TransportReader) -> None:
        self._readers[channel] = reader
        if self.exit is not None or self.unhealthy:  # since the opening of the lane
            asyncio.get_running_loop().call_soon(self._report_end, channel)

    def send(self, channel: int, writes: bytes) -> None:
        self._write(self.connection.send(channel, writes))

    def set_idle(self, channel: int, idle: bool) -> None:
        """Marks a channel as idle (its thread waits for a later turn), or as in use again. A process that has only
        idle channels may be ended.
        """
        if channel not in self._readers:
            return
        if idle:
            self.completed_turn = True
            self._idle_channels.add(channel)
            self._channel_starts.pop(channel, None)  # what still runs of its turn is an orphan
        else:
            self._note_turn_start()
            self._idle_channels.discard(channel)
            self._channel_starts[channel] = seconds_since_boot()
            self._silent_channels.add(channel)
        self._changed()

    def end_idle_channels(self) -> None:
        """Reports the process as ended to the readers of the idle channels, because it takes no further turns."""
        for channel in list(self._idle_channels):
            self._readers[channel].ended(RENEWED)

    def end_silent_channels(self) -> None:
        """Reports the process as ended to the readers of the channels that have received no message since their
        turn began. The process may never answer them.
        """
        for channel in list(self._silent_channels):
            if channel in self._readers:
                self._readers[channel].ended(RENEWED)

    def close_channel(self, channel: int) -> None:
        self._readers.pop(channel, None)
        self._idle_channels.discard(channel)
        self._silent_channels.discard(channel)
        self._channel_starts.pop(channel, None)
        self._write(self.connection.close_channel(channel))

    def ask_limits(self) -> None:
        """Requests the rate limits of the account. The answer is passed to the callback `on_limits`."""
        self._write(self.connection.limits_request())

    def _write(self, writes: bytes) -> None:
        if writes and self._child is not None:
            self._child.write(writes)

    async def end(self) -> None:
        """Closes stdin and returns when the process has ended; it is killed if it does not end within a grace
        period.
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
        if self.connection.ready or self.connection.fault is not None:
            self._greeted.set()
        if broken is not None:
            for reader in list(self._readers.values()):
                reader.fail(broken)
            self.unhealthy = True
            self.kill()
            self._changed()

    def ended(self, exit: Exit) -> None:
        self.exit = exit
        self.ended_during_turn = self.turns_running > 0
        self._greeted.set()
        for channel in list(self._readers):
            self._report_end(channel)
        self._changed()

    def _report_end(self, channel: int) -> None:
        reader, exit = self._readers.get(channel), self.exit
        if reader is not None and exit is None:
            reader.ended(RENEWED)
        elif reader is not None and exit is not None:
            is_sole_turn = not self._had_parallel_turns and channel not in self._idle_channels
            reader.ended(_exit_of(exit) if is_sole_turn else Ended(exit.code, exit.signal))

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


class ThreadTransport:
    """The `Transport` of one thread (one channel) of a process that also serves other threads."""

    exclusive = False

    def __init__(self, process: AppServerProcess, channel: int) -> None:
        self.channel = channel
        self.dialect = AppServerTurn(channel, parallel_calls=process.parallel_calls)
        self.process = process
        self.has_begun = False
        """Whether a turn has begun on this transport."""

    def attach(self, reader: TransportReader) -> None:
        self.has_begun = True
        self.process.attach(self.channel, reader)

    def send(self, writes: bytes) -> None:
        self.process.send(self.channel, writes)

    def close_stdin(self) -> None:
        raise RuntimeError("stdin of a process that serves several turns stays open")

    def pause_reading(self) -> None:
        """Does nothing, because other sessions read from the same pipe. A client that reads too slowly is
        disconnected instead.
        """

    def resume_reading(self) -> None:
        """Does nothing: reading is never paused."""

    def set_idle(self, idle: bool) -> None:
        self.process.set_idle(self.channel, idle)

    async def release(self, *, finished: bool) -> None:
        self.process.unhealthy = self.process.unhealthy or not finished
        self.process.completed_turn = self.process.completed_turn or (
            self.has_begun and finished and self.process.alive
        )
        self.process.close_channel(self.channel)


def _exit_of(exit: Exit) -> Ended:
    return Ended(exit.code, exit.signal, exit.stderr_tail)
