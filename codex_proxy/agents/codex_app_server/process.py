"""One `codex app-server` process, which serves many threads at once. Each thread has a channel, to whose reader the
messages about the thread are passed.

The dialect interprets the messages; the pool decides which process serves a turn.
"""

from __future__ import annotations

import asyncio
import math

from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.failures import exit_of
from codex_proxy.agents.session import TransportReader, ended_from
from codex_proxy.agents.shared_process import RENEWED, SharedProcess, SharedTransport
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Command, Exit
from codex_proxy.process.descendants import children_of, descendants_of, resident_bytes, seconds_since_boot


class AppServerProcess(SharedProcess[AppServerConnection]):
    """A process that serves many turns at once. Call `start`, then `open_channel` for each thread; it returns the
    transport of the thread.
    """

    def __init__(self, client_name: str, client_version: str, *, parallel_calls: bool = True) -> None:
        """`client_name` and `client_version` are sent in `initialize`. `parallel_calls`: whether the model may call
        several tools in one answer, which needs a program that reports the end of each answer of the model.
        """
        super().__init__(AppServerConnection(client_name, client_version))
        self.parallel_calls = parallel_calls
        self.turns_served = 0
        self.completed_turn = False
        """Whether a turn on the process has ended without a failure of the process."""
        self.ended_during_turn = False
        """Whether the process ended while a turn was running on it."""
        self._channel_starts: dict[int, float] = {}
        """When each channel in use was opened or resumed, in seconds since boot."""
        self._agent_pids: frozenset[int] = frozenset()
        """The process ids of the agent itself: the children of the warden (its supervisor) before the first turn."""
        self._agent_processes: dict[int, float] = {}
        """The agent and any wrapper it was started through: pid to start time."""

    async def start(self, command: Command, *, timeout_seconds: float) -> None:
        """Starts the process and initializes the connection. Raises `Fault` if the process cannot be started, ends,
        refuses the connection, or does not answer within `timeout_seconds`; the process is ended then.
        """
        child = await self._spawn(command)
        child.write(self.connection.open())
        try:
            await self._until(lambda: self.connection.ready and self.exit is None, timeout_seconds)
        except Fault:
            await self.end()
            raise
        except asyncio.CancelledError:
            self.kill()
            raise
        self._agent_pids = frozenset(children_of(child.pid))
        self._agent_processes = descendants_of(child.pid)

    @property
    def signed_in(self) -> bool:
        return self.connection.signed_in

    def _refusal(self, fault: str) -> Failure:
        return Failure(kind=FaultKind.SPAWN_FAILED, message=fault, quoted=fault.partition(": ")[2])

    @property
    def exit_suffix(self) -> str:
        """The end of a sentence about the process: how it ended, such as ` (exit code 3).` or ` (signal 9).`; only
        `.` if it still runs.
        """
        return "." if self.exit is None else f"{exit_of(ended_from(self.exit))}."

    @property
    def memory(self) -> int:
        """The agent's resident memory in bytes; 0 if it does not run. It is read from /proc at each access, so do
        not use it for every turn.
        """
        return resident_bytes(self._agent_processes) if self.alive else 0

    def open_channel(self) -> ThreadTransport:
        self._note_turn_start()
        self.turns_served += 1
        channel = self.connection.open_channel()
        self._channel_starts[channel] = seconds_since_boot()
        self._silent_channels.add(channel)
        return ThreadTransport(self, channel)

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

    def send(self, channel: int, writes: bytes) -> None:
        self._write(self.connection.send(channel, writes))

    def set_idle(self, channel: int, idle: bool) -> None:
        """Marks a channel as idle (its thread waits for a later turn), or as in use again. The pool may end a
        process that has only idle channels.
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
        self._note_change()

    def end_silent_channels(self) -> None:
        """Tells the readers of those channels that have received no message since their turn began that the process
        has ended, because it may never answer them. The process itself and its other channels go on.
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
        """Requests the rate limits of the account, and returns at once. The answer is passed to `on_limits` as
        JSON; empty bytes if the agent answers with an error.
        """
        self._write(self.connection.limits_request())

    def ended(self, exit: Exit) -> None:
        self.ended_during_turn = self.turns_running > 0
        super().ended(exit)


class ThreadTransport(SharedTransport):
    """The `Transport` of one thread (one channel) of a process that also serves other threads."""

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

    def set_idle(self, idle: bool) -> None:
        self.process.set_idle(self.channel, idle)

    async def release(self, *, finished: bool) -> None:
        self.process.unhealthy = self.process.unhealthy or not finished
        self.process.completed_turn = self.process.completed_turn or (
            self.has_begun and finished and self.process.alive
        )
        self.process.close_channel(self.channel)
