"""What is recorded of a running turn: the lines of its sessions with the agent, the calls that this server ran, and how
it ended. It costs a turn as little as possible: bytes are kept as they come, and read when the turn is over.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import structlog

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.dialect import UNREADABLE, Ended
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.agents.recorded import (
    attempt_of,
    facts_of,
    first_channel_id,
    is_rpc,
    name_of,
    object_of,
    rpc_of,
)
from codex_proxy.cassettes.format import Line, Session
from codex_proxy.cassettes.player import PlayedSession
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.tools.policy import ToolOutput

log = structlog.get_logger(__name__)

MAX_BYTES: Final = 64 << 20
"""The most bytes of a turn that are kept; a larger turn is not recorded."""

Said = tuple[float, str, Any]
"""A time, a kind of `format.SAID`, or `bytes_to` and `bytes_from` for bytes that were not read yet, and the value."""


class SessionTape:
    """Records a session with the agent, which may serve several turns (see `agents.processes.session.SessionTape`)."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.said: list[Said] = []
        """What was said since the last turn was taken out."""
        self.size = 0
        self.turns: list[TurnTape] = []
        """The turns of this session, in their order."""
        self.dialect = ""
        self.facts: dict[str, Any] = {}
        self.origin = ""

    def did(self, session: AgentSession, act: str, given: Sequence[Any], writes: bytes) -> None:
        if act in ("begin", "reopen"):
            if act == "begin":
                self.said.clear()  # an upstream's attempt that has failed: another one begins
            self._identify(session._dialect)
            if session.origin is not None:
                self.origin = session.origin.name
            self._add(act, given[1] if act == "reopen" else {})
        elif act == "resume":
            self._add(act, {})
        elif act == "answer":
            self._add(act, given)
        self.wrote(writes)

    def _identify(self, begun: Any) -> None:
        """Notes which dialect reads the session from now on. `begun` is the session's, or another attempt."""
        dialect, self.origin = attempt_of(begun)
        self.dialect = name_of(dialect)
        try:
            self.facts = facts_of(dialect)
        except AttributeError:
            log.exception("session_not_recorded", dialect=self.dialect)
            self.size = MAX_BYTES + 1

    def wrote(self, writes: bytes) -> None:
        if writes:
            self.size += len(writes)
            self._add("bytes_to", writes)

    def read(self, messages: Sequence[Any]) -> None:
        now = self._now()
        for message in messages:
            if isinstance(message, bytes):
                self.size += len(message)
                self.said.append((now, "bytes_from", message))
            elif (found := object_of(message)) is not None:
                self.said.append((now, *found))
            elif attempt_of(message)[0] is not message:
                self.said[:] = [(now, "begin", {})]
                self._identify(message)

    def read_line(self, line: bytes) -> None:
        self.size += len(line)
        self._add("bytes_from", line)

    def ended(self, ended: Ended) -> None:
        self._add("ended", msgspec.structs.asdict(ended))

    def _add(self, kind: str, value: Any) -> None:
        self.said.append((self._now(), kind, value))
        if self.size > MAX_BYTES:
            self.said.clear()

    def take(self) -> list[Said]:
        """Returns what was said since the last call."""
        said, self.said = self.said, []
        return said


class TurnTape:
    """Records one turn. Implements `runs.recording.TurnTape`."""

    def __init__(
        self,
        turn: Turn,
        agent: Agent,
        first: Sequence[Event],
        now: Callable[[], float],
        on_end: Callable[[TurnTape], None],
    ) -> None:
        self.turn = turn
        self.agent = agent
        self.first = tuple(first)
        self.began = now()
        self.parts: list[tuple[SessionTape, list[Said]]] = []
        """The sessions of the turn, each with what was said in it, once the turn is over."""
        self.after: TurnTape | None = None
        """The turn before this one in its first session."""
        self.order = 1
        self.name = ""
        """The name of the turn's cassette, once it has one."""
        self.end: TurnEnded | None = None
        self.size = 0
        self._now = now
        self._on_end = on_end
        self._current: SessionTape | None = None

    def session(self, session: AgentSession) -> None:
        self._take()
        if isinstance(session, PlayedSession):
            return  # it was recorded before
        tape = session.tape
        if not isinstance(tape, SessionTape):
            tape = session.tape = SessionTape(self._now)
        if tape.turns and not self.parts:
            self.after, self.order = tape.turns[-1], len(tape.turns) + 1
        tape.turns.append(self)
        self._current = tape

    def _take(self) -> None:
        if self._current is not None:
            self.size += self._current.size
            self._current.size = 0
            self.parts.append((self._current, self._current.take()))
            self._current = None

    def runner(self, runner: ToolRunner | None) -> ToolRunner | None:
        return None if runner is None else _RecordedRunner(runner, self)

    def called(self, tool: Tool, arguments: str, output: ToolOutput) -> None:
        """Takes a call that this server has run."""
        value = {"tool": tool.name, "arguments": arguments, "output": msgspec.to_builtins(output)}
        if self._current is not None:
            self._current.said.append((self._now(), "call", value))
        else:
            self.parts.append((SessionTape(self._now), [(self._now(), "call", value)]))

    def failed(self, failure: Failure) -> None:
        if self._current is not None:
            self._current.said.append((self._now(), "failed", msgspec.to_builtins(failure)))

    def ended(self, end: TurnEnded) -> None:
        self.end = end
        self._take()
        self._on_end(self)

    def sessions(self) -> list[Session]:
        """Returns the sessions of a turn that is over, as they are written."""
        return [
            Session(tape.dialect, tape.facts, list(_lines(tape.dialect, said, self.began)), tape.origin)
            for tape, said in self.parts
        ]


class _RecordedRunner:
    def __init__(self, runner: ToolRunner, tape: TurnTape) -> None:
        self._runner = runner
        self._tape = tape

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        output = await self._runner.run(tool, arguments)
        self._tape.called(tool, arguments, output)
        return output


# --- from bytes to lines --------------------------------------------------------------------------


def _lines(dialect: str, said: Sequence[Said], began: float) -> Iterator[Line]:
    """Returns what was said in a session as lines of a cassette."""
    body = _Body() if any(kind == "head" for _, kind, _ in said) else None
    for at, kind, value in said:
        ms = max(0, round((at - began) * 1000))
        if kind == "bytes_to":
            yield from _written(dialect, value, ms)
        elif kind == "bytes_from":
            yield from _json_or_text("from", value, ms, dialect) if body is None else body.feed(value, ms)
        elif kind == "over" and body is not None:
            yield from body.close(ms)
            yield Line(ms, kind, value)
            body = _Body()
        elif kind == "answer":
            yield Line(ms, kind, {"to": value[0], "reply": msgspec.to_builtins(value[1])})
        else:
            yield Line(ms, kind, value)


def _written(dialect: str, writes: bytes, ms: int) -> Iterator[Line]:
    if is_json(writes):
        yield from _json_or_text("to", writes.rstrip(b"\n"), ms, dialect)
        return
    lines = writes.split(b"\n")
    if all(is_json(line) for line in lines if line):
        for line in filter(None, lines):
            yield from _json_or_text("to", line, ms, dialect)
    else:
        yield from _json_or_text("to", writes, ms, dialect)


def is_json(data: bytes) -> bool:
    """Returns whether the bytes are one JSON value in UTF-8."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        data.decode()
    except UNREADABLE:
        return False
    return True


def _json_or_text(kind: str, data: bytes, ms: int, dialect: str = "") -> Iterator[Line]:
    if is_json(data):
        if is_rpc(dialect):
            data = _on_first_channel(dialect, data)
        compact = data if b"\n" not in data else msgspec.json.format(data, indent=-1)
        yield Line(ms, kind, msgspec.Raw(compact))
        return
    try:
        yield Line(ms, f"{kind}_text", data.decode())
    except UnicodeDecodeError:
        yield Line(ms, f"{kind}_bytes", base64.b64encode(data).decode())


def _on_first_channel(dialect: str, line: bytes) -> bytes:
    """Returns a JSON-RPC line with the id that it would have on the first channel of a connection."""
    if not line.startswith((b'{"id":', b'{"jsonrpc":"2.0","id":')):
        return line
    id, _ = rpc_of(line)
    new = first_channel_id(dialect, id)
    if new == id:
        return line
    old = b'"id":' + msgspec.json.encode(id)
    at = line.find(old)
    begins = line[:at]
    if at < 0 or begins not in (b"{", b'{"jsonrpc":"2.0",'):
        return line
    return begins + b'"id":' + msgspec.json.encode(new) + line[at + len(old) :]


class _Body:
    """Cuts the body of an upstream's answer into the lines of a cassette: events of a stream, or a whole object."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_stream: bool | None = None

    def feed(self, data: bytes, ms: int) -> Iterator[Line]:
        self._rest += data
        if self._is_stream is None and (first := self._rest.lstrip()[:1]):
            self._is_stream = first not in (b"{", b"[", b"<")
        if self._is_stream:
            *lines, self._rest = self._rest.split(b"\n")
            for line in lines:
                yield from self._line(line, ms)

    def close(self, ms: int) -> Iterator[Line]:
        rest, self._rest = self._rest, b""
        if not rest:
            return
        if self._is_stream:
            yield from self._line(rest, ms)
        elif is_json(rest):
            yield Line(ms, "body", msgspec.Raw(msgspec.json.format(rest, indent=-1)))
        else:
            yield Line(ms, "body_text", rest.decode("utf-8", "replace"))

    def _line(self, line: bytes, ms: int) -> Iterator[Line]:
        line = line.removesuffix(b"\r")
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and is_json(data):
            yield Line(ms, "data", msgspec.Raw(data))
        elif line:
            yield Line(ms, "line", line.decode("utf-8", "replace"))
