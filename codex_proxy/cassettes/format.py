"""Reads and writes the file of a cassette. `docs/cassettes.md` lists its lines."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.recorded import UnknownDialectError, check_facts, class_of
from codex_proxy.agents.registry import dialects_of
from codex_proxy.cassettes.content import Content, format_content
from codex_proxy.cassettes.line_types import (
    check_answer,
    check_head,
    check_line,
    check_message,
    check_request,
    check_tool,
    check_turn,
    milliseconds_of,
)
from codex_proxy.cassettes.pieces import group_similar_lines, is_utf8, with_text
from codex_proxy.cassettes.settings import CassetteError
from codex_proxy.core.json_values import UNREADABLE, is_json
from codex_proxy.files.private import create, read_regular

VERSION: Final = 1
SUFFIX: Final = ".jsonl"
MAX_FILE_BYTES: Final = 256 << 20
SLICE_BYTES: Final = 1 << 18
"""About how many bytes of a file are made at once."""
BYTE_KINDS: Final = frozenset({"to", "from", "data", "body"})
"""The kinds of lines with bytes of the agent. Bytes that are no JSON are written as `KIND_text`, or in base64 as
`KIND_bytes`.
"""
EMPTY_CONTENT: Final[Content] = {
    "mode": "agent",
    "format": "text",
    "model": "",
    "tool_choice": "auto",
    "effort": None,
    "sampling": {},
}
"""The content of a turn as far as a cassette does not say it, without tools and messages."""
SESSION_KINDS: Final = frozenset(
    {
        *(f"{kind}{form}" for kind in BYTE_KINDS for form in ("", "_text", "_bytes")),
        *("head", "line", "over", "event"),
        *("begin", "resume", "reopen", "answer", "call", "ended", "failed"),
    }
)


class Line(msgspec.Struct, frozen=True, gc=False):
    ms: int
    kind: str
    value: Any
    """The agent's line as bytes if the kind is in `BYTE_KINDS`, else the decoded JSON."""


class Session(
    msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, rename={"dialect": "session"}
):
    """A session with the agent: its dialect's name and facts (`agents.recorded`), and its lines."""

    dialect: str
    facts: dict[str, Any] = {}
    lines: list[Line] = []
    origin: str = ""
    """The name that marked its encrypted content, if any."""


class Answer(msgspec.Struct, frozen=True):
    """An answer as sent. `sent`: the data of a stream's events; None if the answer is one `body`."""

    status: int = 0
    body: Any = None
    sent: list[Any] | None = None
    final: Any = None
    """The final object of a background response."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True, rename={"line": "request"}):
    """A request as it came. `line`: method and path; `socket`: whether the request was a WebSocket frame."""

    line: str
    headers: dict[str, str] = {}
    body: Any = None
    socket: bool = False


class CassetteHead(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="cassette", tag=VERSION
):
    """The first line of a file."""

    agent: str
    version: str = ""
    proxy: str = ""
    after: str = ""
    """The cassette whose session this turn continues, if any."""
    order: int = 1
    """The turn's number in the session, from 1."""
    capabilities: list[str] = []
    settings: dict[str, Any] = {}
    """The server's settings that matter; of a capture, the program's arguments (`argv`)."""
    mcp: list[dict[str, Any]] = []
    """The MCP tools of the turn that this server ran."""
    match: list[str] = []
    """The recording's `--match`, if it was given."""


class Capture(CassetteHead, frozen=True, kw_only=True):
    """A recording of an agent's program with another client, for tests of its dialect."""

    name: str
    """The name of the file, without the suffix."""
    sessions: list[Session]
    plugin: str = ""
    """The plugin that the operator has named, whose dialects may be in the file."""


class Cassette(Capture, frozen=True, kw_only=True):
    """One recorded turn."""

    request: Request
    content: Content
    answer: Answer

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Returns the MCP calls that the server made, with their outputs."""
        return [line.value for session in self.sessions for line in session.lines if line.kind == "call"]


def text_of(
    capture: Capture, scrub: Callable[[bytes], bytes] = bytes, replace_ids: Callable[[bytes], bytes] = bytes
) -> Iterator[bytes]:
    """Yields the text of a file in slices, so that other threads can run between. `scrub` returns a text as it is
    written, without secrets; a secret in several lines makes them one. `replace_ids` returns lines as they are written:
    after `scrub`, which would not find a secret of which a part looked like an id.
    """
    count, some, size = 0, list[bytes](), 0
    for line in _short_lines(capture, scrub):
        some.append(line)
        count, size = count + 1, size + len(line)
        if size >= SLICE_BYTES:
            yield replace_ids(scrub(b"\n".join(some))) + b"\n"
            some, size = [], 0
    yield replace_ids(scrub(b"\n".join([*some, b'{"end":%d}' % count]))) + b"\n"


def _short_lines(capture: Capture, scrub: Callable[[bytes], bytes]) -> Iterator[bytes]:
    for group in group_similar_lines(lines_of(capture)):
        text = group.text()
        scrubbed = scrub(text) if text else text
        yield from group.lines() if scrubbed == text else (group.with_text(scrubbed),)


def lines_of(capture: Capture) -> Iterator[bytes]:
    """Yields the lines of the file, none of them shortened, without the last one, which has their number."""
    yield encode(CassetteHead(**{name: getattr(capture, name) for name in CassetteHead.__struct_fields__}))
    if isinstance(capture, Cassette):
        yield encode(capture.request)
        turn = {name: value for name, value in capture.content.items() if value not in (None, {}, "")}
        tools, messages = turn.pop("tools"), turn.pop("messages")
        yield encode({"turn": turn})
        yield from (encode({"tool": each}) for each in tools)
        yield from (encode({"message": each}) for each in messages)
    for session in capture.sessions:
        yield encode(msgspec.structs.replace(session, lines=[]))
        yield from map(_encode_line, session.lines)
    if isinstance(capture, Cassette):
        yield from _answer_lines(capture.answer)


encode: Final = msgspec.json.Encoder().encode


def _answer_lines(answer: Answer) -> Iterator[bytes]:
    if answer.sent is None:
        yield encode({"answer": answer.status, "body": answer.body})
    else:
        yield encode({"answer": answer.status, "stream": len(answer.sent)})
        yield from (encode({"sent": each}) for each in answer.sent)
    if answer.final is not None:
        yield encode({"final": answer.final})


def _encode_line(line: Line) -> bytes:
    kind, value = line.kind, line.value
    if kind in BYTE_KINDS:
        if is_json(value):
            value = msgspec.Raw(msgspec.json.format(value, indent=-1) if b"\n" in value else value)
        elif is_utf8(value):
            kind, value = f"{kind}_text", value.decode()
        else:
            kind, value = f"{kind}_bytes", base64.b64encode(value).decode()
    return encode({"ms": line.ms, kind: value})


def sent_data(event: bytes) -> Any:
    """Returns the data of a stream's event as JSON, or as a text if it is none; of WebSockets and other streams, the
    whole line.
    """
    data = event if event.startswith(b"{") else event.partition(b"data: ")[2] or event
    return msgspec.Raw(data) if is_json(data) else data.decode("utf-8", "replace")


def write_new(folder: str, name: str, texts: Iterable[bytes]) -> None:
    """Writes a file of these texts at once, so that no reader sees a part. Raises `FileExistsError` if there is one, or
    another process is writing it, and `OSError`.
    """
    path, new = f"{folder}/{name}", f"{folder}/.{name}.new"
    descriptor = create(new)  # `replace_file`, or a file object, takes several times as long
    try:
        try:
            if os.path.exists(path):
                raise FileExistsError(path)
            for text in texts:
                left = memoryview(text)
                while left:
                    left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
        os.replace(new, path)
    except BaseException:
        os.unlink(new)
        raise


# --- reading --------------------------------------------------------------------------------------

_RECORD_ANEW: Final = "Remove it, and record it anew."
_CORRECT_THE_LINE: Final = "Correct the line, or record it anew."


class _WrongLineError(Exception):
    """A line is not allowed at its place. The text says why, and what to do."""


def read(path: Path, plugin: str = "") -> Cassette:
    """Reads a cassette. `plugin`: that of the operator, if any. Raises `CassetteError` with file and line."""
    return parse(_read_bytes(path), path, plugin)


def read_capture(path: Path) -> Capture:
    """Reads a capture, or a cassette as one. Raises `CassetteError`, as `read` does."""
    found = _parse_lines(_read_bytes(path), path)
    return Capture(**_fields_of(found, path))


def _read_bytes(path: Path) -> bytes:
    try:
        return read_regular(path, MAX_FILE_BYTES)
    except OverflowError:
        raise CassetteError(
            f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB. Record it anew, in parts."
        ) from None
    except OSError as error:
        raise CassetteError(
            f"{path} cannot be read: {error.strerror}. Remove it from the folder, or make it readable."
        ) from error


def parse(data: bytes, path: Path, plugin: str = "") -> Cassette:
    """Parses a cassette's bytes. `path` is for its name, and for errors. Raises `CassetteError`."""
    found = _parse_lines(data, path, plugin)
    request, content, answer = found.request, found.content, found.answer
    if request is None or content is None or answer is None:
        missing = "request" if request is None else "turn" if content is None else "answer"
        raise CassetteError(f"{path}, line {found.count}: there is no `{missing}`. {_RECORD_ANEW}")
    try:
        assert found.head is not None
        check_head(found.head.settings, found.head.mcp, found.head.match)
    except (ValueError, TypeError) as error:
        raise CassetteError(f"{path}, line 1: {error}. {_CORRECT_THE_LINE}") from error
    return Cassette(**_fields_of(found, path), request=request, content=content, answer=answer)


def _fields_of(found: _ParsedLines, path: Path) -> dict[str, Any]:
    head = msgspec.structs.asdict(found.head) if found.head else {}
    own = {"name": path.name.removesuffix(SUFFIX), "sessions": found.sessions, "plugin": found.plugin}
    return {**head, **own}


def _parse_lines(data: bytes, path: Path, plugin: str = "") -> _ParsedLines:
    lines = data.split(b"\n")
    cut = lines.pop()
    found = _ParsedLines(plugin=plugin)
    for line in [*lines, cut] if cut else lines:
        found.count += 1
        try:
            found.take(line)
        except _WrongLineError as error:
            wrong = str(error)
        except UnknownDialectError as error:
            wrong = f"{error}."
        except UNREADABLE as error:
            wrong = (
                f"the file is half-written. {_RECORD_ANEW}"
                if line is cut
                else f"{error}. {_CORRECT_THE_LINE}"
            )
        except (LookupError, TypeError, AttributeError):
            wrong = f"it does not fit the lines before it. {_CORRECT_THE_LINE}"
        else:
            continue
        raise CassetteError(f"{path}, line {found.count}: {wrong}")
    if not found.ended:
        raise CassetteError(
            f"{path}, line {found.count}: the file is half-written: it has no end. {_RECORD_ANEW}"
        )
    return found


class _ParsedLines(msgspec.Struct):
    """The lines of a file that have been read so far."""

    plugin: str = ""
    count: int = 0
    head: CassetteHead | None = None
    request: Request | None = None
    content: Content | None = None
    sessions: list[Session] = []
    answer: Answer | None = None
    last_line: bytes = b""
    """The line before, if a `next` line can change it."""
    last_kind: str = ""
    ended: bool = False

    def take(self, line: bytes) -> None:
        """Reads the next line. Raises an exception if it is not allowed here."""
        value = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        kind = next((name for name in value if name != "ms"), "")
        before, self.last_line = self.last_line, b""
        if self.ended:
            raise _WrongLineError("there is a line after the end. Remove it.")
        if self.head is None:
            self.head = _head_of(line, value)
        elif kind == "next":
            self._take_line(self.last_kind, _line_with_texts(before, value[kind]), value)
        elif kind == "sent" or (kind in SESSION_KINDS and "ms" in value):
            base, _, form = kind.partition("_")
            is_changeable = kind == "sent" or base in BYTE_KINDS
            content = _bytes_of(value[kind], form) if is_changeable else msgspec.json.decode(value[kind])
            self._take_line(base, content, value)
        elif kind == "request":
            self.request = msgspec.json.decode(line, type=Request)
            check_request(self.request.line, self.request.headers)
        elif kind == "session":
            session = msgspec.json.decode(line, type=Session)
            if session.dialect or session.facts:  # without an agent only MCP calls are recorded
                class_of(session.dialect, dialects_of(self.plugin) if self.plugin else None)
            elif session.origin:
                raise _WrongLineError("a session has a dialect. " + _CORRECT_THE_LINE)
            if self.request is not None:  # a capture of another client has none of our facts
                check_facts(session.dialect, session.facts)
            self.sessions.append(session)
        else:
            self._take_json(kind, {name: msgspec.json.decode(each) for name, each in value.items()})

    def _take_line(self, kind: str, content: Any, value: dict[str, msgspec.Raw]) -> None:
        """Takes a line of a session or a stream. If `content` is bytes, a `next` line may follow."""
        if isinstance(content, bytes):
            self.last_line, self.last_kind = content, kind
        if kind == "sent":
            if self.answer is None or self.answer.sent is None:
                raise _WrongLineError(f"there is no stream before it. {_CORRECT_THE_LINE}")
            self.answer.sent.append(msgspec.json.decode(content))
        elif self.sessions:
            check_line(self.sessions[-1].dialect, kind, content)
            self.sessions[-1].lines.append(Line(milliseconds_of(value["ms"]), kind, content))
        else:
            raise _WrongLineError(f"there is no session before it. {_CORRECT_THE_LINE}")

    def _take_json(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "turn":
            check_turn(value[kind])
            self.content = {**EMPTY_CONTENT, "tools": [], "messages": [], **value[kind]}
            self.content["format"] = format_content(self.content["format"])
        elif kind in ("tool", "message") and self.content is not None:
            (check_tool if kind == "tool" else check_message)(value[kind])
            self.content[f"{kind}s"].append(value[kind])
        elif kind == "answer":
            check_answer(value[kind])
            self.answer = Answer(value[kind], value.get("body"), [] if "stream" in value else None)
        elif kind == "final" and self.answer is not None:
            self.answer = msgspec.structs.replace(self.answer, final=value[kind])
        elif kind == "end":
            self.ended = True
            if value[kind] != self.count - 1:
                raise _WrongLineError(
                    f"it has {self.count - 1} lines before the end, and should have {value[kind]}. {_RECORD_ANEW}"
                )
        else:
            raise _WrongLineError(f"a line that begins with `{kind}` is not known here. {_CORRECT_THE_LINE}")


def _head_of(line: bytes, value: dict[str, msgspec.Raw]) -> CassetteHead:
    if "cassette" not in value:
        raise _WrongLineError(
            "it is no cassette: its first line does not begin with `cassette`. Remove it from the folder."
        )
    version = msgspec.json.decode(value["cassette"])
    if not isinstance(version, int) or version > VERSION:
        raise _WrongLineError(
            f"the cassette has format {version}, and this codex-proxy reads up to {VERSION}. Update codex-proxy."
        )
    return msgspec.json.decode(line, type=CassetteHead)


def _bytes_of(value: msgspec.Raw, form: str) -> bytes:
    """Returns the bytes of a line that was written as JSON, as a text (`text`) or in base64 (`bytes`)."""
    if not form:
        return bytes(value)
    text = msgspec.json.decode(value, type=str)
    return text.encode() if form == "text" else base64.b64decode(text, validate=True)


def _line_with_texts(before: bytes, texts: msgspec.Raw) -> bytes:
    """Returns the line before with these texts."""
    if not before:
        raise _WrongLineError(f"no line before it has a text that it could change. {_CORRECT_THE_LINE}")
    for name, text in msgspec.json.decode(texts, type=dict[str, msgspec.Raw]).items():
        try:
            before = with_text(before, encode(name), bytes(text))
        except ValueError as error:
            raise _WrongLineError(f"{error}. {_CORRECT_THE_LINE}") from None
    return before
