"""Records a running turn in memory: its sessions' lines, this server's calls, and its end. Bytes are kept as they come,
and parsed after the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.dialect import Dialect, Ended
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.agents.recorded import (
    attempt_of,
    facts_of,
    first_channel_id,
    name_of,
    object_of,
    rpc_of,
)
from codex_proxy.cassettes.format import Line, Session
from codex_proxy.cassettes.pieces import is_json, without_times
from codex_proxy.cassettes.player import PlayedSession
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.tools.policy import ToolOutput

MAX_BYTES: Final = 64 << 20
"""Maximum bytes of a turn; a larger one is not recorded."""

Entry = tuple[float, str, Any]
"""A time, a kind of `format.SESSION_KINDS`, and the value: lines (`to`, `from`), parts of a body, or JSON."""


DECODED: Final = set[type]()
"""The types of messages that also come as lines, as found so far."""


class SessionRecorder:
    """Records a session, which may serve several turns. Implements `agents.processes.session.SessionRecorder`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.entries: list[Entry] = []
        """The entries since the last turn."""
        self.size = 0
        self.turns: list[TurnRecorder] = []
        self.dialect = ""
        self.facts: dict[str, Any] = {}
        self.origin = ""

    def did(self, dialect: Dialect[Any], act: str, given: Sequence[Any], writes: bytes) -> None:
        if act in ("begin", "reopen"):
            if act == "begin":
                self.entries.clear()  # an upstream's attempt that has failed: another one begins
            self._identify(*attempt_of(dialect))
            self._add(act, given[1] if act == "reopen" else {})
        elif act == "resume":
            self._add(act, {})
        elif act == "answer":
            self._add(act, {"to": given[0], "reply": msgspec.to_builtins(given[1])})
        self.wrote(writes)

    def _identify(self, dialect: Dialect[Any], upstream: str) -> None:
        self.dialect, self.facts = name_of(dialect), facts_of(dialect)
        self.origin = upstream or self.origin

    def wrote(self, writes: bytes) -> None:
        if writes:
            self._add_bytes("to", [writes])

    def read(self, messages: Sequence[Any]) -> None:
        if DECODED.issuperset(map(type, messages)):
            return
        for message in messages:
            if isinstance(message, bytes):
                self._add_bytes("from", [message])
            elif (found := object_of(message)) is not None:
                self._add(*found)
            elif (attempt := attempt_of(message))[0] is not message:
                self.entries.clear()
                self._identify(*attempt)
                self._add("begin", {})
            else:
                DECODED.add(type(message))

    def read_lines(self, lines: list[bytes]) -> None:
        self._add_bytes("from", lines)

    def ended(self, ended: Ended) -> None:
        self._add("ended", msgspec.structs.asdict(ended))

    def _add_bytes(self, kind: str, pieces: list[bytes]) -> None:
        self.size += sum(map(len, pieces))
        self._add(kind, pieces)

    def _add(self, kind: str, value: Any) -> None:
        self.entries.append((self._now(), kind, value))
        if self.size > MAX_BYTES:
            self.entries.clear()

    def take(self) -> list[Entry]:
        """Returns and removes the entries since the last call."""
        entries, self.entries = self.entries, []
        return entries


class TurnRecorder:
    """Implements `runs.recording.TurnRecorder`."""

    def __init__(
        self,
        turn: Turn,
        agent: Agent,
        first: Sequence[Event],
        now: Callable[[], float],
        on_end: Callable[[], None],
    ) -> None:
        self.turn = turn
        self.agent = agent
        self.first = tuple(first)
        self.began = now()
        self.parts: list[tuple[SessionRecorder, list[Entry]]] = []
        self.after: TurnRecorder | None = None
        """The turn before this one in its first session."""
        self.order = 1
        self.name = ""
        self.on_written: Callable[[Path], None] = lambda _: None
        self.end: TurnEnded | None = None
        self.size = 0
        self._now = now
        self._on_end = on_end
        self._current: SessionRecorder | None = None

    def session(self, session: AgentSession) -> None:
        self._take()
        if isinstance(session, PlayedSession):
            return  # it was recorded before
        recorder = session.recorder
        if not isinstance(recorder, SessionRecorder):
            recorder = session.recorder = SessionRecorder(self._now)
        recorder.origin = "" if session.origin is None else session.origin.name
        if recorder.turns and not self.parts:
            self.after, self.order = recorder.turns[-1], len(recorder.turns) + 1
        recorder.turns.append(self)
        self._current = recorder

    def _take(self) -> None:
        if self._current is not None:
            self.size += self._current.size
            self._current.size = 0
            self.parts.append((self._current, self._current.take()))
            self._current = None

    def runner(self, runner: ToolRunner | None) -> ToolRunner | None:
        return None if runner is None else _RecordedRunner(runner, self)

    def on_call(self, tool: Tool, arguments: str, output: ToolOutput) -> None:
        value = {"tool": tool.name, "arguments": arguments, "output": msgspec.to_builtins(output)}
        if self._current is not None:
            self._current.entries.append((self._now(), "call", value))
        else:
            self.parts.append((SessionRecorder(self._now), [(self._now(), "call", value)]))

    def failed(self, failure: Failure) -> None:
        if self._current is not None:
            self._current.entries.append((self._now(), "failed", msgspec.to_builtins(failure)))

    def ended(self, end: TurnEnded) -> None:
        self.end = end
        self._take()
        self._on_end()

    def sessions(self) -> list[Session]:
        return [
            Session(
                recorder.dialect,
                recorder.facts,
                list(_lines(recorder.dialect, entries, self.began)),
                recorder.origin,
            )
            for recorder, entries in self.parts
        ]


class _RecordedRunner:
    def __init__(self, runner: ToolRunner, recorder: TurnRecorder) -> None:
        self._runner = runner
        self._recorder = recorder

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        output = await self._runner.run(tool, arguments)
        self._recorder.on_call(tool, arguments, output)
        return output


# --- from bytes to lines --------------------------------------------------------------------------


def _lines(dialect: str, entries: Sequence[Entry], began: float) -> Iterator[Line]:
    """Yields a session's entries as lines of a cassette. `began`: the turn's start."""
    body = _Body() if any(kind == "head" for _, kind, _ in entries) else None
    begin = RPC_IDS.get(dialect, b"")
    size = len(begin)
    for at, kind, value in entries:
        ms = max(0, round((at - began) * 1000))
        if kind == "to" or (kind == "from" and body is None):
            lines = without_times(value if kind == "from" else _split_lines(value[0]))
            if begin:
                lines = [
                    _with_first_channel_id(dialect, line) if line[:size] == begin else line for line in lines
                ]
            yield Line(ms, kind, lines)
        elif kind == "from" and body is not None:
            yield from body.feed(value[0], ms)
        else:
            if kind == "over" and body is not None:
                yield from body.close(ms)
                body = _Body()
            yield Line(ms, kind, value)


RPC_IDS: Final = {"app-server": b'{"id":', "acp": b'{"jsonrpc":"2.0","id":'}
"""How the lines with an id of JSON-RPC begin, by dialect."""


def _split_lines(writes: bytes) -> list[bytes]:
    """Returns the lines of written bytes; all of them if they are no lines, such as a request's body."""
    lines = [line for line in writes.split(b"\n") if line]
    return lines if len(lines) > 1 and all(map(is_json, lines)) else [writes.rstrip(b"\n")]


def _with_first_channel_id(dialect: str, line: bytes) -> bytes:
    """Returns a JSON-RPC line with the id that it would have on the first channel."""
    id, _ = rpc_of(line)
    old, new = (b'"id":' + msgspec.json.encode(each) for each in (id, first_channel_id(dialect, id)))
    begins, found, rest = line.partition(old)
    return begins + new + rest if found and begins in (b"{", b'{"jsonrpc":"2.0",') else line


class _Body:
    """Cuts an upstream's body into a stream's events, or a whole object."""

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
        if rest and self._is_stream:
            yield from self._line(rest, ms)
        elif rest:
            yield Line(ms, "body", [rest])

    def _line(self, line: bytes, ms: int) -> Iterator[Line]:
        line = line.removesuffix(b"\r")
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and is_json(data):
            yield Line(ms, "data", [data])
        elif line:
            yield Line(ms, "line", line.decode("utf-8", "replace"))
