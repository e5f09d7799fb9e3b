"""Reads what a child prints in one turn as the server does: the bytes of the pipe in lines, the lines by the dialect,
its events by the tool policy, the repair and the limit of a turn's size.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from codex_proxy.agents.codex_app_server.app_server_dialect import AppServerTurn
from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.dialect import Dialect, Step, TooMuchHeld
from codex_proxy.agents.sessions.session import LineFramer
from codex_proxy.core.events import Event
from codex_proxy.core.items import HistoryMessage, TextPart, Tool
from codex_proxy.core.limits import MAX_TURN_CHARS, TurnLimits
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.acp_dialect import AcpTurn
from codex_proxy.parts.acp.messages import request_id
from codex_proxy.parts.acp.presets import AcpPreset, DeclaredFeatures, Program
from codex_proxy.parts.acp.process import AcpConnection
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.process.pipes import READ_BYTES
from codex_proxy.tools.policy import ToolPolicy

THREAD, TURN, SESSION = "thread_1", "turn_1", "session_1"


def turn_of(**changes: Any) -> Turn:
    """A turn with one tool of the client, `add`."""
    history = (HistoryMessage("user", (TextPart("go"),)),)
    return Turn(**{"model": "", "history": history, "tools": (Tool("add", "Adds"),), **changes})


class ChildReader:
    """Reads the output of a child, from the moment at which the child begins to answer the turn. `log` are the events
    that readers of the turn get, if `keeps_log`.
    """

    def __init__(self, dialect: Dialect[Any], turn: Turn, *, keeps_log: bool = False) -> None:
        self.dialect = dialect
        self.fault = ""
        """Why the turn failed, if the child has sent more than the dialect keeps, or a line was lost of which nobody
        knows whose it is. Nothing is read after that.
        """
        self.log: list[Event] = []
        self.written = bytearray()
        """What was written to the child."""
        self._keeps_log = keeps_log
        self._framer = LineFramer()
        self._policy = ToolPolicy(turn)
        self._repair = TurnRepair()
        self._limits = TurnLimits(chars=MAX_TURN_CHARS)
        self._take(dialect.begin(turn))

    def read(self, data: bytes) -> None:
        """Reads bytes of the child's stdout, in pieces as large as those of a pipe."""
        for start in range(0, len(data), READ_BYTES):
            lines = self._framer.feed(data[start : start + READ_BYTES])
            if lines and not self.fault:
                try:
                    self._receive(lines)
                except TooMuchHeld as fault:
                    self.fault = str(fault)

    def say(self, *messages: Any) -> None:
        """Reads messages of the child, each as a line of JSON."""
        self.read(as_lines(messages))

    def _receive(self, lines: Sequence[bytes]) -> None:
        self._take(self.dialect.receive(lines))

    def _take(self, step: Step) -> None:
        self.written += step.writes
        events, _ = self._limits.feed(self._repair.feed(self._policy.feed(step.events).events))
        if self._keeps_log:
            self.log += events


class _OnAConnection(ChildReader):
    """A reader for a child that serves several sessions, each on a channel of the connection."""

    def __init__(self, connection: Any, dialect: Dialect[Any], turn: Turn, *, keeps_log: bool) -> None:
        self._connection = connection
        super().__init__(dialect, turn, keeps_log=keeps_log)

    def _receive(self, lines: Sequence[bytes]) -> None:
        received = self._connection.receive(lines)
        self.written += received.writes
        self.fault = received.lost
        for _, messages in received.messages_by_channel:
            self._take(self.dialect.receive(messages))


def proto(*, keeps_log: bool = False, **changes: Any) -> ChildReader:
    reader = ChildReader(CodexProto(extended=True), turn_of(**changes), keeps_log=keeps_log)
    reader.say({"id": "", "msg": {"type": "session_configured", "session_id": "s", "model": "m"}})
    return reader


def app_server(*, keeps_log: bool = False, **changes: Any) -> ChildReader:
    connection = AppServerConnection()
    channel = connection.open_channel()
    dialect = AppServerTurn(channel)
    reader = _OnAConnection(connection, dialect, turn_of(**changes), keeps_log=keeps_log)
    reader.say(
        {"id": f"{channel}.1", "result": {"thread": {"id": THREAD}, "model": "m"}},
        {"id": f"{channel}.2", "result": {"turn": {"id": TURN}}},
    )
    return reader


def claude_code(*, keeps_log: bool = False, **changes: Any) -> ChildReader:
    reader = ChildReader(ClaudeCodeTurn(), turn_of(**changes), keeps_log=keeps_log)
    listing = {"method": "tools/list", "id": 1, "jsonrpc": "2.0"}
    ready = {"subtype": "success", "request_id": "initialize", "response": {}}
    reader.say(
        {"type": "control_response", "response": ready},
        {
            "type": "control_request",
            "request_id": "r",
            "request": {"subtype": "mcp_message", "server_name": "client", "message": listing},
        },
        {"type": "system", "subtype": "init", "session_id": SESSION, "model": "m"},
    )
    return reader


def acp(*, keeps_log: bool = False, **changes: Any) -> ChildReader:
    connection = AcpConnection({})
    channel, count = connection.open_channel(), itertools.count(1)
    preset = AcpPreset(name="acp", title="The agent", argv=("agent",), usage="session", errors_as_text=True)
    dialect = AcpTurn(
        channel, Program(preset, DeclaredFeatures(), True), lambda prefix: f"{prefix}{next(count)}"
    )
    reader = _OnAConnection(connection, dialect, turn_of(**changes), keeps_log=keeps_log)
    reader.say({"jsonrpc": "2.0", "id": request_id(channel, 1), "result": {"sessionId": SESSION}})
    return reader


READERS: dict[str, Callable[..., ChildReader]] = {
    "codex-proto": proto,
    "app-server": app_server,
    "claude-code": claude_code,
    "acp": acp,
}
"""A reader of each kind of child, at the beginning of an answer."""


def as_lines(messages: Iterable[Any]) -> bytes:
    """The messages as lines of JSON; a message of bytes is a line already."""
    return b"".join(
        (each if isinstance(each, bytes) else json.dumps(each, separators=(",", ":")).encode()) + b"\n"
        for each in messages
    )
