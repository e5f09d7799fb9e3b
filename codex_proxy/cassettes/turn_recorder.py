"""Records a running turn in memory: its sessions' lines, this server's calls, and its end. Bytes are kept as they come,
and parsed after the turn.
"""

from __future__ import annotations

import itertools
import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.dialect import Dialect, Ended
from codex_proxy.agents.processes.session import AgentSession, LineFramer
from codex_proxy.agents.recorded import (
    attempt_of,
    facts_of,
    first_channel_id,
    is_recorded,
    name_of,
    object_of,
    rpc_of,
    without_varying_fields,
)
from codex_proxy.cassettes.format import Line, Session
from codex_proxy.cassettes.player import PlayedSession
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import is_json
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.tools.policy import ToolOutput

MAX_BYTES: Final = 64 << 20
"""Maximum bytes of a turn; a larger one is not recorded."""

Entry = tuple[float, str, Any]
"""A time, a kind of `format.SESSION_KINDS`, and the value: lines (`to`, `from`), parts of a body, or JSON."""


DECODED_TYPES: Final = set[type]()
"""The types of messages, among those seen so far, that are recorded as lines and not as objects."""


class CassetteSessionRecorder:
    """Records a session, which may serve several turns, as an `agents.processes.session.SessionRecorder`."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        """The entries since the last turn."""
        self.size = 0
        self.last: CassetteTurnRecorder | None = None
        self.dialect = ""
        self.facts: dict[str, Any] = {}
        self.origin = ""

    def on_act(self, dialect: Dialect[Any], act: str, given: Sequence[Any], writes: bytes) -> None:
        if act in ("begin", "reopen"):
            if act == "begin":
                self.entries.clear()  # an upstream's attempt that has failed: another one begins
            self._identify(*attempt_of(dialect))
            self._add(act, given[1] if act == "reopen" else {})
        elif act == "resume":
            self._add(act, {})
        elif act == "answer":
            self._add(act, {"to": given[0], "reply": msgspec.to_builtins(given[1])})
        self.on_write(writes)

    def _identify(self, dialect: Dialect[Any], upstream: str) -> None:
        self.dialect, self.facts = name_of(dialect), facts_of(dialect)
        self.origin = upstream or self.origin

    def on_write(self, writes: bytes) -> None:
        if writes:
            self._add_bytes("to", [writes])

    def on_read(self, messages: Sequence[Any]) -> None:
        if DECODED_TYPES.issuperset(map(type, messages)):
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
                DECODED_TYPES.add(type(message))

    def on_lines(self, lines: list[bytes]) -> None:
        self._add_bytes("from", lines)

    def on_end(self, ended: Ended) -> None:
        self._add("ended", msgspec.structs.asdict(ended))

    def _add_bytes(self, kind: str, pieces: list[bytes]) -> None:
        self.size += sum(map(len, pieces))
        self.entries.append((time.monotonic(), kind, pieces))
        if self.size > MAX_BYTES:
            self.entries.clear()

    def _add(self, kind: str, value: Any) -> None:
        self.entries.append((time.monotonic(), kind, value))


class CassetteTurnRecorder:
    """Records one turn, as a `runs.observers.TurnRecorder`."""

    def __init__(self, turn: Turn, agent: Agent, first: Sequence[Event], on_end: Callable[[], None]) -> None:
        self.turn = turn
        self.agent = agent
        self.first = tuple(first)
        self.began = time.monotonic()
        self.parts: list[tuple[CassetteSessionRecorder, list[Entry]]] = []
        self.after: CassetteTurnRecorder | None = None
        """The turn before this one in its first session."""
        self.order = 1
        self.name = ""
        self.on_written: Callable[[Path], None] = lambda _: None
        self.end: TurnEnded | None = None
        self.size = 0
        self._on_end = on_end
        self._current: CassetteSessionRecorder | None = None

    def on_session(self, session: AgentSession) -> None:
        self._take()
        if isinstance(session, PlayedSession):
            return  # it was recorded before
        recorder = session.recorder
        if not isinstance(recorder, CassetteSessionRecorder):
            recorder = session.recorder = CassetteSessionRecorder()
        recorder.origin = "" if session.origin is None else session.origin.name
        if recorder.last is not None and not self.parts:
            self.after, self.order = recorder.last, recorder.last.order + 1
        recorder.last = self
        self._current = recorder

    def _take(self) -> None:
        if self._current is not None:
            recorder, self._current = self._current, None
            self.parts.append((recorder, recorder.entries))
            self.size += recorder.size
            recorder.entries, recorder.size = [], 0

    def runner(self, runner: ToolRunner | None) -> ToolRunner | None:
        return None if runner is None else _RecordedRunner(runner, self)

    def on_call(self, tool: Tool, arguments: str, output: ToolOutput) -> None:
        value = {"tool": tool.name, "arguments": arguments, "output": msgspec.to_builtins(output)}
        if self._current is not None:
            self._current.entries.append((time.monotonic(), "call", value))
        else:
            self.parts.append((CassetteSessionRecorder(), [(time.monotonic(), "call", value)]))

    def on_failure(self, failure: Failure) -> None:
        if self._current is not None:
            self._current.entries.append((time.monotonic(), "failed", msgspec.to_builtins(failure)))

    def on_end(self, end: TurnEnded) -> None:
        self.end = end
        self._take()
        self._on_end()

    def forget(self) -> None:
        """Lets go of what is no longer needed: the session keeps its newest turn."""
        self.parts.clear()
        self.after = None

    def sessions(self) -> list[Session]:
        return [
            Session(each.dialect, each.facts, list(_lines(each.dialect, entries, self.began)), each.origin)
            for each, entries in self.parts
        ]


class _RecordedRunner:
    def __init__(self, runner: ToolRunner, recorder: CassetteTurnRecorder) -> None:
        self._runner = runner
        self._recorder = recorder

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        output = await self._runner.run(tool, arguments)
        self._recorder.on_call(tool, arguments, output)
        return output


# --- from bytes to lines --------------------------------------------------------------------------


def _lines(dialect: str, entries: Sequence[Entry], began: float) -> Iterator[Line]:
    """Yields a session's entries as a cassette's lines. `began`: the turn's start."""
    is_http = any(kind == "head" for _, kind, _ in entries)
    for kind, same in itertools.groupby(entries, operator.itemgetter(1)):
        timed = [(max(0, round((at - began) * 1000)), value) for at, _, value in same]
        if kind == "from" and is_http:
            yield from _body_lines(dialect, [(ms, b"".join(pieces)) for ms, pieces in timed])
        elif kind in ("from", "to"):
            for ms, pieces in timed:
                lines = pieces if kind == "from" else _split_lines(pieces[0])
                yield from (
                    Line(ms, kind, _with_stable_values(dialect, without_varying_fields(dialect, line)))
                    for line in lines
                    if is_recorded(dialect, line)
                )
        else:
            yield from (Line(ms, kind, value) for ms, value in timed)


def _split_lines(writes: bytes) -> list[bytes]:
    lines = [line for line in writes.split(b"\n") if line]
    return lines if len(lines) > 1 and all(map(is_json, lines)) else [writes.rstrip(b"\n")]


RPC_IDS: Final = {"app-server": b'{"id":', "acp": b'{"jsonrpc":"2.0","id":'}
"""How the lines with an id of JSON-RPC begin, by dialect."""
TIME_FIELD_END: Final = b'AtMs":'
"""The end of the name of a field with milliseconds, as a line's last field."""


def _with_stable_values(dialect: str, line: bytes) -> bytes:
    """Returns a line with the id that it would have on the first channel, and without the time at its end."""
    if line[-20:-14] == TIME_FIELD_END:  # no line with an id of this server ends with a time
        return line[:-14] + b"0}"
    return _with_first_channel_id(dialect, line) if line.startswith(RPC_IDS.get(dialect, b"\n")) else line


def _with_first_channel_id(dialect: str, line: bytes) -> bytes:
    """Returns a JSON-RPC line with the id that it would have on the first channel."""
    id, _ = rpc_of(line)
    old, new = (b'"id":' + msgspec.json.encode(each) for each in (id, first_channel_id(dialect, id)))
    begins, found, rest = line.partition(old)
    return begins + new + rest if found and begins in (b"{", b'{"jsonrpc":"2.0",') else line


def _body_lines(dialect: str, chunks: Sequence[tuple[int, bytes]]) -> Iterator[Line]:
    """Cuts an upstream's body, which came at these times, into a stream's events, or a whole object."""
    whole = b"".join(data for _, data in chunks)
    if whole.lstrip()[:1] in (b"{", b"[", b"<"):
        yield Line(chunks[-1][0], "body", whole)
        return
    framer = LineFramer(sys.maxsize)
    for ms, data in (*chunks, (chunks[-1][0], b"\n")):
        for line in framer.feed(data):
            event = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and is_json(event):
                yield Line(ms, "data", without_varying_fields(dialect, event))
            else:
                yield Line(ms, "line", line.decode("utf-8", "replace"))
