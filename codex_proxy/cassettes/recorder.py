"""Records turns into a folder: what a request was, what was said with the agent, and what was answered.

A cassette is written when both the turn and its answer are over. A folder that cannot be written any more ends the
recording, and no turn.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog

from codex_proxy import __version__
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.cassettes.content import content_of, key_of
from codex_proxy.cassettes.format import (
    SUFFIX,
    Answer,
    Cassette,
    Request,
    is_json,
    lines_of,
    write,
)
from codex_proxy.cassettes.pieces import Run, with_text
from codex_proxy.cassettes.replay import ReplayAgent
from codex_proxy.cassettes.scrubbing import MIN_SECRET, Scrubber, StableIds, TurnIds
from codex_proxy.cassettes.settings import CassetteError
from codex_proxy.cassettes.tapes import MAX_BYTES, TurnTape
from codex_proxy.core.events import Event, ItemStarted, Stop
from codex_proxy.core.items import McpTools
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import create, make_folder

log = structlog.get_logger(__name__)

MAX_SLUG: Final = 40
_NUMBERED: Final = re.compile(r"(\d{4,})-")


class RecordError(CassetteError):
    """The folder of recordings cannot be used. The text says why."""


class Recorder:
    """Writes cassettes into `folder`. `trouble` is why it has stopped doing so; empty as long as it works."""

    def __init__(
        self, folder: Path, scrubber: Scrubber, settings: Mapping[str, Any], match: Sequence[str] = ()
    ) -> None:
        """`settings` are those that matter, as far as they are not the defaults. `match` is what `--match` names.
        Raises `RecordError` if the folder cannot be written to.
        """
        self.folder = folder
        self.trouble = ""
        self._scrubber = scrubber
        self._settings = dict(settings)
        self._match = list(match)
        self._ids = StableIds()
        try:
            make_folder(folder)
            probe = folder / f".probe-{os.getpid()}"
            os.close(create(probe))
            probe.unlink()
        except OSError as error:
            raise RecordError(
                f"--record {folder} cannot be written: {error.strerror}. Give another folder."
            ) from error
        self._last = max((number for number, _ in _numbered(folder)), default=0)

    def exchange(self, line: str, headers: Mapping[str, str], keys: Sequence[str]) -> Exchange:
        """Returns what records one request. `line` is its method and path, `headers` those that matter; `keys` are the
        secrets in it.
        """
        return Exchange(self, line, headers, keys)

    def write(self, tape: TurnTape, exchange: Exchange) -> None:
        """Writes the cassette of a turn that is over. If that fails, stops recording, and raises nothing."""
        if self.trouble or tape.end is None:
            return
        if tape.end.stop == Stop.INTERRUPTED or tape.size > MAX_BYTES or not tape.parts:
            reason = "too large" if tape.size > MAX_BYTES else "interrupted" if tape.parts else "no session"
            log.info("turn_not_recorded", reason=reason)
            return
        try:
            self._write(tape, exchange)
        except OSError as error:
            self.trouble = (
                f"Recording has stopped: {self.folder} cannot be written ({error.strerror}). Free some space, then "
                "start again."
            )
            log.error("recording_stopped", folder=str(self.folder), reason=error.strerror)
        except Exception:
            log.exception("turn_not_recorded")
        else:
            tape.on_written(self.folder / f"{tape.name}{SUFFIX}")

    def _write(self, tape: TurnTape, exchange: Exchange) -> None:
        keys = [*exchange.keys, *_mcp_secrets(exchange.body)]
        agent = tape.agent
        if isinstance(agent, ReplayAgent) and agent.missing is not None:
            agent = agent_for(agent.missing, tape.turn.model)
        content = content_of(tape.turn)
        digest = key_of(content, ("messages", "tools", "mode"))
        ids = self._ids.turn(digest, exchange.body)
        clean = _Cleaner(self._scrubber, ids, keys)
        cassette = Cassette(
            name="",
            agent=agent.name,
            version=agent.version,
            proxy=__version__,
            capabilities=sorted(agent.capabilities),
            settings=self._settings,
            after="" if tape.after is None else tape.after.name,
            order=tape.order,
            mcp=_mcp_of(tape.turn, tape.first),
            match=self._match,
            request=exchange.request(),
            content=content,
            sessions=tape.sessions(),
            answer=exchange.answer(),
        )
        lines = clean.clean(list(lines_of(cassette)))
        tape.name = self._new_name(clean.text(_last_words(content)))
        write(self.folder / f"{tape.name}{SUFFIX}", lines, durable=False)
        tape.parts.clear()

    def _new_name(self, words: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", words.lower())[:MAX_SLUG].strip("-")
        while True:
            self._last += 1
            name = f"{self._last:04d}-{slug or 'turn'}"
            if not (self.folder / f"{name}{SUFFIX}").exists():
                return name


def _numbered(folder: Path) -> Iterator[tuple[int, str]]:
    """Returns the numbers and names of the cassettes in a folder."""
    for path in folder.glob(f"*{SUFFIX}"):
        found = _NUMBERED.match(path.name)
        if found is not None:
            yield int(found[1]), path.name


def _last_words(content: Mapping[str, Any]) -> str:
    """Returns the text of the newest message of the user, or `output` behind one."""
    messages = content["messages"]
    for message in reversed(messages):
        if message.get("role") == "user":
            words = str(message["text"]).strip()
            return words if message is messages[-1] else f"{words[:20]} output"
    return ""


def _mcp_of(turn: Turn, first: Sequence[Event]) -> list[dict[str, Any]]:
    """Returns the MCP tools of a turn as JSON. `listed` is what the client was told of a tool, if its request names the
    server.
    """
    listed = {
        (event.item.server_label, entry["name"]): {"listed": entry}
        for event in first
        if isinstance(event, ItemStarted) and isinstance(event.item, McpTools)
        for entry in msgspec.json.decode(event.item.tools)
    }
    return [
        msgspec.json.decode(msgspec.json.encode(tool))
        | listed.get((tool.mcp.server_label, tool.mcp.name), {})
        for tool in turn.tools
        if tool.mcp is not None
    ]


class _Cleaner:
    """Cleans the lines of one cassette."""

    def __init__(self, scrubber: Scrubber, ids: TurnIds, keys: Sequence[str]) -> None:
        self._scrubber = scrubber
        self._ids = ids
        self._keys = [key.encode() for key in keys if len(key) >= MIN_SECRET]

    def clean(self, found: Sequence[bytes | Run]) -> list[bytes | Run]:
        """Returns the lines of a cassette without secrets, and with stable ids. The lines of the request keep those ids
        that are the client's own.
        """
        lines = [line for line in found if isinstance(line, bytes)]  # at once, which takes less time
        first = next(
            index for index, line in enumerate(lines) if line.startswith((b'{"session"', b'{"answer"'))
        )
        asked = self._ids.known(b"\n".join(lines[1:first]))
        said = self._ids.stable(b"\n".join(lines[first:]))
        lines = b"\n".join((lines[0], asked, said)).split(b"\n")
        spoken = b"".join(
            b"".join((b"\n", run.before, *run.texts) if run.before else run.texts)
            for run in found
            if isinstance(run, Run)
        )
        whole = _with(lines, found)
        if self._scrubber.suspects(spoken, self._keys):
            whole = list(self._joined(whole))
        text = self._scrub(b"\n".join(line for line in whole if isinstance(line, bytes)))
        return _with(text.split(b"\n"), whole)

    def _joined(self, found: Iterable[bytes | Run]) -> Iterator[bytes | Run]:
        """Returns the lines, with one in place of those of a text that was said in pieces and has a secret."""
        line, runs = b"", list[Run]()
        for each in (*found, b""):
            if isinstance(each, Run):
                runs.append(each)
                continue
            if line:
                yield from self._as_written(line, runs)
            line, runs = each, []

    def _as_written(self, line: bytes, runs: Sequence[Run]) -> Sequence[bytes | Run]:
        """Returns a line and the runs that are like it; one line with the whole text if that has a secret."""
        if not runs:
            return [line]
        text = b"".join((runs[0].before, *(text for run in runs for text in run.texts)))
        cleaned = self._scrub(text)
        return [line, *runs] if cleaned == text else [with_text(line, runs[0].name, b'"%b"' % cleaned)]

    def _scrub(self, text: bytes) -> bytes:
        return self._scrubber.scrub(text, self._keys)

    def text(self, text: str) -> str:
        return self._scrub(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _with(lines: Iterable[bytes], found: Iterable[bytes | Run]) -> list[bytes | Run]:
    """Returns what was found with other lines in place of the whole ones."""
    left = iter(lines)
    return [next(left) if isinstance(each, bytes) else each for each in found]


class Exchange:
    """Records one request and its answer; of a WebSocket, one frame after the other. Implements
    `runs.recording.RequestTape`.
    """

    def __init__(
        self, recorder: Recorder, line: str, headers: Mapping[str, str], keys: Sequence[str]
    ) -> None:
        self.keys = keys
        self.body = b""
        self._recorder = recorder
        self._line = line
        self._headers = dict(headers)
        self._socket = line.startswith("GET ")
        self._status = 0
        self._said = bytearray()
        self._final: bytes | None = None
        self._tapes: list[TurnTape] = []
        self._ended: list[TurnTape] = []
        self._answered = False
        self._background = False

    # --- what the request says ------------------------------------------------------------------

    def hear(self, what: Literal["request", "answer"], data: bytes) -> None:
        """Takes the body of the request, or bytes of the answer; frames, if it is a WebSocket."""
        if what == "request":
            self.asked(data)
        else:
            self.said(data)

    def asked(self, body: bytes) -> None:
        """Takes the body of the request, or the next frame of a WebSocket."""
        if self._socket and self.body:
            self.over(101)
            self._tapes, self._ended, self._said = [], [], bytearray()
            self._answered, self._final = False, None
        self.body = body
        self._background = not self._socket and b'"background"' in body and _is_background(body)

    def said(self, data: bytes) -> None:
        """Takes bytes of the answer, or a frame of a WebSocket."""
        if self._socket:
            self._said += data + b"\n"
        elif len(self._said) < MAX_BYTES:
            self._said += data

    def over(self, status: int) -> None:
        """Called when the whole answer was sent."""
        self._status, self._answered = status, True
        self._write_ended()

    # --- what its turns say ---------------------------------------------------------------------

    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnTape:
        tape = TurnTape(turn, agent, first, time.monotonic, self._turn_ended)
        self._tapes.append(tape)
        return tape

    def answered(self, body: bytes) -> None:
        if self._background:
            self._final = body
            self._write_ended()

    def _turn_ended(self, tape: TurnTape) -> None:
        self._ended.append(tape)
        self._write_ended()

    def _write_ended(self) -> None:
        if not self._answered or len(self._ended) < len(self._tapes):
            return
        if self._background and self._final is None and self._tapes:
            return
        for tape in self._ended:
            self._recorder.write(tape, self)
        self._tapes, self._ended = [], []

    # --- for the cassette -----------------------------------------------------------------------

    def request(self) -> Request:
        """Returns the request as it is written."""
        body: Any = msgspec.Raw(msgspec.json.format(self.body, indent=-1)) if is_json(self.body) else None
        return Request(self._line, self._headers, body, self._socket)

    def answer(self) -> Answer:
        """Returns the answer as it is written."""
        said = bytes(self._said).strip()
        final = None if self._final is None else msgspec.Raw(self._final)
        if self._socket:
            return Answer(self._status, None, said.splitlines())
        if said.startswith((b"{", b"[")):
            return Answer(self._status, msgspec.Raw(said), None, final)
        return Answer(self._status, None, list(sent_in(said)), final)


def sent_in(stream: bytes) -> Iterator[bytes]:
    """Returns the data of the events of a stream of this server, in order, comments left out."""
    for event in stream.split(b"\n\n"):
        if event.startswith(b"data: "):
            yield event[6:]
        elif (start := event.find(b"\ndata: ")) >= 0:
            yield event[start + 7 :]


def _is_background(body: bytes) -> bool:
    try:
        return msgspec.json.decode(body, type=_Background).background
    except UNREADABLE:
        return False


def _mcp_secrets(body: bytes) -> list[str]:
    """Returns the headers and keys that a request has for MCP servers."""
    if b'"mcp"' not in body:
        return []
    try:
        tools = msgspec.json.decode(body, type=_WithTools).tools
    except UNREADABLE:
        return []
    found = []
    for tool in tools:
        if isinstance(tool, dict):
            headers = tool.get("headers")
            found += list(headers.values()) if isinstance(headers, dict) else []
            found.append(tool.get("authorization"))
    return [value for value in found if isinstance(value, str)]


class _WithTools(msgspec.Struct):
    tools: list[Any] = []


class _Background(msgspec.Struct):
    background: bool = False
