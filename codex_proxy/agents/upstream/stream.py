"""The messages of an HTTP exchange (a `Head`, bytes of the body, an `End`), and the reader of the body: server-sent
events, or one JSON object. Only `data:` lines count, and `event: error`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from codex_proxy.agents.processes.session import LineFramer, LineTooLong
from codex_proxy.core.faults import Failure
from codex_proxy.core.json_values import UNREADABLE, is_too_costly

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
    """`done`: `[DONE]`; `no_json`: cannot be decoded; `no_answer`: neither a stream nor a JSON object; `too_long`: a
    limit is exceeded, and no events follow.
    """
    value: Any = None


_DONE: Final = StreamEvent("done")
_SPACE: Final = b" \t\r\n\xef\xbb\xbf"


class AnswerReader:
    """Reads one answer's body. Call `feed` with each chunk, then `close`. Nothing is raised."""

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        self._max_line = max_line
        self._form: Literal["unknown", "events", "json", "neither"] = "unknown"
        self._framer = LineFramer(max_line)
        self._body: list[bytes] = []
        self._size = 0
        self._event = b""
        """The name of the next event."""

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        if self._form == "unknown":
            found = self._read_first(chunk)
            if found:
                return found
        if self._form == "events" and (events := self._lines(chunk)):
            self._size = 0
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
            rest = self._framer.close()
            event = None if rest is None else self._line(rest)
            # What cannot be read then is a line that was cut off.
            return [] if event is None or event.kind == "no_json" else [event]
        if self._form == "json":
            return [decode_event(b"".join(self._body), "chunk")]
        return []

    def _read_first(self, chunk: bytes) -> list[StreamEvent]:
        """Detects the format by the first character, since content types are often wrong. Returns `no_answer` for an
        unknown one.
        """
        first = chunk.lstrip(_SPACE)[:1]
        if not first:
            return []
        self._form = "json" if first == b"{" else "events"
        if first in (b"<", b"["):
            self._form = "neither"
            return [StreamEvent("no_answer")]
        return []

    def _lines(self, chunk: bytes) -> list[StreamEvent]:
        try:
            lines, too_long = self._framer.feed(chunk), False
        except LineTooLong as error:
            lines, too_long = error.before, True
        events = [event for line in lines if (event := self._line(line)) is not None]
        if too_long:
            self._form = "neither"
            events.append(StreamEvent("too_long"))
        return events

    def _line(self, line: bytes) -> StreamEvent | None:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            kind: Literal["chunk", "error"] = "error" if self._event == b"error" else "chunk"
            self._event = b""
            if data == b"[DONE]":
                return _DONE
            return decode_event(data, kind) if data else None
        if line.startswith(b"event:"):
            self._event = line[6:].strip()
        return None


def decode_event(data: bytes, kind: Literal["chunk", "error"]) -> StreamEvent:
    """Returns a decoded event, or `no_json` or `too_long`."""
    if is_too_costly(data):
        return StreamEvent("too_long")
    try:
        value = msgspec.json.decode(data)
    except UNREADABLE:
        try:
            # Half of a surrogate pair, NaN and numbers of any size are read by this one.
            value = json.loads(data.decode("utf-8", "replace"))
        except UNREADABLE:
            return StreamEvent("no_json")
    if not isinstance(value, dict):
        return StreamEvent("error" if kind == "error" else "no_json", value)
    return StreamEvent(kind, value)


def is_error(chunk: dict[str, Any]) -> bool:
    if chunk.get("error"):
        return True
    if chunk.get("object") == "error":
        return True
    return "choices" not in chunk and any(chunk.get(name) for name in ("detail", "message"))


def is_json(arguments: str) -> bool:
    try:
        json.loads(arguments)
    except UNREADABLE:
        return False
    return True
