"""One process of an agent that speaks ACP, and the sessions on it: writes to the process, and passes each of its
messages to the reader of the session that the message belongs to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from codex_proxy import __version__
from codex_proxy.agents.acp.connection import Connection
from codex_proxy.agents.acp.dialect import AcpTurn
from codex_proxy.agents.acp.messages import Input, Message, ModelCallFailed, channel_of, refusal, split_writes
from codex_proxy.agents.acp.tool_server import ToolEndpoint
from codex_proxy.agents.base import Ended
from codex_proxy.agents.failures import how_it_ended, last_useful_line
from codex_proxy.agents.session import LineFramer, LineTooLong, TransportReader, broken_protocol
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn

CLIENT_NAME = "codex-proxy"
MAX_LOG_LINE = 1 << 20
"""The maximum length of a line on the agent's stderr, in bytes. A longer line is dropped, with what was read after
it in the same chunk."""
AHEAD_PAUSE_SECONDS = 0.2
"""Seconds without a running turn after which a process opens a session ahead of the next turn. A client that sends
its next request sooner is not slowed down by that."""
AHEAD_SECONDS = 10.0
"""The most seconds that a session that was opened ahead waits for a turn; then it is closed. What the agent reads
when a session starts (instructions, the names of files, the date) is at most that old. For some agents each session
takes a process of its own."""
RENEWED = Ended(stderr_tail="The process was renewed before the turn began on it.")


class AcpProcess:
    """A process that serves many sessions at once, each on a channel of its `connection`. Call `start` and `probe`,
    then `open_channel` for each session. When no turn is running, it opens one session ahead, so that the next turn
    need not wait for it; that turn gets the session by `take_ahead`.
    """

    def __init__(self, error_log: str = "") -> None:
        """`error_log`: the regular expression in `AcpPreset.error_log` for errors on stderr; empty if stderr is not
        read.
        """
        self.connection = Connection(CLIENT_NAME, __version__)
        self.exit: Exit | None = None
        """How the process ended; None before that."""
        self.unhealthy = False
        """Whether the process broke the protocol or did not finish a turn. It then gets no further sessions."""
        self.sessions_served = 0
        self.on_change: Callable[[], None] | None = None
        """Called when the process has ended, or a session on it was released."""
        self._child: Child | None = None
        self._framer = LineFramer()
        self._readers: dict[int, TransportReader] = {}
        self._idle: set[int] = set()
        self._alone = True
        """Whether only one turn has run since the process was last without turns. Its stderr then belongs to that
        turn."""
        self._folder = ""
        """The folder of sessions that are opened ahead; empty before `probe`."""
        self._ahead_answer: Message | None = None
        """The answer to the request for the session that was opened ahead; None before it has come."""
        self._ahead_timer: asyncio.TimerHandle | None = None
        """The timer that opens a session ahead, or closes it because no turn has taken it."""
        self._changed = asyncio.Event()
        self._error_log = re.compile(error_log) if error_log else None
        self._log_framer = LineFramer(MAX_LOG_LINE)

    async def start(self, command: Command, *, timeout_seconds: float) -> None:
        """Starts the process and sends `initialize`. Returns when it has answered. Raises `Fault` if the process
        cannot be started, ends, refuses, or does not answer within `timeout_seconds`.
        """
        try:
            on_stderr = self._log_received if self._error_log is not None else None
            self._child = await spawn(command, self, on_stderr=on_stderr)
        except SpawnError as error:
            raise spawn_fault(error) from error
        self._child.write(self.connection.initialize())
        try:
            await self._until(lambda: self.connection.declared is not None, timeout_seconds)
        except BaseException:
            self.kill()
            raise

    async def probe(self, folder: str, *, timeout_seconds: float) -> None:
        """Opens a session in the folder and closes it, to store the agent's answer (with its modes and models) in
        `connection.probe`. Raises `Fault` if there is no answer within `timeout_seconds`.
        """
        self._write(self.connection.open_probe(folder))
        await self._until(lambda: self.connection.probe is not None, timeout_seconds)
        self._write(self.connection.close_probe())
        self._folder = folder

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not condition() and self.exit is None and self.connection.fault is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            message = f"The agent did not answer within {seconds:g} s of its start. Try again."
            raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message=message)) from None
        if not condition():
            raise Fault(self._start_failure())

    def _start_failure(self) -> Failure:
        if self.connection.fault is not None:
            message = f"The agent cannot be used: {self.connection.fault}."
            return Failure(kind=FaultKind.SPAWN_FAILED, message=message)
        ended = Ended() if self.exit is None else _ended(self.exit)
        message = f"The agent's process ended while it was starting{how_it_ended(ended)}"
        return Failure(
            kind=FaultKind.SPAWN_FAILED, message=message, quoted=last_useful_line(ended.stderr_tail)
        )

    @property
    def alive(self) -> bool:
        return self.exit is None and self._child is not None

    @property
    def turns_running(self) -> int:
        """The number of sessions in which a turn is running; those kept for a later turn do not count."""
        return self.connection.channel_count - len(self._idle)

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def open_channel(self) -> int:
        """Opens a channel for a session, and returns its number."""
        self._note_start()
        self.sessions_served += 1
        return self.connection.open_channel()

    def _note_start(self) -> None:
        if self.connection.ahead is None:
            self._stop_ahead_timer()
        self._alone = self.turns_running == 0
        if self._alone and self._child is not None:
            self._child.clear_stderr()

    def take_ahead(self, folder: str) -> int | None:
        """Assigns the session that was opened ahead in this folder to a turn, which must have no tools and no
        system prompt, and returns its channel; None if there is no such session. Its `session/new` was already
        sent, and perhaps answered.
        """
        channel = self.connection.ahead
        if channel is None or folder != self._folder:
            return None
        self._note_start()
        self._stop_ahead_timer()
        self.sessions_served += 1
        self.connection.take_ahead()
        return channel

    def _turn_ended(self) -> None:
        if self._folder and self.connection.ahead is None and not self.turns_running:
            self._stop_ahead_timer()
            loop = asyncio.get_running_loop()
            self._ahead_timer = loop.call_later(AHEAD_PAUSE_SECONDS, self._open_ahead)

    def _open_ahead(self) -> None:
        if not self.alive or self.unhealthy:
            return
        self._ahead_answer = None
        self._write(self.connection.open_ahead(self._folder))
        self._await_ahead()

    def _await_ahead(self) -> None:
        """Starts the timer of `AHEAD_SECONDS` after which the session that was opened ahead is closed, unless a
        turn takes it first. If the agent has not answered its `session/new` by then, the timer starts again,
        because the session cannot be closed before.
        """
        self._ahead_timer = asyncio.get_running_loop().call_later(AHEAD_SECONDS, self._ahead_expired)

    def _ahead_expired(self) -> None:
        if self._ahead_answer is None:
            self._await_ahead()
        else:
            self._close_ahead()

    def _close_ahead(self) -> None:
        """Closes the session that was opened ahead, if there is one, and stops the timer that opens or closes such
        sessions.
        """
        self._stop_ahead_timer()
        channel, answer = self.connection.ahead, self._ahead_answer
        if channel is not None:
            self.sessions_served += 1
            self.connection.close_channel(channel)
            if answer is not None and self.exit is None:
                self._write(self.connection.closing(answer))

    def _stop_ahead_timer(self) -> None:
        if self._ahead_timer is not None:
            self._ahead_timer.cancel()
            self._ahead_timer = None

    def attach(self, channel: int, reader: TransportReader) -> None:
        self._readers[channel] = reader
        answer = self._ahead_answer
        if answer is not None and channel_of(answer.id) == channel:
            self._ahead_answer = None
            asyncio.get_running_loop().call_soon(self._pass_on, channel, answer)
        if self.exit is not None:  # since the channel was opened
            asyncio.get_running_loop().call_soon(self._report_end, channel)

    def send(self, writes: bytes) -> None:
        self._write(writes)

    def set_idle(self, channel: int, idle: bool) -> None:
        """Sets whether the session on a channel is only kept for a later turn (`idle`), or has a running turn."""
        if idle:
            self._idle.add(channel)
            self._turn_ended()
        else:
            self._note_start()
            self._idle.discard(channel)
        self._note_change()

    def end_idle_channels(self) -> None:
        """Reports the end of the process to the sessions that are kept for later turns, so that they are closed.
        Called when the process takes no further turns.
        """
        self._folder = ""
        self._close_ahead()
        for channel in list(self._idle):
            if channel in self._readers:
                self._readers[channel].ended(RENEWED)

    def close_channel(self, channel: int) -> None:
        self._readers.pop(channel, None)
        was_running = channel not in self._idle
        self._idle.discard(channel)
        self.connection.close_channel(channel)
        if was_running:
            self._turn_ended()
        self._note_change()

    def _write(self, writes: bytes) -> None:
        if writes and self._child is not None:
            self._child.write(writes)

    async def end(self) -> None:
        """Ends the process and all its descendants. Returns when they are gone."""
        self._folder = ""
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
        for channel, messages in received.messages_by_channel:
            reader = self._readers.get(channel)
            if reader is not None:
                reader.received(messages, len(chunk) * len(messages) // max(1, len(lines)))
            else:
                self._note_ahead(messages)
        if self._changed is not None:
            self._changed.set()
        if broken is not None:
            for reader in list(self._readers.values()):
                reader.fail(broken)
            self.unhealthy = True
            self.kill()
            self._note_change()

    def _log_received(self, chunk: bytes) -> None:
        """Reads a chunk of the agent's stderr, and passes each failed model call that it reports to the session
        that the log line names, as `ModelCallFailed`.
        """
        assert self._error_log is not None
        try:
            lines = self._log_framer.feed(chunk)
        except LineTooLong as fault:
            lines, self._log_framer = fault.before, LineFramer(MAX_LOG_LINE)
        for line in lines:
            found = self._error_log.search(line.decode("utf-8", "replace"))
            channel = None if found is None else self.connection.channel_of_session(found["session"])
            if found is not None and channel in self._readers:
                self._readers[channel].received((ModelCallFailed(found["error"]),), 0)

    def _note_ahead(self, messages: Sequence[Message]) -> None:
        """Handles messages for a channel that has no reader, which is the one of the session that was opened ahead.
        Keeps the answer to `session/new` for the turn that takes the session; if it is an error, closes the
        channel. Refuses requests.
        """
        for message in messages:
            if message.method is None:
                self._ahead_answer = message
                if message.error is not None:
                    self._close_ahead()
            elif message.id is not None:
                self._write(refusal(message.id))

    def _pass_on(self, channel: int, message: Message) -> None:
        reader = self._readers.get(channel)
        if reader is not None:
            reader.received((message,), 0)

    def ended(self, exit: Exit) -> None:
        self.exit = exit
        self._close_ahead()
        self._changed.set()
        for channel in list(self._readers):
            self._report_end(channel)
        self._note_change()

    def _report_end(self, channel: int) -> None:
        reader, exit = self._readers.get(channel), self.exit
        if reader is not None and exit is not None:
            alone = self._alone and channel not in self._idle
            reader.ended(_ended(exit) if alone else Ended(exit.code, exit.signal))

    def _note_change(self) -> None:
        if self.on_change is not None:
            self.on_change()


class AcpTransport:
    """The `Transport` of one session. It writes to the process that the sessions share, and passes the results of
    calls to the session's tool server (`endpoint`; None if the client has no tools).
    """

    exclusive = False

    def __init__(
        self, process: AcpProcess, channel: int, dialect: AcpTurn, endpoint: ToolEndpoint | None
    ) -> None:
        self.process = process
        self.dialect = dialect
        self._channel = channel
        self._endpoint = endpoint
        self._reader: TransportReader | None = None

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader
        if self._endpoint is not None:
            self._endpoint.sink = self._tool_server_message
            self._endpoint.start_list_timer()
        self.process.attach(self._channel, reader)

    def send(self, writes: bytes) -> None:
        to_agent, outputs = split_writes(writes)
        if self._endpoint is not None:
            for key, result in outputs:
                self._endpoint.set_result(key, result)
        if self.dialect.session:  # not every agent names it when it opens it again
            self.process.connection.expect_session(self.dialect.session, self._channel)
        self.process.send(to_agent)

    def close_stdin(self) -> None:
        raise RuntimeError("stdin of a process that serves several sessions stays open")

    def pause_reading(self) -> None:
        """Does nothing: the pipe also has the messages of other sessions."""

    def resume_reading(self) -> None:
        """Does nothing: reading is never paused."""

    def set_idle(self, idle: bool) -> None:
        self.process.set_idle(self._channel, idle)

    async def release(self, *, finished: bool) -> None:
        self._reader = None
        self.process.unhealthy = self.process.unhealthy or not finished
        if self._endpoint is not None:
            self._endpoint.close()
        self.process.close_channel(self._channel)

    def _tool_server_message(self, message: Input) -> None:
        if self._reader is not None:
            messages: Sequence[Any] = (message,)
            self._reader.received(messages, 0)


def spawn_fault(error: SpawnError) -> Fault:
    """Converts the error of a program that could not be started to a `Fault`."""
    kind = FaultKind.UNAVAILABLE if error.temporary else FaultKind.SPAWN_FAILED
    return Fault(Failure(kind=kind, message=str(error)))


def _ended(exit: Exit) -> Ended:
    return Ended(exit.code, exit.signal, exit.stderr_tail)
