"""The messages of an HTTP exchange (a `Head`, bytes of the body, an `End`), and the reader of the body: server-sent
events, or one JSON object; and the token counts in it. Of events only `data:` lines count, and `event: error`; they are
read by the rules of the HTML standard, but whole JSON in a line is an event, and the last event may lack its blank
line. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Failure
from codex_proxy.core.json_values import UNREADABLE, count_at, is_too_costly, value_at

_NAME: Final = b'"usage"'
# The quantifiers give nothing back: without its end an object is left after one look.
_OBJECT: Final = re.compile(rb"\s*+:\s*+(\{[^{}]*+(?:\{[^{}]*+\}[^{}]*+)*+\})")
_BEGUN: Final = re.compile(rb"\s*+(?::\s*+(?:\{.*)?)?", re.DOTALL)
_MAX_HELD: Final = 1024
"""Maximum bytes of an unfinished `usage` object; 300 are usual."""


def usage_of(given: Any) -> Usage | None:
    """Reads Chat Completions' or Responses' `usage`; None if it does not count the input."""
    if not isinstance(given, dict):
        return None  # most chunks
    for input, output in (("prompt", "completion"), ("input", "output")):
        count = count_at(given, f"{input}_tokens")
        if count is not None:
            cached = count_at(given, f"{input}_tokens_details", "cached_tokens")
            written = count_at(given, f"{input}_tokens_details", "cache_write_tokens")
            return Usage(
                input=count,
                cached=cached or count_at(given, "prompt_cache_hit_tokens") or 0,
                output=count_at(given, f"{output}_tokens") or 0,
                reasoning=count_at(given, f"{output}_tokens_details", "reasoning_tokens") or 0,
                cache_written=written or count_at(given, "cache_creation_input_tokens") or 0,
            )
    return None


class PassedUsage:
    """Finds the tokens in an answer of unknown form. `usage` is the last count found."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._held = b""

    def feed(self, chunk: bytes) -> None:
        data, end = self._held + chunk, 0
        at = data.find(_NAME)
        while at >= 0:
            end = at + len(_NAME)
            # Within a text the quote in front has a backslash.
            found = None if data[at - 1 : at] == b"\\" else _OBJECT.match(data, end)
            if found is not None:
                end = found.end()
                self._read(found[1])
            elif len(data) - at <= _MAX_HELD and _BEGUN.fullmatch(data, end):
                break  # the rest may come
            at = data.find(_NAME, end)
        self._held = data[max(end, len(data) - len(_NAME)) :] if at < 0 else data[max(at - 1, 0) :]

    def _read(self, json: bytes) -> None:
        if is_too_costly(json):
            return
        try:
            given = msgspec.json.decode(json)
        except UNREADABLE:
            return
        total = count_at(given, "total_tokens")  # all that servers tell of a ranking
        found = usage_of(given)
        self.usage = found or (self.usage if total is None else Usage(input=total))


MAX_LINE_BYTES: Final = 16 << 20
"""Maximum bytes of one event or JSON answer. The longest have base64 audio or images."""
MAX_ANSWER_BYTES: Final = 8 * MAX_LINE_BYTES


class Head(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str] = {}
    """Values by names in lower case."""


class End(msgspec.Struct, frozen=True):
    """The last message of every exchange."""

    failure: Failure | None = None
    """Why the answer is incomplete, if so."""


Message: TypeAlias = Head | bytes | End


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream. `value`: the decoded JSON of a `chunk` or `error`."""

    kind: Literal["chunk", "error", "done", "no_json", "no_answer", "too_long"]
    """`done`: `[DONE]`; `no_json`: cannot be decoded, or is no object; `no_answer`: neither a stream nor a JSON object;
    `too_long`: a limit is exceeded, and no events follow.
    """
    value: Any = None
    is_lenient: bool = False
    """Whether the JSON has something that strict readers refuse, such as NaN."""


_DONE: Final = StreamEvent("done")
BOM: Final = b"\xef\xbb\xbf"
_NO_CHUNK: Final = re.compile(rb'[:"\[\d-]|null|true|false|ping|pong|keep-?alive|heartbeat|$', re.IGNORECASE)
_SPACE: Final = b" \t\r\n" + BOM
_FIELDS: Final = (b":", b"data", b"event", b"id", b"retry")


class AnswerReader:
    """Reads one answer's body. Call `feed` with each chunk, then `close`. Nothing is raised."""

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        self._max_line = max_line
        self._form: Literal["unknown", "events", "json", "neither"] = "unknown"
        self._line_parts: list[bytes] = []
        """The parts of an incomplete line."""
        self._line_size = 0
        self._newlines = Newlines()
        self._data: list[bytes] = []
        """The lines of an event whose first one is no JSON."""
        self._body: list[bytes] = []
        self._size = 0
        self._event = b""
        """The name of the next event."""
        self._has_events = False
        self._strange = False
        """Whether a line is in no format of a stream's."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        if self._form == "unknown":
            found = self._read_first(chunk)
            if found:
                return found
        if self._form == "events" and (events := self._lines(chunk)):
            self._size = 0
            self._has_events = True
            return events
        self._size += len(chunk)
        if self._size > self._max_line and self._form != "neither":
            self._form = "neither"
            self._body.clear()
            return [StreamEvent("too_long")]
        if self._form == "json":
            self._body.append(chunk)
        return []

    def close(self) -> list[StreamEvent]:
        """Returns the JSON object, or the last event if only its newline is missing. Drops a line that was cut off."""
        if self._form == "events":
            rest = b"".join(self._line_parts)
            events = [*self._line(rest), *self._event_of_lines()] if rest else self._event_of_lines()
            # What cannot be read then is a line that was cut off.
            events = [event for event in events if event.kind != "no_json"]
            is_text = self._strange and not (events or self._has_events)
            return [StreamEvent("no_answer")] if is_text else events
        if self._form != "json":
            return []
        body = b"".join(self._body)
        event: StreamEvent | None = decode_event(body, "chunk")
        if event is not None and event.kind == "no_json":
            event = unreadable_body(event, body)
        return [] if event is None else [event]

    def _read_first(self, chunk: bytes) -> list[StreamEvent]:
        """Detects the format by the first character, since content types are often wrong. Returns `no_answer` for an
        unknown one.
        """
        first = chunk.lstrip(_SPACE)[:1]
        if not first:
            return []
        self._form = "json" if first in (b"{", b"[") else "events"
        if first == b"<":
            self._form = "neither"
            return [StreamEvent("no_answer")]
        return []

    def _lines(self, chunk: bytes) -> list[StreamEvent]:
        chunk = self._newlines.feed(chunk)
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._line_parts:
            self._line_parts.append(lines[0])
            lines[0] = b"".join(self._line_parts)
            self._line_parts.clear()
            self._line_size = 0
        events: list[StreamEvent] = []
        for line in lines:
            if len(line) > self._max_line:
                return self._too_long(events)
            if line:
                events += self._line(line)
            elif self._data:
                events += self._event_of_lines()
        if rest:
            self._line_parts.append(rest)
            self._line_size += len(rest)
            if self._line_size > self._max_line:
                return self._too_long(events)
        return events

    def _too_long(self, events: list[StreamEvent]) -> list[StreamEvent]:
        self._form = "neither"
        self._line_parts.clear()
        self._data.clear()
        return [*events, StreamEvent("too_long")]

    def _line(self, line: bytes) -> Sequence[StreamEvent]:
        """Reads a line. Whole JSON is an event at once, without its blank line."""
        line = line.removeprefix(BOM)
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if self._data:
                self._data.append(data)
                return ()
            kind: Literal["chunk", "error"] = "error" if self._event == b"error" else "chunk"
            if data == b"[DONE]":
                self._event = b""
                return (_DONE,)
            if not data:
                return ()
            event = decode_event(data, kind)
            if event.kind == "no_json":
                self._data.append(data)
                return ()
            self._event = b""
            return (event,)
        if line.startswith(b"event:"):
            self._event = line[6:].strip()
        elif (error := error_in_line(line)) is not None:
            return (error,)
        elif not is_of_stream(line):
            self._strange = True
        return ()

    def _event_of_lines(self) -> list[StreamEvent]:
        """Returns the event of several lines; of lines that are no JSON together, those that are it alone."""
        lines, self._data = self._data, []
        name, self._event = self._event, b""
        if not lines:
            return []
        if name == b"error" and all(decode_event(line, "chunk").kind == "no_json" for line in lines):
            return [StreamEvent("error", b"\n".join(lines).decode("utf-8", "replace"))]
        events = [decode_event(b"\n".join(lines), "chunk")]
        if events[0].kind == "no_json" and len(lines) > 1:
            events = [_DONE if line == b"[DONE]" else decode_event(line, "chunk") for line in lines]
        return [event for event in events if event.kind != "no_json" or not is_no_chunk(lines)]


def error_in_line(line: bytes) -> StreamEvent | None:
    """Returns the error of a line that is no event's: llama.cpp's `error: {...}`, or bare JSON; else None."""
    if line.startswith(b"error:"):
        return decode_event(line[6:].strip(), "error")
    event = decode_event(line, "chunk") if line.startswith(b"{") else None
    if event is not None and event.kind == "chunk" and is_error(event.value):
        return StreamEvent("error", event.value)
    return None


def is_of_stream(line: bytes) -> bool:
    """Whether a line is one of an event's, or the beginning of one."""
    return line.startswith(_FIELDS) or any(field.startswith(line) for field in _FIELDS)


class Newlines:
    """Makes LF of each end of a line: CR LF, LF or CR."""

    def __init__(self) -> None:
        self._after_return = False

    def feed(self, chunk: bytes) -> bytes:
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
            self._after_return = not chunk
        if b"\r" in chunk:
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk


def is_no_chunk(lines: Sequence[bytes]) -> bool:
    """Whether lines of data without a JSON object can be ignored, since they are neither a part of an answer nor an
    error: a comment, a ping, a number.
    """
    return all(map(_NO_CHUNK.match, lines))


def decode_event(data: bytes, kind: Literal["chunk", "error"]) -> StreamEvent:
    """Returns a decoded event, or `no_json` or `too_long`."""
    if is_too_costly(data):
        return StreamEvent("too_long")
    is_lenient = False
    try:
        value = msgspec.json.decode(data)
    except UNREADABLE:
        is_lenient = True
        try:
            # Half of a surrogate pair, NaN and numbers of any size are read by this one.
            value = json.loads(data.decode("utf-8", "replace"))
        except UNREADABLE:
            return StreamEvent("no_json")
    if isinstance(value, list):
        value = error_of(value)
    if not isinstance(value, dict):
        return StreamEvent("error" if kind == "error" else "no_json", value)
    return StreamEvent(kind, value, is_lenient)


def unreadable_body(event: StreamEvent, body: bytes) -> StreamEvent | None:
    """Returns what a body is that was decoded to `no_json`: None if its end is missing."""
    if isinstance(event.value, list):
        return StreamEvent("no_answer")
    try:
        msgspec.json.decode(body)
    except UNREADABLE as error:
        if "truncated" in str(error):
            return None
    return event


def error_of(value: Any) -> Any:
    """Returns an error from where some servers put it: in a list (Gemini's), or in a choice (OpenRouter's); else the
    value itself.
    """
    if isinstance(value, list) and value and isinstance(value[0], dict) and value[0].get("error"):
        return value[0]
    if isinstance(value, dict) and not value.get("error"):
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and isinstance(error := choice.get("error"), dict) and error:
                return {"error": error}
    return value


_ERROR_FIELDS: Final = ("detail", "message", "msg", "error_msg", "errors")
"""The fields of errors of servers that have no `error` (FastAPI, Cloudflare and others)."""


def is_error(chunk: dict[str, Any]) -> bool:
    if error_of(chunk).get("error"):
        return True
    if chunk.get("object") == "error" or value_at(chunk, "base_resp", "status_code"):
        return True
    return "choices" not in chunk and any(map(chunk.get, _ERROR_FIELDS))


def is_json(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except UNREADABLE:
        return False
    return True
