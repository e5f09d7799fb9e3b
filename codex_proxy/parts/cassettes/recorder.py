"""Records turns into a folder.

A cassette is written when the turn and its answer are over. If the folder cannot be written, the recording ends, not
the turn.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import structlog

from codex_proxy import __version__
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.events import Event, ItemStarted, Stop
from codex_proxy.core.items import McpTools
from codex_proxy.core.json_values import UNREADABLE, is_json, object_at, objects_in
from codex_proxy.core.safety import MIN_SECRET_CHARS
from codex_proxy.core.turn import Turn
from codex_proxy.files.private import create, make_folder
from codex_proxy.parts.cassettes.content import content_of, key_of
from codex_proxy.parts.cassettes.file_changes import CheckedLines, check_file_line, file_line_of
from codex_proxy.parts.cassettes.file_lines import Line
from codex_proxy.parts.cassettes.folder_files import ChangedFile, RecordedFolders
from codex_proxy.parts.cassettes.format import (
    SUFFIX,
    VERSION,
    Answer,
    Cassette,
    Request,
    sent_data,
    text_of,
    write_new,
)
from codex_proxy.parts.cassettes.replay import ReplayAgent
from codex_proxy.parts.cassettes.scrubbing import Scrubber, TurnIds, spellings_of_secret, zero_numbers
from codex_proxy.parts.cassettes.settings import CassetteError
from codex_proxy.parts.cassettes.turn_recorder import MAX_BYTES, CassetteTurnRecorder

log = structlog.get_logger(__name__)

MAX_SLUG: Final = 40
MAX_WORDS: Final = 4000
"""Characters of a message that are read for the cassette's name."""
MAX_AT_ONCE: Final = 1 << 17
"""Maximum bytes of a turn that is written on the event loop, which takes milliseconds."""
MAX_WAITING: Final = 256 << 20
"""Maximum bytes of large turns that wait to be written; further ones are not recorded."""
DATA_PREFIXES: Final = b"d{"
"""How the lines of a stream or WebSocket begin that have data, and are no comments or names of events."""
_NUMBERED: Final = re.compile(r"(\d{4,})-")
_NO_WORD: Final = re.compile(b"[^a-z0-9]+")


class Recorder:
    """Writes cassettes into `folder`. `trouble` says why it has stopped, if it has."""

    def __init__(
        self,
        folder: Path,
        scrubber: Scrubber,
        settings: Mapping[str, Any],
        match: Sequence[str] = (),
        *,
        files: bool = True,
    ) -> None:
        """`settings`: the settings that matter for the answers and are no defaults; `match`: the value of `--match`;
        `files`: whether changes of files are recorded. Raises `CassetteError` if the folder cannot be written to.
        """
        self.folder = folder
        self.trouble = ""
        self.folders = RecordedFolders([folder]) if files else None
        self._scrubber = scrubber
        self._settings = dict(settings)
        self._match = list(match)
        self._ids: dict[bytes, bytes] = {}
        self._thread = ThreadPoolExecutor(1, "recorder")
        """Writes large cassettes one after the other, since one may continue another."""
        self._waiting: set[asyncio.Task[None]] = set()
        self._bytes_waiting = 0
        try:
            make_folder(folder)
            probe = folder / f".probe-{os.getpid()}"
            os.close(create(probe))
            probe.unlink()
        except OSError as error:
            raise CassetteError(
                f"--record {folder} cannot be written: {error.strerror}. Give another folder."
            ) from error
        self._last = max(map(_number_of, folder.glob(f"*{SUFFIX}")), default=0)

    def write(self, recorded: CassetteTurnRecorder, exchange: ExchangeContent) -> None:
        """Writes the cassette of an ended turn, a large one in a thread. Never raises: if the folder cannot be written,
        recording ends.
        """
        size = recorded.size + len(exchange.body) + exchange.answered_size
        if not self._takes(recorded, size):
            recorded.forget()
        elif size <= MAX_AT_ONCE and not self._waiting:
            self._report(recorded, self._try_to_write(recorded, exchange))
        else:
            self._bytes_waiting += size
            task = asyncio.ensure_future(self._write_later(recorded, exchange, size))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    def _takes(self, recorded: CassetteTurnRecorder, size: int) -> bool:
        if self.trouble:
            return False
        assert recorded.end is not None
        if recorded.size > MAX_BYTES:
            log.info("turn_not_recorded", reason="too large")
        elif not recorded.parts:
            log.info("turn_not_recorded", reason="no session")
        elif recorded.end.stop == Stop.INTERRUPTED:
            log.info("turn_not_recorded", reason="interrupted")
        elif recorded.took_input:
            log.info("turn_not_recorded", reason="input while it ran")
        elif self._bytes_waiting + size > MAX_WAITING:
            log.warning("turn_not_recorded", reason="too many large turns are being written")
        else:
            return True
        return False

    async def _write_later(
        self, recorded: CassetteTurnRecorder, exchange: ExchangeContent, size: int
    ) -> None:
        loop = asyncio.get_running_loop()
        path = await loop.run_in_executor(self._thread, self._try_to_write, recorded, exchange)
        self._bytes_waiting -= size
        self._report(recorded, path)

    async def flush(self) -> None:
        """Waits until every cassette is written."""
        while self._waiting:
            await asyncio.wait(self._waiting)

    async def close(self) -> None:
        """Writes the remaining cassettes."""
        await self.flush()
        self._thread.shutdown()

    def _report(self, recorded: CassetteTurnRecorder, path: Path | None) -> None:
        recorded.forget()
        if path is not None:
            recorded.on_written(path)

    def _try_to_write(self, recorded: CassetteTurnRecorder, exchange: ExchangeContent) -> Path | None:
        if self.trouble:  # since the turn was over
            return None
        try:
            return self._write(recorded, exchange)
        except OSError as error:
            self.trouble = (
                f"Recording has stopped: {self.folder} cannot be written ({error.strerror}). Free some space, then "
                "start again."
            )
            log.error("recording_stopped", folder=str(self.folder), reason=error.strerror)
        except Exception:
            log.exception("turn_not_recorded")
        return None

    def _write(self, recorded: CassetteTurnRecorder, exchange: ExchangeContent) -> Path:
        secrets = {*exchange.keys, *_tool_secrets(exchange.body)}
        keys = [
            spelling
            for key in sorted(secrets, key=len, reverse=True)  # one may be the beginning of another
            if len(key) >= MIN_SECRET_CHARS
            for spelling in spellings_of_secret(key)
        ]
        scrub = partial(self._scrubber.scrub, keys)
        agent = recorded.agent
        if isinstance(agent, ReplayAgent) and agent.missing is not None:
            agent = agent_for(agent.missing, recorded.turn.model)
        content = content_of(recorded.turn)
        ids = TurnIds(self._ids, key_of(content, ("messages", "tools", "mode")), exchange.body)
        cassette = Cassette(
            cassette=VERSION,
            name="",
            agent=agent.name,
            version=agent.version,
            proxy=__version__,
            capabilities=sorted(agent.capabilities),
            settings=self._settings,
            after="" if recorded.after is None else recorded.after.name,
            order=recorded.order,
            mcp=_mcp_of(recorded.turn, recorded.first),
            match=self._match,
            request=exchange.request(),
            content=content,
            lines=[*recorded.lines(), *_file_lines(recorded.changed, scrub)],
            answer=exchange.answer(),
        )
        words = scrub(_last_words(content).encode("utf-8", "replace")).lower()
        slug = _NO_WORD.sub(b"-", words)[:MAX_SLUG].strip(b"-").decode() or "turn"
        texts = text_of(cassette, scrub, ids.replace)
        while True:
            self._last += 1
            recorded.name = f"{self._last:04d}-{slug}"
            try:
                write_new(str(self.folder), f"{recorded.name}{SUFFIX}", texts)
            except FileExistsError:  # of another server that records here
                continue
            return self.folder / f"{recorded.name}{SUFFIX}"


def _file_lines(changed: Sequence[ChangedFile], scrub: Callable[[bytes], bytes]) -> Iterator[Line]:
    """Yields the lines of changed files, but those that no replay may write."""
    checked = CheckedLines()
    for each in changed:
        line = file_line_of(each, scrub)
        try:
            check_file_line(line)
            checked.add(line)
        except ValueError as error:
            log.warning("file_not_recorded", reason=str(error))
        else:
            yield Line(0, "file", line)


def _number_of(path: Path) -> int:
    found = _NUMBERED.match(path.name)
    return 0 if found is None else int(found[1])


def _last_words(content: Mapping[str, Any]) -> str:
    messages = content["messages"]
    for message in reversed(messages):
        if message.get("role") == "user":
            words = str(message["text"])[:MAX_WORDS].strip()
            return words if message is messages[-1] else f"{words[:20]} output"
    return ""


def _mcp_of(turn: Turn, first: Sequence[Event]) -> list[dict[str, Any]]:
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


class RecordedExchange:
    """Records a request and its answer; on a WebSocket, one frame after the other. Implements
    `runs.observers.RequestRecorder`.
    """

    def __init__(
        self, recorder: Recorder, line: str, headers: Mapping[str, str], keys: Sequence[str]
    ) -> None:
        """`line`: method and path; `headers`: the headers on which the answer may depend; `keys`: the secrets in
        the request.
        """
        self._recorder = recorder
        self._of = dict(headers), keys
        self._content = ExchangeContent(line, *self._of)
        self._turns: list[CassetteTurnRecorder] = []
        """The turns that are not written yet."""

    # --- what the request says ------------------------------------------------------------------

    def add_content(self, what: Literal["request", "answer"], data: bytes) -> None:
        """Takes the request's body, a whole answer or events of a stream; on a WebSocket, a frame."""
        content = self._content
        if what == "answer":
            if content.answered_size < MAX_BYTES:
                content.answered.append(data)
                content.answered_size += len(data)
            return
        if content.socket and content.body:
            self.end(101)
            self._turns, self._content = [], ExchangeContent(content.line, *self._of)
        self._content.body = data

    def end(self, status: int) -> None:
        """Called when the whole answer was sent."""
        self._content.status = status
        self._write_ended()

    # --- what its turns say ---------------------------------------------------------------------

    def turn(self, turn: Turn, agent: Agent, first: Sequence[Event]) -> CassetteTurnRecorder:
        folders = self._recorder.folders
        files = None if folders is None else folders.of_turn(turn)
        recorded = CassetteTurnRecorder(turn, agent, first, self._write_ended, files)
        self._turns.append(recorded)
        return recorded

    def on_final_object(self, body: bytes) -> None:
        if self._content.background:
            self._content.final = body
            self._write_ended()

    def _write_ended(self) -> None:
        content = self._content
        if (
            content.status
            and all(recorded.end for recorded in self._turns)
            and (content.final or not content.background)
        ):
            for recorded in self._turns:
                self._recorder.write(recorded, content)
            self._turns = []


class ExchangeContent(msgspec.Struct):
    """The known parts of a request and its answer."""

    line: str
    headers: dict[str, str]
    keys: Sequence[str]
    body: bytes = b""
    status: int = 0
    """The answer's status; 0 until its end."""
    answered: list[bytes] = []
    """The answer's body, whole events of a stream, or WebSocket frames."""
    answered_size: int = 0
    final: bytes | None = None
    """The final object of a background response."""

    @property
    def socket(self) -> bool:
        """Whether the request is a WebSocket frame."""
        return self.line.startswith("GET ")

    @property
    def background(self) -> bool:
        asked = not self.socket and b'"background"' in self.body
        return asked and bool(_fields_of(self.body).get("background"))

    def request(self) -> Request:
        body: Any = msgspec.Raw(msgspec.json.format(self.body, indent=-1)) if is_json(self.body) else None
        return Request(self.line, self.headers, body, self.socket)

    def answer(self) -> Answer:
        final = None if self.final is None else msgspec.Raw(self.final)
        if not self.socket and len(self.answered) == 1 and is_json(self.answered[0]):
            return Answer(self.status, msgspec.Raw(self.answered[0].strip()), None, final)
        lines = zero_numbers(b"\n".join(self.answered)).split(b"\n")
        return Answer(
            self.status, None, [sent_data(line) for line in lines if line and line[0] in DATA_PREFIXES], final
        )


def _tool_secrets(body: bytes) -> list[str]:
    """Returns the secrets for MCP servers, and for containers of the model server."""
    found: list[Any] = []
    has_any = b'"mcp"' in body or b'"code_interpreter"' in body
    for tool in objects_in(_fields_of(body).get("tools")) if has_any else ():
        policy = object_at(tool, "container", "network_policy")
        found += [
            *object_at(tool, "headers").values(),
            tool.get("authorization"),
            *(each.get("value") for each in objects_in(policy.get("domain_secrets"))),
        ]
    return [value for value in found if isinstance(value, str)]


def _fields_of(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}
