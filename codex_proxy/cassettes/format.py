"""Reads and writes the file of a cassette. `docs/cassettes.md` lists its lines."""

from __future__ import annotations

import base64
import itertools
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.cassettes.content import Content
from codex_proxy.cassettes.pieces import Run, find_runs, is_json, is_utf8, slices_of, with_text
from codex_proxy.cassettes.settings import CassetteError
from codex_proxy.files.private import create

VERSION: Final = 1
SUFFIX: Final = ".jsonl"
MAX_FILE_BYTES: Final = 256 << 20
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


Block = tuple[str, Sequence[int], Sequence[Any]]
"""Successive lines of one kind in a session: the kind, and the times and values of the lines."""


class Session(msgspec.Struct, frozen=True, omit_defaults=True, rename={"dialect": "session"}):
    """A session with the agent: its dialect's name and facts (`agents.recorded`), and its lines."""

    dialect: str
    facts: dict[str, Any] = {}
    lines: list[Line] = []
    origin: str = ""
    """The name that marked its encrypted content, if any."""


class Answer(msgspec.Struct, frozen=True):
    """An answer as sent. `sent`: a stream's events, as decoded data or as bytes; None if the answer is one `body`."""

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


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="cassette", tag=VERSION):
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


class Capture(Head, frozen=True, kw_only=True):
    """A recording of an agent's program with another client, for tests of its dialect."""

    name: str
    """The name of the file, without the suffix."""
    sessions: list[Session]


class Cassette(Capture, frozen=True, kw_only=True):
    """One recorded turn."""

    request: Request
    content: Content
    answer: Answer

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Returns the MCP calls that the server made, with their outputs."""
        return [line.value for session in self.sessions for line in session.lines if line.kind == "call"]


def lines_of(capture: Capture) -> list[bytes | Run]:
    """Returns the lines of the file, without line ends, and without the last line, which has their number. Similar
    lines are `Run`s.
    """
    head = Head(**{name: getattr(capture, name) for name in Head.__struct_fields__})
    asked = [*request_lines(capture.request, capture.content)] if isinstance(capture, Cassette) else []
    lines: list[bytes | Run] = [encode(head), *asked]
    for session in capture.sessions:
        lines += session_lines(msgspec.structs.replace(session, lines=[]), blocks_of(session.lines))
    if isinstance(capture, Cassette):
        lines += answer_lines(capture.answer)
    return lines


def request_lines(request: Request, content: Content) -> Iterator[bytes]:
    """Yields the lines of a request and its content."""
    yield encode(request)
    turn = {name: value for name, value in content.items() if value not in (None, {}, "")}
    tools, messages = turn.pop("tools"), turn.pop("messages")
    yield encode({"turn": turn})
    yield from (encode({"tool": each}) for each in tools)
    yield from (encode({"message": each}) for each in messages)


encode: Final = msgspec.json.Encoder().encode


def answer_lines(answer: Answer) -> Iterator[bytes | Run]:
    if answer.sent is None:
        yield encode({"answer": answer.status, "body": answer.body})
    else:
        yield encode({"answer": answer.status, "stream": len(answer.sent)})
        as_sent = bool(answer.sent) and isinstance(answer.sent[0], bytes)
        yield from _encode_lines("sent", answer.sent if as_sent else list(map(encode, answer.sent)), ())
    if answer.final is not None:
        yield encode({"final": answer.final})


def session_lines(session: Session, blocks: Iterable[Block]) -> Iterator[bytes | Run]:
    """Yields the lines of a session without `lines`, and of its blocks."""
    yield encode(session)
    for kind, times, values in blocks:
        if kind in BYTE_KINDS:
            yield from _encode_lines(kind, values, times)
        else:
            yield from (encode({"ms": ms, kind: value}) for ms, value in zip(times, values, strict=True))


def blocks_of(lines: Iterable[Line]) -> Iterator[Block]:
    for kind, same in itertools.groupby(lines, operator.attrgetter("kind")):
        several = list(same)
        yield kind, [line.ms for line in several], [line.value for line in several]


def _encode_lines(kind: str, lines: Sequence[bytes], times: Sequence[int]) -> Iterator[bytes | Run]:
    at = 0
    for found in find_runs(lines):
        if isinstance(found, Run):
            found.times = times[at : at + len(found.texts)]
            at += len(found.texts)
            yield found
        else:
            yield _encode_line(kind, found, times[at]) if times else _encode_line(kind, data_of(found))
            at += 1


def _encode_line(kind: str, line: bytes, ms: int | None = None) -> bytes:
    if is_json(line):
        value = msgspec.json.format(line, indent=-1) if b"\n" in line else line
    else:
        as_text = is_utf8(line)
        text = line.decode("utf-8", "replace") if as_text or ms is None else base64.b64encode(line).decode()
        value = encode(text)
        kind += "" if ms is None else "_text" if as_text else "_bytes"  # what was sent is no JSON: [DONE]
    time = "" if ms is None else f'"ms":{ms},'
    return f'{{{time}"{kind}":'.encode() + value + b"}"


def data_of(event: bytes) -> bytes:
    """Returns the data of a stream's event; of other streams and of WebSockets, the whole line."""
    return event if event.startswith(b"{") else event.partition(b"data: ")[2] or event


def text_of(lines: Iterable[bytes | Run], clean: Callable[[bytes], bytes] = bytes) -> Iterator[bytes]:
    """Yields the text of a file in slices, so that other threads can run between. `clean` returns lines that are in no
    run as they are written.
    """
    count = 0
    for some in slices_of(lines):
        left = iter(clean(b"\n".join([line for line in some if isinstance(line, bytes)])).split(b"\n"))
        text = b"\n".join([next(left) if isinstance(line, bytes) else line.lines() for line in some])
        count += text.count(b"\n") + 1
        yield text + b"\n"
    yield b'{"end":%d}\n' % count


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

_AGAIN: Final = "Remove it, and record it anew."
_CORRECT: Final = "Correct the line, or record it anew."


class _WrongLineError(Exception):
    """A line is not allowed at its place. The text says why, and what to do."""


def read(path: Path) -> Cassette:
    """Reads a cassette. Raises `CassetteError` with file and line."""
    return parse(_read_bytes(path), path)


def read_capture(path: Path) -> Capture:
    """Reads a capture, or a cassette as one. Raises `CassetteError`, as `read` does."""
    found = _parse_lines(_read_bytes(path), path)
    return Capture(**_fields_of(found, path))


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CassetteError(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB. Record it anew, in parts."
            )
        return path.read_bytes()
    except OSError as error:
        raise CassetteError(f"{path} cannot be read: {error.strerror}.") from error


def parse(data: bytes, path: Path) -> Cassette:
    """Parses a cassette's bytes. `path` is for its name, and for errors. Raises `CassetteError`."""
    found = _parse_lines(data, path)
    request, content, answer = found.request, found.content, found.answer
    if request is None or content is None or answer is None:
        missing = "request" if request is None else "turn" if content is None else "answer"
        raise CassetteError(f"{path}, line {found.count}: there is no `{missing}`. {_AGAIN}")
    return Cassette(**_fields_of(found, path), request=request, content=content, answer=answer)


def _fields_of(found: _ParsedLines, path: Path) -> dict[str, Any]:
    head = msgspec.structs.asdict(found.head) if found.head else {}
    return {**head, "name": path.name.removesuffix(SUFFIX), "sessions": found.sessions}


def _parse_lines(data: bytes, path: Path) -> _ParsedLines:
    lines = data.split(b"\n")
    cut = lines.pop()
    found = _ParsedLines()
    for line in [*lines, cut] if cut else lines:
        found.count += 1
        try:
            found.take(line)
        except _WrongLineError as error:
            wrong = str(error)
        except UNREADABLE as error:
            wrong = f"the file is half-written. {_AGAIN}" if line is cut else f"{error}. {_CORRECT}"
        except (LookupError, TypeError, AttributeError):
            wrong = f"it does not fit the lines before it. {_CORRECT}"
        else:
            continue
        raise CassetteError(f"{path}, line {found.count}: {wrong}")
    if not found.ended:
        raise CassetteError(f"{path}, line {found.count}: the file is half-written: it has no end. {_AGAIN}")
    return found


class _ParsedLines(msgspec.Struct):
    """The lines of a file that have been read so far."""

    count: int = 0
    head: Head | None = None
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
            self._take_bytes(self.last_kind, _line_with_texts(before, value[kind]), value)
        elif kind == "sent":
            self._take_bytes(kind, bytes(value[kind]), value)
        elif kind in SESSION_KINDS and "ms" in value:
            base, _, form = kind.partition("_")
            if base in BYTE_KINDS:
                self._take_bytes(base, _bytes_of(value[kind], form), value)
            else:
                self._take_session_line(kind, msgspec.json.decode(value[kind]), value)
        elif kind == "request":
            self.request = msgspec.json.decode(line, type=Request)
        elif kind == "session":
            self.sessions.append(msgspec.json.decode(line, type=Session))
        else:
            self._take_json(kind, {name: msgspec.json.decode(each) for name, each in value.items()})

    def _take_bytes(self, kind: str, line: bytes, value: dict[str, msgspec.Raw]) -> None:
        """Takes a line that a `next` line may follow."""
        self.last_line, self.last_kind = line, kind
        if kind != "sent":
            self._take_session_line(kind, line, value)
        elif self.answer is not None and self.answer.sent is not None:
            self.answer.sent.append(msgspec.json.decode(line))
        else:
            raise _WrongLineError(f"there is no stream before it. {_CORRECT}")

    def _take_session_line(self, kind: str, content: Any, value: dict[str, msgspec.Raw]) -> None:
        if not self.sessions:
            raise _WrongLineError(f"there is no session before it. {_CORRECT}")
        self.sessions[-1].lines.append(Line(msgspec.json.decode(value["ms"], type=int), kind, content))

    def _take_json(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "turn":
            self.content = {**EMPTY_CONTENT, "tools": [], "messages": [], **value[kind]}
        elif kind in ("tool", "message") and self.content is not None:
            self.content[f"{kind}s"].append(value[kind])
        elif kind == "answer":
            self.answer = Answer(value[kind], value.get("body"), [] if "stream" in value else None)
        elif kind == "final" and self.answer is not None:
            self.answer = msgspec.structs.replace(self.answer, final=value[kind])
        elif kind == "end":
            self.ended = True
            if value[kind] != self.count - 1:
                raise _WrongLineError(
                    f"it has {self.count - 1} lines before the end, and should have {value[kind]}. {_AGAIN}"
                )
        else:
            raise _WrongLineError(f"a line that begins with `{kind}` is not known here. {_CORRECT}")


def _head_of(line: bytes, value: dict[str, msgspec.Raw]) -> Head:
    if "cassette" not in value:
        raise _WrongLineError(
            "it is no cassette: its first line does not begin with `cassette`. Remove it from the folder."
        )
    version = msgspec.json.decode(value["cassette"])
    if not isinstance(version, int) or version > VERSION:
        raise _WrongLineError(
            f"the cassette has format {version}, and this codex-proxy reads up to {VERSION}. Update codex-proxy."
        )
    return msgspec.json.decode(line, type=Head)


def _bytes_of(value: msgspec.Raw, form: str) -> bytes:
    """Returns the bytes of a line that was written as JSON, as a text (`text`) or in base64 (`bytes`)."""
    if not form:
        return bytes(value)
    text = msgspec.json.decode(value, type=str)
    return text.encode() if form == "text" else base64.b64decode(text)


def _line_with_texts(before: bytes, texts: msgspec.Raw) -> bytes:
    """Returns the line before with these texts."""
    if not before:
        raise _WrongLineError(f"no line before it has a text that it could change. {_CORRECT}")
    for name, text in msgspec.json.decode(texts, type=dict[str, msgspec.Raw]).items():
        try:
            before = with_text(before, encode(name), bytes(text))
        except ValueError as error:
            raise _WrongLineError(f"{error}. {_CORRECT}") from None
    return before
