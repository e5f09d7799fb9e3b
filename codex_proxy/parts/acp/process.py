"""One process of an agent that speaks ACP, with many sessions, and its JSON-RPC connection, which does no IO. A
session has a channel: a number in its request ids, by which its messages are found. Channel 0 is the
connection's own.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy import __version__
from codex_proxy.agents.dialect import ReceivedMessages
from codex_proxy.agents.sessions.session import AgentSession, LineFramer, LineTooLong, TransportReader
from codex_proxy.agents.sessions.shared_process import SharedProcess, SharedTransport
from codex_proxy.agents.shared.json_lines import OF_NOBODY, divided, why_lost
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.own_errors import breaks_off
from codex_proxy.parts.acp.acp_dialect import AcpTurn
from codex_proxy.parts.acp.failures import failure_of_error
from codex_proxy.parts.acp.messages import (
    PROTOCOL_VERSION,
    Input,
    Message,
    ModelCallFailed,
    channel_of,
    decode,
    may_carry_text,
    new_session,
    refusal,
    request,
    request_id,
    split_writes,
)
from codex_proxy.parts.acp.presets import (
    ASKS_USER,
    INITIALIZE,
    AcpPreset,
    DeclaredFeatures,
    read_declared_features,
)
from codex_proxy.parts.acp.tool_server import ToolEndpoint
from codex_proxy.process.child import Command, Exit

CLIENT: Final = {"name": "codex-proxy", "title": "codex-proxy", "version": __version__}
INITIALIZE_ID: Final = request_id(0, 1)
PROBE_ID: Final = request_id(0, 2)
CLOSE_ID: Final = request_id(0, 3)


class AcpConnection:
    def __init__(
        self, session_meta: Mapping[str, Any], *, closes: bool = True, asks_user: bool = False
    ) -> None:
        """`session_meta` is the `_meta` of each `session/new`; `closes`: whether sessions are closed, if the agent can
        do that; `asks_user`: whether a user may be asked for more than permissions.
        """
        self._able = INITIALIZE["clientCapabilities"] | (ASKS_USER if asks_user else {})
        self._session_meta = session_meta
        self._closes = closes
        self.declared: DeclaredFeatures | None = None
        self.fault: str | None = None
        """Why the agent cannot be used, if so."""
        self.probe: Message | None = None
        self._last_channel = 0
        self._open: set[int] = set()
        self.ahead: int | None = None
        """The channel of the session that was opened ahead, if any."""
        self.sessions: dict[str, int] = {}
        """The channel of each session. A session that is opened again is added before the agent's answer, since its
        messages may come first.
        """
        self._answered: set[int] = set()

    def initialize(self) -> bytes:
        return request(
            INITIALIZE_ID,
            "initialize",
            {**INITIALIZE, "clientCapabilities": self._able, "clientInfo": CLIENT},
        )

    def open_probe(self, folder: str) -> bytes:
        """Returns the line that opens the probe session. The answer has modes and models, or an error if nobody is
        signed in.
        """
        return request(PROBE_ID, "session/new", new_session(folder, (), self._session_meta))

    def close_line(self, opened: Message) -> bytes:
        """Returns the line that closes the session in `opened`, the response to `session/new`; empty if that is
        impossible.
        """
        if self.declared is None or not self.declared.closes or not opened.session:
            return b""
        return request(CLOSE_ID, "session/close", {"sessionId": opened.session})

    # --- channels -------------------------------------------------------------------------------

    def open_channel(self) -> int:
        self._last_channel += 1
        self._open.add(self._last_channel)
        return self._last_channel

    def open_ahead(self, folder: str) -> bytes:
        """Opens a channel for a later turn; returns the line that opens a session on it."""
        self.ahead = self.open_channel()
        params = new_session(folder, (), self._session_meta)
        return request(request_id(self.ahead, 1), "session/new", params)

    def close_channel(self, channel: int) -> bytes:
        """Drops the channel's messages from now on, and refuses requests among them."""
        self._open.discard(channel)
        self._answered.discard(channel)
        if channel == self.ahead:
            self.ahead = None
        self.sessions = {session: each for session, each in self.sessions.items() if each != channel}
        return b""

    # --- received messages ----------------------------------------------------------------------

    def receive(self, lines: Sequence[bytes]) -> ReceivedMessages:
        """Sorts messages by channel; answers come last, since some agents send a turn's last text behind the answer
        that ends it. Refuses, in `writes`, requests of no channel.
        """
        by_channel: dict[int, list[Message]] = {}
        writes: list[bytes] = []
        found: list[tuple[int, Message]] = []
        answers: list[tuple[int, Message]] = []
        lost = ""
        for line in divided(lines):
            message = decode(line)
            if message is None:
                lost = why_lost(line) or lost
                continue
            channel = self._channel_of(message, writes)
            if channel is None:
                if _is_lost(message):
                    lost = why_lost(line, otherwise=OF_NOBODY)
                continue
            (answers if message.method is None else found).append((channel, message))
        for channel, message in found + answers if answers else found:
            by_channel.setdefault(channel, []).append(message)
        return ReceivedMessages(b"".join(writes), list(by_channel.items()), lost=lost)

    def _channel_of(self, message: Message, writes: list[bytes]) -> int | None:
        if message.method is not None:
            channel = self.sessions.get(message.params.session_id)
            if channel is None and message.id is not None:
                writes.append(refusal(message.id))
            return channel
        channel = channel_of(message.id)
        if channel == 0:
            self._handle_own_answer(message)
            return None
        if channel is None or channel not in self._open:
            return None
        if message.id == request_id(channel, 1) and channel not in self._answered:
            self._answered.add(channel)
            if isinstance(message.session, str):
                self.sessions[message.session] = channel
        return channel

    def _handle_own_answer(self, message: Message) -> None:
        if message.id == PROBE_ID:
            self.probe = message
        elif message.id == INITIALIZE_ID:
            if message.error is not None:
                self.fault = f"the agent refused to start: {message.error.message or message.error.code}"
            elif not isinstance(message.result, dict):
                self.fault = "the agent's answer to initialize is invalid"
            elif message.result.get("protocolVersion") != PROTOCOL_VERSION:
                self.fault = "the agent speaks an unsupported version of ACP"
            else:
                declared = read_declared_features(message.result)
                self.declared = msgspec.structs.replace(declared, closes=declared.closes and self._closes)


def _is_lost(message: Message) -> bool:
    """Whether some turn misses the message, which does not say which: an answer without an id, an update of no
    session.
    """
    if message.id is not None:
        return False
    if message.method is None:
        return message.error is not None or message.result is not None
    return not message.params.session_id and may_carry_text(message)


START_SECONDS = 60.0
"""Maximum seconds until the answer to `initialize`; 0.3 to 2.5 are usual, ten times that on a busy machine."""
PROBE_SECONDS = 60.0
MAX_LOG_LINE = 1 << 20
"""Maximum bytes of a line on stderr. A longer one is dropped, with the rest of its chunk."""
SEARCHED_LOG_BYTES = 4096
AHEAD_PAUSE_SECONDS = 0.2
"""The time without a running turn until the next session is opened ahead."""
AHEAD_SECONDS = 10.0
"""The time until an unused session is closed, so that its instructions, files and date are no older."""


STOP_REASON: Final = "stopReason"
"""The field of an answer that ends a turn. In a text, quotes around it have a backslash."""
_QUOTED_STOP_REASON: Final = f'"{STOP_REASON}"'.encode()


class AcpProcess(SharedProcess[AcpConnection]):
    """A process. Call `start`, then `open_channel` for each session. When no turn runs, the process opens one
    session ahead.
    """

    def __init__(self, preset: AcpPreset, *, alone: bool = False, asks_user: bool = False) -> None:
        """`alone`: the process serves one session at a time, and opens none ahead. `asks_user`: see `AcpConnection`."""
        closes = not preset.close_disturbs
        super().__init__(AcpConnection(preset.session_meta, closes=closes, asks_user=asks_user))
        self.alone_with: AgentSession | None = None
        """The newest session of a process that serves one at a time."""
        self._preset = preset
        self._opens_ahead = not alone
        self._folder = ""
        """The folder of sessions that are opened ahead; empty: none are."""
        self._ahead_answer: Message | None = None
        """The response to the `session/new` of the session that was opened ahead."""
        self._ahead_timer: asyncio.TimerHandle | None = None
        self._error_log = re.compile(preset.error_log) if preset.error_log else None
        self._log_framer = LineFramer(MAX_LOG_LINE)
        self._late_ends: dict[int, tuple[asyncio.TimerHandle, Message]] = {}
        """By channel, the end of a turn that waits for late text: its timer, the answer, and the line to record."""

    async def start(self, command: Command) -> None:
        """Starts the program, and opens and closes a session as a probe. `connection` then has the answers to
        `initialize` and `session/new`. Raises `Fault`.
        """
        connection = self.connection
        await self._start_and_ask(
            command,
            (connection.initialize(), lambda: connection.declared is not None, START_SECONDS),
            (connection.open_probe(command.cwd), lambda: connection.probe is not None, PROBE_SECONDS),
            on_stderr=None if self._error_log is None else self._on_stderr,
        )
        assert connection.probe is not None
        self.write(connection.close_line(connection.probe))
        self._folder = command.cwd if self._opens_ahead else ""

    @property
    def session_failure(self) -> Failure | None:
        """Why the probe session could not be opened (most often nobody is signed in); else None."""
        probe = self.connection.probe
        return None if probe is None or probe.error is None else failure_of_error(probe.error, self._preset)

    @property
    def signed_in(self) -> bool:
        return self.session_failure is None

    @property
    def is_held(self) -> bool:
        session = self.alone_with
        if session is None or not session.can_resume:
            return False
        assert isinstance(session.transport, AcpTransport)
        return not session.transport.dialect.is_reusable

    def _refusal(self, fault: str) -> Failure:
        return Failure(FaultKind.SPAWN_FAILED, f"The agent cannot be used: {fault}.")

    def open_channel(self) -> int:
        """Opens a channel. A process for one session at a time first closes the one that it keeps."""
        if self.alone_with is not None and self.alone_with.can_resume:
            self.alone_with.close()
        return self._serve(self.connection.open_channel())

    def _turn_began(self, channel: int) -> None:
        if self.connection.ahead is None:
            self._stop_ahead_timer()
        super()._turn_began(channel)

    def take_ahead(self, folder: str) -> int | None:
        """Returns the channel of the session that was opened ahead in this folder, if any. Its `session/new` may still
        be unanswered.
        """
        channel = self.connection.ahead
        if channel is None or folder != self._folder:
            return None
        self._stop_ahead_timer()
        self.connection.ahead = None
        return self._serve(channel)

    def _turn_ended(self, channel: int) -> None:
        super()._turn_ended(channel)
        if self._folder and self.connection.ahead is None and not self.turns_running:
            self._stop_ahead_timer()
            loop = asyncio.get_running_loop()
            self._ahead_timer = loop.call_later(AHEAD_PAUSE_SECONDS, self._open_ahead)

    def _open_ahead(self) -> None:
        if not self.alive or self.unhealthy:
            return
        self._ahead_answer = None
        self.write(self.connection.open_ahead(self._folder))
        self._await_ahead()

    def _await_ahead(self) -> None:
        self._ahead_timer = asyncio.get_running_loop().call_later(AHEAD_SECONDS, self._on_ahead_timeout)

    def _on_ahead_timeout(self) -> None:
        if self._ahead_answer is None:
            self._await_ahead()
        else:
            self._close_ahead()

    def _close_ahead(self) -> None:
        self._stop_ahead_timer()
        channel, answer = self.connection.ahead, self._ahead_answer
        if channel is not None:
            self.turns_served += 1
            self.connection.close_channel(channel)
            if answer is not None and self.exit is None:
                self.write(self.connection.close_line(answer))

    def _stop_ahead_timer(self) -> None:
        if self._ahead_timer is not None:
            self._ahead_timer.cancel()
            self._ahead_timer = None

    def attach(self, channel: int, reader: TransportReader) -> None:
        answer = self._ahead_answer
        if answer is not None and channel_of(answer.id) == channel:
            self._ahead_answer = None
            asyncio.get_running_loop().call_soon(self._pass_on, channel, answer)
        super().attach(channel, reader)

    def end_idle_channels(self) -> None:
        self._folder = ""
        self._close_ahead()
        super().end_idle_channels()

    async def end(self) -> None:
        self._folder = ""
        await super().end()

    # --- called by the child (see ChildListener) ------------------------------------------------

    def _lines_in(self, chunk: bytes) -> list[bytes]:
        """Also reads what the pipe holds if a turn may end: some programs write its last text right behind its end."""
        lines = super()._lines_in(chunk)
        if self._child is None or not any(_QUOTED_STOP_REASON in line for line in lines):
            return lines
        try:
            return lines + super()._lines_in(self._child.take_output())
        except LineTooLong as fault:
            raise LineTooLong(fault.limit, lines + fault.before) from None

    def _deliver(self, channel: int, messages: Sequence[Any], size: int) -> None:
        """Delivers the end of a turn later, if the program sends text of the turn behind it."""
        *before, last = messages
        if not (self._preset.late_seconds and _ends_turn(last)) or channel in self._late_ends:
            super()._deliver(channel, messages, size)
            return
        if before:
            super()._deliver(channel, before, size)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._preset.late_seconds, self._deliver_late_end, channel)
        self._late_ends[channel] = timer, last

    @breaks_off
    def _deliver_late_end(self, channel: int) -> None:
        timer, answer = self._late_ends.pop(channel)
        timer.cancel()
        super()._deliver(channel, (answer,), 0)

    def close_channel(self, channel: int) -> None:
        if channel in self._late_ends:
            timer, _ = self._late_ends.pop(channel)
            timer.cancel()
        super().close_channel(channel)

    def on_end(self, exit: Exit) -> None:
        self.exit = exit
        try:
            for channel in list(self._late_ends):
                self._deliver_late_end(channel)
            self._close_ahead()
        finally:
            super().on_end(exit)

    def _on_stderr(self, chunk: bytes) -> None:
        assert self._error_log is not None
        try:
            lines = self._log_framer.feed(chunk)
        except LineTooLong as fault:
            lines, self._log_framer = fault.before, LineFramer(MAX_LOG_LINE)
        for line in lines:
            found = self._error_log.search(line[:SEARCHED_LOG_BYTES].decode("utf-8", "replace"))
            channel = None if found is None else self.connection.sessions.get(found["session"])
            if found is not None and channel in self._readers:
                self._readers[channel].on_messages((ModelCallFailed(found["error"]),), 0)

    def _on_messages_without_reader(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message.method is None:
                self._ahead_answer = message
                if message.error is not None:
                    self._close_ahead()
            elif message.id is not None:
                self.write(refusal(message.id))

    def _pass_on(self, channel: int, message: Message) -> None:
        reader = self._readers.get(channel)
        if reader is not None:
            reader.on_messages((message,), 0)


def _ends_turn(message: Message) -> bool:
    return isinstance(message.result, dict) and STOP_REASON in message.result


class AcpTransport(SharedTransport[AcpProcess]):
    """Passes results of calls to the session's tool server (`endpoint`; None without tools)."""

    def __init__(
        self, process: AcpProcess, channel: int, dialect: AcpTurn, endpoint: ToolEndpoint | None
    ) -> None:
        super().__init__(process, channel)
        self.dialect = dialect
        self._endpoint = endpoint
        self._reader: TransportReader | None = None

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader
        if self._endpoint is not None:
            self._endpoint.sink = self._on_tool_server_message
            self._endpoint.start_list_timer(tested=self.dialect.is_tested)
        super().attach(reader)

    def send(self, writes: bytes) -> None:
        to_agent, outputs = split_writes(writes)
        if self._endpoint is not None:
            for key, result in outputs:
                self._endpoint.set_result(key, result)
        if self.dialect.session:  # not every agent names it when it opens it again
            self.process.connection.sessions[self.dialect.session] = self.channel
        self.process.write(to_agent)

    async def release(self, *, finished: bool) -> None:
        self._reader = None
        try:
            if self._endpoint is not None:
                self._endpoint.close()
        finally:
            await super().release(finished=finished)

    def _on_tool_server_message(self, message: Input) -> None:
        if self._reader is not None:
            self._reader.on_messages((message,), 0)
