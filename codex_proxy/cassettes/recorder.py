"""Records turns into a folder.

A cassette is written when the turn and its answer are over. A folder that cannot be written any more ends the
recording, and no turn.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

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
    lines_of,
    text_of,
    write,
)
from codex_proxy.cassettes.pieces import Run, is_json, with_text
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
MAX_WORDS: Final = 4000
"""How many characters of a message are read for the name of a cassette."""
MAX_AT_ONCE: Final = 1 << 18
"""The most bytes of a turn that is written on the event loop, which takes milliseconds."""
WINDOW: Final = 1 << 18
"""The most bytes of lines that are cleaned at once."""
MAX_WAITING: Final = 256 << 20
"""The most bytes of large turns that wait to be written; a turn beyond is not recorded."""
_NUMBERED: Final = re.compile(r"(\d{4,})-")


class RecordError(CassetteError):
    """The folder of recordings cannot be used. The text says why."""


class Recorder:
    """Writes cassettes into `folder`. `trouble` is why it has stopped doing so; empty as long as it works."""

    def __init__(
        self, folder: Path, scrubber: Scrubber, settings: Mapping[str, Any], match: Sequence[str] = ()
    ) -> None:
        """`settings` are those that matter and are no defaults; `match` is what `--match` names. Raises `RecordError`
        if the folder cannot be written to.
        """
        self.folder = folder
        self.trouble = ""
        self._scrubber = scrubber
        self._settings = dict(settings)
        self._match = list(match)
        self._ids = StableIds()
        self._thread = ThreadPoolExecutor(1, "recorder")
        """Writes large cassettes, one after the other: one may continue another."""
        self._waiting: set[asyncio.Task[None]] = set()
        self._bytes_waiting = 0
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

    def write(self, tape: TurnTape, said: Exchanged) -> None:
        """Writes the cassette of a turn that is over, a large one in a thread. Raises nothing: if the folder cannot
        be written, recording ends.
        """
        if self.trouble:
            return
        assert tape.end is not None
        size = tape.size + len(said.body) + len(said.answered)
        if tape.end.stop == Stop.INTERRUPTED or tape.size > MAX_BYTES or not tape.parts:
            reason = "too large" if tape.size > MAX_BYTES else "interrupted" if tape.parts else "no session"
            log.info("turn_not_recorded", reason=reason)
        elif self._bytes_waiting + size > MAX_WAITING:
            log.warning("turn_not_recorded", reason="too many large turns are being written")
        elif size <= MAX_AT_ONCE and not self._waiting:
            self._report(tape, self._try_to_write(tape, said))
        else:
            self._bytes_waiting += size
            task = asyncio.ensure_future(self._write_later(tape, said, size))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _write_later(self, tape: TurnTape, said: Exchanged, size: int) -> None:
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(self._thread, self._try_to_write, tape, said)
        self._bytes_waiting -= size
        self._report(tape, path)

    async def flush(self) -> None:
        """Waits until every cassette is written."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def close(self) -> None:
        """Writes what is still to be written."""
        await self.flush()
        self._thread.shutdown()

    def _report(self, tape: TurnTape, path: Path | None) -> None:
        if path is not None:
            tape.on_written(path)

    def _try_to_write(self, tape: TurnTape, said: Exchanged) -> Path | None:
        """Returns the file; None if it could not be written."""
        if self.trouble:  # since the turn was over
            return None
        try:
            return self._write(tape, said)
        except OSError as error:
            self.trouble = (
                f"Recording has stopped: {self.folder} cannot be written ({error.strerror}). Free some space, then "
                "start again."
            )
            log.error("recording_stopped", folder=str(self.folder), reason=error.strerror)
        except Exception:
            log.exception("turn_not_recorded")
        return None

    def _write(self, tape: TurnTape, said: Exchanged) -> Path:
        keys = [*said.keys, *_mcp_secrets(said.body)]
        agent = tape.agent
        if isinstance(agent, ReplayAgent) and agent.missing is not None:
            agent = agent_for(agent.missing, tape.turn.model)
        content = content_of(tape.turn)
        digest = key_of(content, ("messages", "tools", "mode"))
        ids = self._ids.turn(digest, said.body)
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
            request=said.request(),
            content=content,
            sessions=tape.sessions(),
            answer=said.answer(),
        )
        text = clean.clean(list(lines_of(cassette)))
        tape.name = self._new_name(clean.text(_last_words(content)))
        path = self.folder / f"{tape.name}{SUFFIX}"
        write(path, text)
        tape.parts.clear()
        return path

    def _new_name(self, words: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", words.lower())[:MAX_SLUG].strip("-")
        while True:
            self._last += 1
            name = f"{self._last:04d}-{slug or 'turn'}"
            if not os.path.exists(f"{self.folder}/{name}{SUFFIX}"):
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
            words = str(message["text"])[:MAX_WORDS].strip()
            return words if message is messages[-1] else f"{words[:20]} output"
    return ""


def _mcp_of(turn: Turn, first: Sequence[Event]) -> list[dict[str, Any]]:
    """Returns the MCP tools of a turn as JSON, with what the client was told of a tool (`listed`)."""
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

    def clean(self, found: Sequence[bytes | Run]) -> bytes:
        """Returns the text of the lines without secrets and with stable ids; the request keeps its own ids."""
        spoken = b"".join(
            b"".join((b"\n", run.before, *run.texts) if run.before else run.texts)
            for run in found
            if isinstance(run, Run)
        )
        if self._scrubber.suspects(spoken, self._keys):
            found = list(self._joined(found))
        whole = b"\n".join(line for line in found if isinstance(line, bytes))
        first = min(at for each in (b'\n{"session"', b'\n{"answer"') if (at := whole.find(each)) >= 0)
        asked, said = _changed(whole[:first], self._ids.known), _changed(whole[first:], self._ids.stable)
        left = iter(_changed(asked + said, self._scrub).split(b"\n"))
        return text_of(next(left) if isinstance(each, bytes) else each for each in found)

    def _joined(self, found: Iterable[bytes | Run]) -> Iterator[bytes | Run]:
        """Returns the lines, with one in place of a text in pieces that has a secret."""
        line, runs = b"", list[Run]()
        for each in (*found, b""):
            if isinstance(each, Run):
                runs.append(each)
                continue
            if line:
                yield from self._as_written(line, runs)
            line, runs = each, []

    def _as_written(self, line: bytes, runs: Sequence[Run]) -> Sequence[bytes | Run]:
        """Returns a line and the runs that are like it, or one line with the whole text if that has a secret."""
        if not runs:
            return [line]
        text = b"".join((runs[0].before, *(text for run in runs for text in run.texts)))
        cleaned = self._scrub(text)
        return [line, *runs] if cleaned == text else [with_text(line, runs[0].name, b'"%b"' % cleaned)]

    def _scrub(self, text: bytes) -> bytes:
        return self._scrubber.scrub(text, self._keys)

    def text(self, text: str) -> str:
        return self._scrub(text.encode("utf-8", "replace")).decode("utf-8", "replace")


def _changed(text: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Returns lines as `change` returns them, which is given about `WINDOW` bytes of them at once, so that other
    threads need not wait long.
    """
    pieces, start = list[bytes](), 0
    while start < len(text):
        end = text.find(b"\n", start + WINDOW) if len(text) > start + WINDOW else -1
        end = len(text) if end < 0 else end
        pieces.append(change(text[start:end]))
        start = end
    return b"".join(pieces)


class Exchange:
    """Records one request and its answer; of a WebSocket, one frame after the other. Implements
    `runs.recording.RequestTape`.
    """

    def __init__(
        self, recorder: Recorder, line: str, headers: Mapping[str, str], keys: Sequence[str]
    ) -> None:
        """`line` is the request's method and path, `headers` those that matter; `keys` are the secrets in it."""
        self._recorder = recorder
        self._of = dict(headers), keys
        self._said = Exchanged(line, *self._of)
        self._tapes: list[TurnTape] = []
        """The turns that are not written yet."""

    # --- what the request says ------------------------------------------------------------------

    def hear(self, what: Literal["request", "answer"], data: bytes) -> None:
        """Takes the body of the request, or bytes of the answer; frames, if it is a WebSocket."""
        if what == "answer":
            self.said(data)
            return
        if self._said.socket and self._said.body:
            self.over(101)
            self._tapes, self._said = [], Exchanged(self._said.line, *self._of)
        self._said.body = data

    def said(self, data: bytes) -> None:
        """Takes bytes of the answer, or a frame of a WebSocket."""
        answered = self._said.answered
        if self._said.socket:
            answered += data + b"\n"
        elif len(answered) < MAX_BYTES:
            answered += data

    def over(self, status: int) -> None:
        """Called when the whole answer was sent."""
        self._said.status = status
        self._write_ended()

    # --- what its turns say ---------------------------------------------------------------------

    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> TurnTape:
        tape = TurnTape(turn, agent, first, time.monotonic, self._write_ended)
        self._tapes.append(tape)
        return tape

    def answered(self, body: bytes) -> None:
        if self._said.background:
            self._said.final = body
            self._write_ended()

    def _write_ended(self) -> None:
        said = self._said
        if said.status and all(tape.end for tape in self._tapes) and (said.final or not said.background):
            for tape in self._tapes:
                self._recorder.write(tape, said)
            self._tapes = []


class Exchanged(msgspec.Struct):
    """What is known of a request and its answer; all of it when both are over."""

    line: str
    headers: dict[str, str]
    keys: Sequence[str]
    """The secrets in the request."""
    body: bytes = b""
    status: int = 0
    """The status of the answer; 0 until it is over."""
    answered: bytearray = msgspec.field(default_factory=bytearray)
    """The body of the answer, or the frames of a WebSocket, one in a line."""
    final: bytes | None = None
    """The final object of a response that was made in the background."""

    @property
    def socket(self) -> bool:
        """Whether it is a frame of a WebSocket."""
        return self.line.startswith("GET ")

    @property
    def background(self) -> bool:
        """Whether the response is made in the background."""
        return (
            not self.socket and b'"background"' in self.body and _decoded(self.body, _Background()).background
        )

    def request(self) -> Request:
        """Returns the request as it is written."""
        body: Any = msgspec.Raw(msgspec.json.format(self.body, indent=-1)) if is_json(self.body) else None
        return Request(self.line, self.headers, body, self.socket)

    def answer(self) -> Answer:
        """Returns the answer as it is written."""
        final = None if self.final is None else msgspec.Raw(self.final)
        answered = bytes(self.answered).strip()
        if answered.startswith((b"{", b"[")):
            if not self.socket and is_json(answered):
                return Answer(self.status, msgspec.Raw(answered), None, final)
            return Answer(self.status, None, answered.splitlines())  # frames, or a stream of Ollama's API
        return Answer(self.status, None, sent_in(answered), final)


def sent_in(stream: bytes) -> list[bytes]:
    """Returns the data of the events of a stream of this server, in order, comments left out."""
    return [data for event in stream.split(b"\n\n") if (data := event.partition(b"data: ")[2])]


def _mcp_secrets(body: bytes) -> list[str]:
    """Returns the headers and keys that a request has for MCP servers."""
    found = []
    for tool in _decoded(body, _WithTools()).tools if b'"mcp"' in body else ():
        if isinstance(tool, dict):
            headers = tool.get("headers")
            found += list(headers.values()) if isinstance(headers, dict) else []
            found.append(tool.get("authorization"))
    return [value for value in found if isinstance(value, str)]


class _WithTools(msgspec.Struct):
    tools: list[Any] = []


class _Background(msgspec.Struct):
    background: bool = False


S = TypeVar("S", bound=msgspec.Struct)


def _decoded(body: bytes, default: S) -> S:
    """Returns what a body has of the fields of `default`; `default` if it cannot be read."""
    try:
        return msgspec.json.decode(body, type=type(default))
    except UNREADABLE:
        return default
