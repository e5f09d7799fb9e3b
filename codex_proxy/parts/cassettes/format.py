"""Reads and writes the file of a cassette. `docs/cassettes.md` lists its lines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.core.json_values import UNREADABLE, is_json
from codex_proxy.files.private import create, read_regular
from codex_proxy.parts.cassettes.content import Content, format_content
from codex_proxy.parts.cassettes.file_changes import CheckedLines, FileLine
from codex_proxy.parts.cassettes.file_lines import (
    LINE_KINDS,
    Line,
    check_answer,
    check_head,
    check_message,
    check_request,
    check_tool,
    check_turn,
    encode_line,
    group_similar_lines,
    line_of,
    with_text,
)
from codex_proxy.parts.cassettes.settings import CassetteError

VERSION: Final = 2
FILES_VERSION: Final = 3
"""The version of a file with lines of changed files, which is otherwise like `VERSION`."""
SUFFIX: Final = ".jsonl"
MAX_FILE_BYTES: Final = 256 << 20
SLICE_BYTES: Final = 1 << 18
"""About how many bytes of a file are made at once."""
EMPTY_CONTENT: Final[Content] = {
    "mode": "agent",
    "format": "text",
    "model": "",
    "tool_choice": "auto",
    "effort": None,
    "sampling": {},
}
"""The content of a turn as far as a cassette does not say it, without tools and messages."""


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


class CassetteHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first line of a file."""

    cassette: int
    """The version of the format."""
    agent: str
    version: str = ""
    proxy: str = ""
    after: str = ""
    """The cassette whose session this turn continues, if any."""
    order: int = 1
    """The turn's number in the session, from 1."""
    capabilities: list[str] = []
    settings: dict[str, Any] = {}
    """The server's settings that matter."""
    mcp: list[dict[str, Any]] = []
    """The MCP tools of the turn that this server ran."""
    match: list[str] = []
    """The recording's `--match`, if it was given."""


class Cassette(CassetteHead, frozen=True, kw_only=True):
    """One recorded turn."""

    name: str
    """The name of the file, without the suffix."""
    request: Request
    content: Content
    answer: Answer
    lines: list[Line] = []
    """What was said in the turn."""

    @property
    def file_lines(self) -> list[FileLine]:
        """Returns what the turn has done to files."""
        return [line.value for line in self.lines if line.kind == "file"]

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Returns the MCP calls that the server made, with their outputs."""
        return [line.value for line in self.lines if line.kind == "call"]


_FILE_LINE: Final = re.compile(rb'\{"ms":[0-9]+,"file":')


def text_of(
    cassette: Cassette, scrub: Callable[[bytes], bytes] = bytes, replace_ids: Callable[[bytes], bytes] = bytes
) -> Iterator[bytes]:
    """Yields the text of a file in slices, so that other threads can run between. `scrub` returns a text as it is
    written, without secrets; a secret in several lines makes them one. `replace_ids` returns lines as they are written:
    after `scrub`, which would not find a secret of which a part looked like an id.
    """
    count, some, size = 0, list[bytes](), 0
    for line in _short_lines(cassette, scrub):
        count += 1
        is_file = _FILE_LINE.match(line) is not None  # whose contents keep what looks like an id
        if some and (is_file or size >= SLICE_BYTES):
            yield replace_ids(scrub(b"\n".join(some))) + b"\n"
            some, size = [], 0
        if is_file:
            yield line + b"\n"  # without secrets by now
        else:
            some.append(line)
            size += len(line)
    yield replace_ids(scrub(b"\n".join([*some, b'{"end":%d}' % count]))) + b"\n"


def _short_lines(cassette: Cassette, scrub: Callable[[bytes], bytes]) -> Iterator[bytes]:
    for group in group_similar_lines(lines_of(cassette)):
        text = group.text()
        scrubbed = scrub(text) if text else text
        yield from group.lines() if scrubbed == text else (group.with_text(scrubbed),)


def lines_of(cassette: Cassette) -> Iterator[bytes]:
    """Yields the lines of the file, none of them shortened, without the last one, which has their number."""
    head = {name: getattr(cassette, name) for name in CassetteHead.__struct_fields__}
    version = FILES_VERSION if cassette.file_lines else VERSION
    yield encode(CassetteHead(**head | {"cassette": version}))
    yield encode(cassette.request)
    turn = {name: value for name, value in cassette.content.items() if value not in (None, {}, "")}
    tools, messages = turn.pop("tools"), turn.pop("messages")
    yield encode({"turn": turn})
    yield from (encode({"tool": each}) for each in tools)
    yield from (encode({"message": each}) for each in messages)
    for line in cassette.lines:
        yield from encode_line(line)
    yield from _answer_lines(cassette.answer)


encode: Final = msgspec.json.Encoder().encode


def _answer_lines(answer: Answer) -> Iterator[bytes]:
    if answer.sent is None:
        yield encode({"answer": answer.status, "body": answer.body})
    else:
        yield encode({"answer": answer.status, "stream": len(answer.sent)})
        yield from (encode({"sent": each}) for each in answer.sent)
    if answer.final is not None:
        yield encode({"final": answer.final})


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


def read(path: Path) -> Cassette:
    """Reads a cassette. Raises `CassetteError` with file and line."""
    try:
        return parse(read_regular(path, MAX_FILE_BYTES), path)
    except OverflowError:
        raise CassetteError(
            f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB. Record it anew, in parts."
        ) from None
    except OSError as error:
        raise CassetteError(
            f"{path} cannot be read: {error.strerror}. Remove it from the folder, or make it readable."
        ) from error


def parse(data: bytes, path: Path) -> Cassette:
    """Parses a cassette's bytes. `path` is for its name, and for errors. Raises `CassetteError`."""
    found = _parse_lines(data, path)
    request, content, answer = found.request, found.content, found.answer
    if request is None or content is None or answer is None:
        missing = "request" if request is None else "turn" if content is None else "answer"
        raise CassetteError(f"{path}, line {found.count}: there is no `{missing}`. {_RECORD_ANEW}")
    try:
        head = found.head
        assert head is not None
        check_head(head.settings, head.mcp, head.match)
    except (ValueError, TypeError) as error:
        raise CassetteError(f"{path}, line 1: {error}. {_CORRECT_THE_LINE}") from error
    return Cassette(
        **msgspec.structs.asdict(head),
        name=path.name.removesuffix(SUFFIX),
        request=request,
        content=content,
        answer=answer,
        lines=found.lines,
    )


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

    count: int = 0
    head: CassetteHead | None = None
    request: Request | None = None
    content: Content | None = None
    lines: list[Line] = []
    has_session: bool = False
    files: CheckedLines = msgspec.field(default_factory=CheckedLines)
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
        elif kind == "sent" or (kind in LINE_KINDS and "ms" in value):
            self._take_line(kind, bytes(value[kind]), value)
        elif kind == "request":
            self.request = msgspec.json.decode(line, type=Request)
            check_request(self.request.line, self.request.headers)
        else:
            self._take_json(kind, {name: msgspec.json.decode(each) for name, each in value.items()})

    def _take_line(self, kind: str, content: bytes, value: dict[str, msgspec.Raw]) -> None:
        """Takes a line of the turn or of a stream, which a `next` line may follow."""
        self.last_line, self.last_kind = content, kind
        if kind == "sent":
            if self.answer is None or self.answer.sent is None:
                raise _WrongLineError(f"there is no stream before it. {_CORRECT_THE_LINE}")
            self.answer.sent.append(msgspec.json.decode(content))
        elif self.has_session or kind in ("session", "call"):
            self.has_session = self.has_session or kind == "session"
            line = line_of(kind, content, value["ms"])
            if kind == "file":
                try:
                    self.files.add(line.value)
                except ValueError as error:
                    raise _WrongLineError(f"{error}. {_CORRECT_THE_LINE}") from None
            self.lines.append(line)
        else:
            raise _WrongLineError(f"there is no `session` before it. {_CORRECT_THE_LINE}")

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
    if version == 1:
        raise _WrongLineError(
            "the cassette has format 1, which no release after 0.3 reads. Convert it with `codex-proxy cassettes "
            "update` of release 0.3, or record it anew."
        )
    if version not in (VERSION, FILES_VERSION) or not isinstance(version, int):
        raise _WrongLineError(
            f"the cassette has format {version}, and this codex-proxy reads up to {FILES_VERSION}. Update codex-proxy."
        )
    return msgspec.json.decode(line, type=CassetteHead)


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
