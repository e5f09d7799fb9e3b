"""The lines of a cassette: checks their content, so that what is replayed later has the types that a recording
writes; and shortens a line that differs from the one before in one string alone, such as the next delta, to
that string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from codex_proxy.core.event_rows import StoredEvent, events_of, stored_events
from codex_proxy.core.events import (
    AccountLimitsReported,
    AnnotationAdded,
    AnswerDetails,
    Event,
    HostedEvent,
    ItemStarted,
    RawItem,
    ServedBy,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Activity, ImagePart, McpOrigin, McpTools, Part, TextPart, ToolKind
from codex_proxy.core.json_values import encode_json
from codex_proxy.parts.cassettes.content import CONTENT_FIELDS, common_prefix_length
from codex_proxy.parts.cassettes.file_changes import FileLine, check_file_line
from codex_proxy.parts.cassettes.settings import RELEVANT_SETTINGS
from codex_proxy.surfaces.responses.output import HOSTED_TYPES

REQUEST_LINE: Final = re.compile(r"(?:POST|GET) /[!-~]{0,2000}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_HOSTED_EVENT: Final = re.compile(
    rf"(?:response\.(?:{'|'.join(sorted(HOSTED_TYPES))})(?:_[a-z]+)?\.[a-z_]{{1,100}})?"
)
"""Matches the type of an event of a tool that the model server runs; empty for the item as it is now."""
_NAME: Final = re.compile(r"[ -~]{0,200}")
_VALUE: Final = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]{0,20000}")


class Line(msgspec.Struct, frozen=True, gc=False):
    """What was said in a turn. `value`: of `session` how the turn has begun on it (`begin`, `resume`, `reopen`), of
    `events` the agent's events, of `reply` a `ReplyLine`, of `call` an MCP call as JSON, of `failed` a `Failure`, of
    `file` a `FileLine`.
    """

    ms: int
    kind: str
    value: Any


class _Turn(msgspec.Struct, frozen=True):
    mode: Literal["agent", "model"] = "agent"
    format: str | dict[str, Any] | bool = "text"
    model: str = ""
    tool_choice: str | dict[str, Any] = "auto"
    effort: str | None = None
    sampling: dict[str, Any] = {}


class _Tool(msgspec.Struct, frozen=True):
    name: str
    kind: ToolKind = "function"
    description: str = ""
    parameters: Any = None


class _Said(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system", "developer"]
    text: str
    images: list[str] = []
    message: str = ""


class _Call(msgspec.Struct, frozen=True):
    call: int
    tool: str
    arguments: Any


class _Output(msgspec.Struct, frozen=True):
    output: int
    text: str
    images: list[str] = []


class _Part(msgspec.Struct, frozen=True, omit_defaults=True):
    text: str | msgspec.UnsetType = msgspec.UNSET
    url: str | msgspec.UnsetType = msgspec.UNSET
    detail: str | None = None

    def __post_init__(self) -> None:
        if (self.text is msgspec.UNSET) == (self.url is msgspec.UNSET):
            raise ValueError("a part has either a text or a url")


class ReplyLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """This server's answer to a request of the agent: a call's output, or (without `parts`) a decision."""

    to: str
    parts: list[_Part] | None = None
    success: bool = True
    approve: bool = False


class _ToolOutput(msgspec.Struct, frozen=True):
    parts: list[_Part]
    text: str
    failed: bool = False


class McpCallLine(msgspec.Struct, frozen=True):
    tool: str
    arguments: str
    output: _ToolOutput


class _McpTool(msgspec.Struct, frozen=True):
    name: str
    mcp: McpOrigin
    description: str = ""
    parameters: Any = None
    listed: dict[str, Any] | None = None


Status = Annotated[int, msgspec.Meta(ge=100, le=599)]
_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=7 * 24 * 3_600_000)]


def check_head(settings: Mapping[str, Any], mcp: list[Any], match: list[str]) -> None:
    """Checks the settings, MCP tools and `match` of a head. Raises `ValueError`."""
    for name in settings:
        if name not in RELEVANT_SETTINGS:
            raise ValueError(f"`{name[:100]}` is no setting of a recording")
    if settings:
        from codex_proxy.settings.fields import Settings

        Settings.model_validate({**Settings.model_construct().model_dump(), **settings})
    for tool in mcp:
        msgspec.convert(tool, _McpTool)
    for name in match:
        if name not in CONTENT_FIELDS:
            raise ValueError(f"`{name[:100]}` is no field to match")


def check_request(line: str, headers: Mapping[str, str]) -> None:
    """Checks where a request goes. Raises `ValueError`."""
    if REQUEST_LINE.fullmatch(line) is None:
        raise ValueError("a request begins with `POST /` or `GET /`")
    for name, value in headers.items():
        if _HEADER.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise ValueError("a header has a name and a value of one line")


def check_turn(turn: Any) -> None:
    msgspec.convert(turn, _Turn)


def check_tool(tool: Any) -> None:
    msgspec.convert(tool, _Tool)


def check_message(message: Any) -> None:
    fields = msgspec.convert(message, dict[str, Any])
    msgspec.convert(fields, _Said if "role" in fields else _Call if "call" in fields else _Output)


def check_answer(status: Any) -> None:
    msgspec.convert(status, Status)


_DECODE: Final = {
    "session": msgspec.json.Decoder(Literal["begin", "resume", "reopen"]),
    "events": msgspec.json.Decoder(list[StoredEvent]),
    "reply": msgspec.json.Decoder(ReplyLine),
    "call": msgspec.json.Decoder(McpCallLine),
    "failed": msgspec.json.Decoder(Failure),
    "file": msgspec.json.Decoder(FileLine),
}
"""The kinds of lines with what was said in a turn, and their decoders."""
LINE_KINDS: Final = frozenset(_DECODE)


def line_of(kind: str, content: bytes, ms: msgspec.Raw) -> Line:
    """Reads a line of what was said. Raises `ValueError` or another error of decoding."""
    if b"\r" in content:  # within JSON it would end a line of a client's stream
        content = msgspec.json.format(content, indent=-1)
    value: Any = _DECODE[kind].decode(content)
    if kind == "events":
        value = events_of(value)
        for event in value:
            _check_event(event)
    elif kind == "call":
        value = msgspec.json.decode(content)
    elif kind == "file":
        check_file_line(value)
    return Line(msgspec.json.decode(ms, type=_Milliseconds), kind, value)


def _check_event(event: Event) -> None:
    """Checks what an event's type leaves open: the types of its JSON, and texts for headers. Raises `ValueError`."""
    if isinstance(event, ServedBy):
        if not all(map(_NAME.fullmatch, (event.upstream, *event.changed))):
            raise ValueError("the names of an upstream and of fields are one line of ASCII")
    elif isinstance(event, RawItem):
        is_call = msgspec.json.decode(event.json, type=_Raw).type == "function_call"
        if is_call:
            msgspec.json.decode(event.json, type=_RawCall)
    elif isinstance(event, AnnotationAdded | AccountLimitsReported | HostedEvent):
        msgspec.json.decode(event.json, type=dict[str, Any])
        if isinstance(event, HostedEvent) and _HOSTED_EVENT.fullmatch(event.type) is None:
            raise ValueError("an event of a hosted tool has the type of one")
    elif isinstance(event, ItemStarted) and isinstance(event.item, McpTools):
        msgspec.json.decode(event.item.tools, type=list[dict[str, Any]])
    elif isinstance(event, ItemStarted) and isinstance(event.item, Activity):
        if event.item.hosted and event.item.hosted not in HOSTED_TYPES:
            raise ValueError(f"there is no hosted item {event.item.hosted[:100]!r}")
    elif isinstance(event, AnswerDetails):
        msgspec.json.decode(event.annotations or b"[]", type=list[dict[str, Any]])
        msgspec.convert(event.tokens, _FurtherTokens)
        msgspec.json.decode(encode_json(event.fields), type=_AnswerFields)


class _Raw(msgspec.Struct, frozen=True):
    """The fields that are read of an item of the model."""

    type: str = ""
    id: str | None = None
    status: str | None = None
    role: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class _FurtherTokens(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt_tokens_details: dict[str, int] = {}
    completion_tokens_details: dict[str, int] = {}


class _AnswerFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    service_tier: str | None = None
    system_fingerprint: str | None = None


class _RawCall(msgspec.Struct, frozen=True):
    name: str
    call_id: str
    arguments: str


def encode_line(line: Line) -> Iterator[bytes]:
    """Yields a line as JSON. Each event is a line of its own: how they came together differs in each recording."""
    if line.kind != "events":
        yield encode_json({"ms": line.ms, line.kind: line.value})
        return
    for event in line.value:
        written = encode_json({"ms": line.ms, "events": stored_events((event,))})
        # JSON of an agent may have several lines.
        yield msgspec.json.format(written, indent=-1) if b"\n" in written else written


def parts_of(parts: Sequence[Mapping[str, Any]]) -> tuple[Part, ...]:
    """Returns an output's parts from their JSON."""
    return tuple(
        TextPart(part["text"]) if "text" in part else ImagePart(part["url"], part.get("detail"))
        for part in parts
    )


_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""Matches the JSON of a string, without its quotes."""
_STEP: Final = 1 << 20
"""Maximum bytes of a string that are searched without letting other threads run."""
_MIN_COMMON_BYTES: Final = 27
"""The fewest bytes that a line has in common with the whole one, to be shortened."""
MAX_COMMON_BYTES: Final = 1 << 12
"""The most of them, so that a small file has no large lines."""
_KIND: Final = re.compile(rb'"(?:sent|from|to)":\{|"events":\[\{')
"""Matches the kind of a line that may be shortened; `from` and `to` are those of captures."""


class SimilarLines:
    """A whole line, and the lines after it that differ from it in their time and in one text alone."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._shape: _Shape | None = None
        self._texts: list[tuple[bytes, bytes]] = []
        """The time and the text of each line after the whole one; texts are JSON without quotes."""

    def add(self, line: bytes) -> bool:
        """Adds the next line if it differs from the whole one in its time and one text alone, in the same one as the
        lines between. Returns whether it was added.
        """
        shape = self._shape or _shape_of(self._line, line)
        found = None if shape is None else shape.split(line)
        if found is None:
            return False
        self._shape = shape
        self._texts.append(found)
        return True

    def lines(self) -> Iterator[bytes]:
        """Yields the lines as they are written: the first one whole, and of each other only its time and its text."""
        yield self._line
        name = b"" if self._shape is None else self._shape.name
        yield from (b'{%b"next":{%b:"%b"}}' % (time, name, text) for time, text in self._texts)

    def text(self) -> bytes:
        """Returns the texts in which the lines differ, joined, as JSON without quotes. Empty for a single line."""
        first = None if self._shape is None else self._shape.split(self._line)
        return b"".join([text for _, text in (*([first] if first else []), *self._texts)])

    def with_text(self, text: bytes) -> bytes:
        """Returns the whole line with `text` (JSON without quotes) in place of the text in which the lines differ; a
        single line unchanged.
        """
        return self._line if self._shape is None else with_text(self._line, self._shape.name, b'"%b"' % text)


def group_similar_lines(lines: Iterable[bytes]) -> Iterator[SimilarLines]:
    """Yields the lines of a cassette in groups of similar ones."""
    group: SimilarLines | None = None
    for line in lines:
        if group is None or not group.add(line):
            if group is not None:
                yield group
            group = SimilarLines(line)
    if group is not None:
        yield group


class _Shape(msgspec.Struct, frozen=True):
    """The common part of lines that differ only in their times and in one text."""

    head: bytes
    """All between the time and the text."""
    tail: bytes
    """All after the text."""
    name: bytes
    """The name of the field with the text, as JSON."""

    def split(self, line: bytes) -> tuple[bytes, bytes] | None:
        """Returns the time and the text of a line of this shape, as JSON; None of other lines."""
        at = _end_of_time(line)
        start, end = at + len(self.head), len(line) - len(self.tail)
        if start > end or not (line.startswith(self.head, at) and line.endswith(self.tail)):
            return None
        text = line[start:end]
        if (b'"' in text or b"\\" in text) and _end_of_string(text, 0) < len(text):
            return None
        return line[1:at], text


def _end_of_time(line: bytes) -> int:
    return line.find(b",") + 1 if line.startswith(b'{"ms":') else 1


def _shape_of(before: bytes, line: bytes) -> _Shape | None:
    """Returns the shape of two lines that differ in their times and in one text alone; None of others."""
    before, line = before[_end_of_time(before) :], line[_end_of_time(line) :]
    if before[:_MIN_COMMON_BYTES] != line[:_MIN_COMMON_BYTES] or _KIND.match(line) is None:
        return None
    colon = line.rfind(b'":"', 0, common_prefix_length(before, line))
    name = line[line.rfind(b'"', 0, colon) : colon + 1] if colon > 0 else b""
    if len(name) < 3 or line[colon - 1 : colon] == b"\\" or name[-3:-1].lower() == b"id":
        return None  # ids are replaced, so that each needs its own line
    start = colon + 3
    tail = line[_end_of_string(line, start) :]
    if not tail.startswith(b'"') or before[_end_of_string(before, start) :] != tail or name + b':"' in tail:
        return None
    return _Shape(line[:start], tail, name) if start + len(tail) <= MAX_COMMON_BYTES else None


def with_text(line: bytes, name: bytes, text: bytes) -> bytes:
    """Returns the line with another text (as JSON) in its last field of this name. Raises `ValueError` without one,
    or if the line has more than `MAX_COMMON_BYTES` without the text.
    """
    mark = name + b':"'
    if mark not in line:
        line = msgspec.json.format(line, indent=-1)  # somebody has written it with blanks
    start = line.rfind(mark)
    if start < 0:
        raise ValueError(f"the line before has no text {name.decode()}")
    start += len(mark)
    end = _end_of_string(line, start)
    if len(line) - (end - start) > MAX_COMMON_BYTES:
        raise ValueError(f"the line before has more than {MAX_COMMON_BYTES >> 10} KiB beside the text")
    return line[: start - 1] + text + line[end + 1 :]


def _end_of_string(line: bytes, start: int) -> int:
    end = start
    while (found := _STRING.match(line, end, end + _STEP)) is not None and found.end() > end:
        end = found.end()
    return end
