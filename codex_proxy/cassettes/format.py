"""Reads and writes the file of a cassette. `docs/cassettes.md` lists its lines."""

from __future__ import annotations

import base64
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.cassettes.content import Content
from codex_proxy.cassettes.pieces import Run, find_runs, is_json, is_utf8, with_text
from codex_proxy.cassettes.settings import CassetteError
from codex_proxy.files.private import create

VERSION: Final = 1
SUFFIX: Final = ".jsonl"
MAX_FILE_BYTES: Final = 256 << 20
MAX_KNOWN: Final = 10_000
"""Maximum deltas of the agent that are looked for in the answer at once."""
BYTES: Final = frozenset({"to", "from", "data", "body"})
"""The kinds of lines with bytes of the agent. Bytes that are no JSON are written as `KIND_text`, or in base64 as
`KIND_bytes`.
"""
SESSION_KINDS: Final = frozenset(
    {
        *(f"{kind}{form}" for kind in BYTES for form in ("", "_text", "_bytes")),
        *("head", "line", "over", "event"),
        *("begin", "resume", "reopen", "answer", "call", "ended", "failed"),
    }
)


class Line(msgspec.Struct, frozen=True):
    """A line of a session, or several lines of the agent of one kind that came at once."""

    ms: int
    kind: str
    value: Any
    """The agent's lines if the kind is in `BYTES`, else the decoded JSON."""


class Session(msgspec.Struct, frozen=True):
    """A session with the agent: its dialect's name and facts (`agents.recorded`), and its lines."""

    dialect: str
    facts: dict[str, Any] = {}
    lines: list[Line] = []
    origin: str = ""
    """The name that marked its encrypted content, if any."""


class Answer(msgspec.Struct, frozen=True):
    """An answer as sent. `sent` has a stream's events: their decoded data, or bytes as sent; None: it is a whole
    `body`.
    """

    status: int = 0
    body: Any = None
    sent: list[Any] | None = None
    final: Any = None
    """The final object of a background response."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True, rename={"line": "request"}):
    """A request as it came. `line`: method and path; `socket`: it was a WebSocket frame."""

    line: str
    headers: dict[str, str] = {}
    body: Any = None
    socket: bool = False


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    """A recording of an agent's program with another client, for tests of its dialect."""

    name: str
    """The name of the capture's file, without the suffix."""
    agent: str
    version: str = ""
    settings: dict[str, Any] = {}
    """The server's settings that matter; of a capture, the program's arguments (`argv`)."""
    sessions: list[Session]


class Cassette(Capture, frozen=True, kw_only=True):
    """One recorded turn."""

    proxy: str = ""
    capabilities: list[str] = []
    after: str = ""
    """The cassette whose session this turn continues, if any."""
    order: int = 1
    """The turn's number in the session, from 1."""
    mcp: list[dict[str, Any]] = []
    """The MCP tools of the turn that this server ran."""
    match: list[str] = []
    """The recording's `--match`, if it was given."""
    request: Request
    content: Content
    answer: Answer

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Returns the MCP calls that the server made, with their outputs."""
        return [line.value for session in self.sessions for line in session.lines if line.kind == "call"]


_HEAD: Final = ("agent", "version", "proxy", "after", "order", "capabilities", "settings", "mcp", "match")


def lines_of(capture: Capture) -> Iterator[bytes | Run]:
    """Yields the file's lines, without line ends, and with runs of similar ones."""
    head = {name: value for name in _HEAD if (value := getattr(capture, name, "")) not in ("", [], {})}
    if head.get("order") == 1:
        del head["order"]
    yield _encode({"cassette": VERSION, **head})
    if isinstance(capture, Cassette):
        yield from _request_lines(capture.request, capture.content)
    known: Sequence[bytes] = ()
    """The deltas of the longest run of the agent: the answer mostly has the same."""
    for session in capture.sessions:
        facts = {"facts": session.facts} if session.facts else {}
        yield _encode(
            {"session": session.dialect, **facts, **({"origin": session.origin} if session.origin else {})}
        )
        for line in _session_lines(session.lines):
            yield line
            if isinstance(line, Run) and len(known) < len(line.texts) <= MAX_KNOWN:
                known = line.texts
    if isinstance(capture, Cassette):
        yield from _answer_lines(capture.answer, known)


def _request_lines(request: Request, content: Content) -> Iterator[bytes]:
    yield msgspec.json.encode(request)
    turn = {name: value for name, value in content.items() if value not in (None, {}, "")}
    tools, messages = turn.pop("tools"), turn.pop("messages")
    yield _encode({"turn": turn})
    yield from (_encode({"tool": each}) for each in tools)
    yield from (_encode({"message": each}) for each in messages)


def _answer_lines(answer: Answer, known: Sequence[bytes]) -> Iterator[bytes | Run]:
    if answer.sent is None:
        yield _encode({"answer": answer.status, "body": answer.body})
    else:
        yield _encode({"answer": answer.status, "stream": len(answer.sent)})
        as_sent = bool(answer.sent) and isinstance(answer.sent[0], bytes)
        sent = answer.sent if as_sent else list(map(msgspec.json.encode, answer.sent))
        yield from _encode_lines("sent", sent, (), known)
    if answer.final is not None:
        yield _encode({"final": answer.final})


def _encode(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value)


def _session_lines(lines: Iterable[Line]) -> Iterator[bytes | Run]:
    for kind, same in itertools.groupby(lines, lambda line: line.kind):
        if kind in BYTES:
            several = list(same)
            times = itertools.chain.from_iterable([line.ms] * len(line.value) for line in several)
            lines_of_all = itertools.chain.from_iterable(line.value for line in several)
            yield from _encode_lines(kind, list(lines_of_all), list(times))
        else:
            yield from (_encode({"ms": line.ms, kind: line.value}) for line in same)


def _encode_lines(
    kind: str, lines: Sequence[bytes], times: Sequence[int], known: Sequence[bytes] = ()
) -> Iterator[bytes | Run]:
    """Yields lines of one kind as written, with their times, if they have some."""
    at = 0
    for found in find_runs(lines, known):
        ms = times[at] if times else None
        if isinstance(found, Run):
            found.times = times[at : at + len(found.texts)]
            at += len(found.texts)
            yield found
        else:
            at += 1
            yield _encode_line(kind, data_of(found) if ms is None else found, ms)


def _encode_line(kind: str, line: bytes, ms: int | None) -> bytes:
    if is_json(line):
        value = msgspec.json.format(line, indent=-1) if b"\n" in line else line
    else:
        as_text = is_utf8(line)
        text = line.decode("utf-8", "replace") if as_text or ms is None else base64.b64encode(line).decode()
        value = msgspec.json.encode(text)
        kind += "" if ms is None else "_text" if as_text else "_bytes"  # what was sent is no JSON: [DONE]
    time = "" if ms is None else f'"ms":{ms},'
    return f'{{{time}"{kind}":'.encode() + value + b"}"


def data_of(event: bytes) -> bytes:
    """Returns the data of a stream's event; of other streams and of WebSockets, the whole line."""
    return event if event.startswith(b"{") else event.partition(b"data: ")[2] or event


def text_of(lines: Iterable[bytes | Run]) -> bytes:
    """Joins written lines, without the last line end."""
    return b"\n".join(line if isinstance(line, bytes) else line.lines() for line in lines)


def write(path: Path, text: bytes) -> None:
    """Writes a cassette's file at once, so that no reader sees a part. Raises `OSError`."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    left = memoryview(b'%b\n{"end":%d}\n' % (text, text.count(b"\n") + 1))
    descriptor = create(new)  # `replace_file`, or a file object, takes several times as long
    try:
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def read(path: Path) -> Cassette:
    """Reads a cassette. Raises `CassetteError` with file and line."""
    return parse(_read_bytes(path), path)


def read_capture(path: Path) -> Capture:
    """Reads a capture, or a cassette as one. Raises `CassetteError`, as `read` does."""
    return _make(_parse_lines(_read_bytes(path), path)[0], path, Capture)


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise CassetteError(
                f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB. Record it anew, in parts."
            )
        return path.read_bytes()
    except OSError as error:
        raise CassetteError(f"{path} cannot be read: {error.strerror}.") from error


class _ParsedLines(msgspec.Struct):
    """The lines that have been read so far."""

    head: dict[str, Any] = {}
    request: Request | None = None
    content: Content | None = None
    sessions: list[Session] = []
    answer: Answer | None = None
    sent: list[bytes] = []


def parse(data: bytes, path: Path) -> Cassette:
    """Parses a cassette's bytes. `path` is for its name, and for errors. Raises `CassetteError`."""
    return _make_cassette(*_parse_lines(data, path), path)


def _parse_lines(data: bytes, path: Path) -> tuple[_ParsedLines, int]:
    """Parses a file's lines; also returns their number."""
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    parsed = _ParsedLines()
    ended, wrong = False, ""
    for number, line in enumerate(lines, 1):
        if ended:
            raise CassetteError(f"{path}, line {number}: there is a line after the end. Remove it.")
        try:
            ended = _take(parsed, line, number - 1)
        except _WrongLineError as error:
            wrong = f"{error}."
        except UNREADABLE as error:
            cut = number == len(lines) and not data.endswith(b"\n")
            wrong = f"the file is half-written. {_AGAIN}" if cut else f"{error}. {_CORRECT}."
        except (KeyError, TypeError, AttributeError) as error:
            wrong = f"it lacks {error}. {_CORRECT}."
        if wrong:
            raise CassetteError(f"{path}, line {number}: {wrong}")
    if not ended:
        raise CassetteError(f"{path}, line {len(lines)}: the file is half-written: it has no end. {_AGAIN}")
    return parsed, len(lines)


_AGAIN: Final = "Remove it, and record it anew."
_CORRECT: Final = "Correct the line, or record it anew"


class _WrongLineError(Exception):
    """A line is not allowed at its place. The text says why, without a full stop."""


def _take(parsed: _ParsedLines, line: bytes, before: int) -> bool:
    """Reads a line that follows `before` others. Returns whether it is the last."""
    value = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    names = [name for name in value if name != "ms"]
    kind = names[0] if names else ""
    if not before:
        _take_head(parsed, kind, value)
    elif kind in SESSION_KINDS and "ms" in value:
        if not parsed.sessions:
            raise _WrongLineError(f"there is no session before it. {_CORRECT}")
        ms = msgspec.json.decode(value["ms"], type=int)
        parsed.sessions[-1].lines.append(Line(ms, kind.partition("_")[0], _session_value(kind, value[kind])))
    elif kind == "next":
        _take_next(parsed, value)
    elif kind == "sent" and parsed.answer is not None and parsed.answer.sent is not None:
        parsed.sent.append(bytes(value["sent"]))
    elif kind == "end":
        if msgspec.json.decode(value[kind]) != before:
            raise _WrongLineError(
                f"it has {before} lines before the end, and should have {bytes(value[kind]).decode()}. {_AGAIN[:-1]}"
            )
        return True
    else:
        _take_other(parsed, kind, {name: msgspec.json.decode(each) for name, each in value.items()})
    return False


def _session_value(kind: str, value: msgspec.Raw) -> Any:
    base, _, form = kind.partition("_")
    if base not in BYTES:
        return msgspec.json.decode(value)
    if not form:
        return [bytes(value)]
    text = msgspec.json.decode(value, type=str)
    return [text.encode() if form == "text" else base64.b64decode(text)]


def _take_next(parsed: _ParsedLines, value: dict[str, msgspec.Raw]) -> None:
    """Reads a line that is written as its difference from the one before."""
    pieces = msgspec.json.decode(value["next"], type=dict[str, msgspec.Raw])
    lines = parsed.sessions[-1].lines if "ms" in value and parsed.sessions else []
    known = lines[-1].value if lines and lines[-1].kind in BYTES else []
    if "ms" not in value:
        known = parsed.sent
    if not known:
        raise _WrongLineError(f"no line before it has a text that it could change. {_CORRECT}")
    line: bytes = known[-1]
    for name, text in pieces.items():
        try:
            line = with_text(line, msgspec.json.encode(name), bytes(text))
        except ValueError as error:
            raise _WrongLineError(f"{error}. {_CORRECT}") from None
    if "ms" in value:
        lines.append(Line(msgspec.json.decode(value["ms"], type=int), lines[-1].kind, [line]))
    else:
        parsed.sent.append(line)


def _take_head(parsed: _ParsedLines, kind: str, value: dict[str, msgspec.Raw]) -> None:
    if kind != "cassette":
        raise _WrongLineError(
            "it is no cassette: its first line does not begin with `cassette`. Remove it from the folder"
        )
    version = msgspec.json.decode(value["cassette"])
    if not isinstance(version, int) or version > VERSION:
        raise _WrongLineError(
            f"the cassette has format {version}, and this codex-proxy reads up to {VERSION}. Update codex-proxy"
        )
    parsed.head = {name: msgspec.json.decode(each) for name, each in value.items()}


def _take_other(parsed: _ParsedLines, kind: str, value: dict[str, Any]) -> None:
    if kind == "request":
        parsed.request = msgspec.convert(value, Request)
    elif kind == "turn":
        turn: dict[str, Any] = value["turn"]
        empty: Content = {
            "mode": "agent",
            "format": "text",
            "model": "",
            "tool_choice": "auto",
            "effort": None,
        }
        parsed.content = {**empty, "sampling": {}, "tools": [], "messages": [], **turn}
    elif kind in ("tool", "message"):
        if parsed.content is None:
            raise _WrongLineError(f"there is no `turn` before it. {_CORRECT}")
        parsed.content[f"{kind}s"].append(value[kind])
    elif kind == "session":
        parsed.sessions.append(Session(value["session"], value.get("facts", {}), [], value.get("origin", "")))
    elif kind == "answer":
        stream = value.get("stream")
        parsed.answer = Answer(value["answer"], value.get("body"), None if stream is None else [])
    elif kind == "final" and parsed.answer is not None:
        parsed.answer = msgspec.structs.replace(parsed.answer, final=value["final"])
    else:
        raise _WrongLineError(
            f"a line that begins with `{kind}` is not known here. Correct it, or record it anew"
        )


def _make_cassette(parsed: _ParsedLines, number: int, path: Path) -> Cassette:
    missing = [name for name in ("request", "content", "answer") if getattr(parsed, name) is None]
    if missing:
        word = "turn" if missing[0] == "content" else missing[0]
        raise CassetteError(f"{path}, line {number}: there is no `{word}`. {_AGAIN}")
    assert parsed.answer is not None
    if parsed.answer.sent is not None:
        parsed.answer.sent.extend(msgspec.json.decode(each) for each in parsed.sent)
    return _make(parsed, path, Cassette)


C = TypeVar("C", bound=Capture)


def _make(parsed: _ParsedLines, path: Path, kind: type[C]) -> C:
    found: dict[str, Any] = {name: parsed.head[name] for name in _HEAD if name in parsed.head}
    found |= {"name": path.name.removesuffix(SUFFIX), "sessions": parsed.sessions}
    found |= {"request": parsed.request, "content": parsed.content, "answer": parsed.answer}
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise CassetteError(f"{path}, line 1: {error}. Correct the line, or record it anew.") from None
