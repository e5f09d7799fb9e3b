"""Reads what the `mcp` package refuses of a server: damaged JSON, and JSON-RPC of a wrong form. The package passes it
over, so that a call waits until its deadline, or a server for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from codex_proxy.core.damaged_json import beginning_of, is_torn, value_of
from codex_proxy.core.json_values import UNREADABLE, encode_json, value_at

PARSE_ERROR: Final = -32700
INTERNAL_ERROR: Final = -32603
UNREADABLE_ANSWER: Final = {"code": PARSE_ERROR, "message": "its answer could not be read"}
CANCELLED: Final = "notifications/cancelled"
MAX_DIGITS: Final = 20
"""More digits than the id of a request has: Python refuses to read thousands."""
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")
_BLANK_LINE: Final = re.compile(rb"(?>\r\n|\n|\r){2}")


class Waiting:
    """The requests that a server has not answered."""

    def __init__(self) -> None:
        self._ids: dict[int | str, None] = {}
        self._done = 0
        """The highest id of a request that is answered or cancelled, counted from 1: what comes of it then is late."""

    def note_sent(self, message: dict[str, Any]) -> None:
        """Notes a message to the server, if it is a request, or takes one back."""
        if message.get("method") == CANCELLED:
            self._end(value_at(message, "params", "requestId"))
        elif message.get("method") and message.get("id") is not None:
            self._ids[message["id"]] = None

    def is_plain(self, value: Any) -> bool:
        """Whether the package reads a message. Notes an answer."""
        if not isinstance(value, dict) or value.get("jsonrpc") != "2.0":
            return False
        has_id, params, error = type(value.get("id")) in (int, str), value.get("params"), value.get("error")
        if isinstance(value.get("method"), str):
            return (params is None or isinstance(params, dict)) and (has_id or "id" not in value)
        id = self._id_in(value)
        if not has_id or id is None or ("result" in value) == ("error" in value):
            return False
        if isinstance(error, dict):
            plain = type(error.get("code")) is int and isinstance(error.get("message"), str)
        else:
            plain = isinstance(value.get("result"), dict)
        if plain:
            self._end(id)
        return plain

    def read(self, data: bytes) -> list[dict[str, Any]]:
        """Returns the messages in what is damaged. A request without its parameters, so that it is answered; an error
        for each request whose answer is lost: if nobody knows which, for all. Empty for what is no message.
        """
        value = value_of(data)
        if value is None and is_torn(data):
            return list(self._read(beginning_of(data) or {"id": None}, whole=False))
        values = value if isinstance(value, list) else [value]  # some servers send several messages as a list
        return [
            message for each in values if isinstance(each, dict) for message in self._read(each, whole=True)
        ]

    def _read(self, value: dict[str, Any], *, whole: bool) -> Iterator[dict[str, Any]]:
        is_answer = "result" in value or "error" in value
        if "method" in value or ("params" in value and not is_answer):
            yield from _request_in(value, whole=whole)
        elif _may_be_answer(value) or (not whole and (is_answer or "id" in value)):
            id = self._id_in(value)
            if is_answer or not whole or id in self._ids:
                yield from self._answers(id, value, whole=whole)

    def _answers(self, id: Any, value: dict[str, Any], *, whole: bool) -> Iterator[dict[str, Any]]:
        result, error = value.get("result"), value.get("error")
        ids = list(self._ids) if id is None else [id]
        if whole and error is None and isinstance(result, dict) and len(ids) == 1:
            outcome: dict[str, Any] = {"result": result}
        else:
            outcome = {"error": _error_in(error) if whole and error is not None else UNREADABLE_ANSWER}
        for each in ids:
            self._end(each)
            yield {"jsonrpc": "2.0", "id": each, **outcome}

    def _id_in(self, value: dict[str, Any]) -> int | str | None:
        """Returns the id of an answer; None if no request has had it, so far as requests are known."""
        id = _plain_id(value)
        if not self._ids and not self._done:
            return id
        if (
            isinstance(id, str)
            and id.isascii()
            and id.isdigit()
            and len(id) < MAX_DIGITS
            and id not in self._ids
        ):
            id = int(id)
        return id if id in self._ids or (isinstance(id, int) and 0 < id <= self._done) else None

    def _end(self, id: Any) -> None:
        self._ids.pop(id, None)
        if isinstance(id, int):
            self._done = max(self._done, id)

    # --- over HTTP --------------------------------------------------------------------------------

    def mend_body(self, body: bytes) -> bytes:
        """Returns a body of JSON, with its answer in a form that the package reads."""
        if self.is_plain(_decoded(body)):
            return body
        answer = next((each for each in self.read(body) if "method" not in each), None)
        return body if answer is None else encode_json(answer)

    def mend_events(self, events: bytes) -> bytes:
        """Returns whole events, with the messages in a form that the package reads; what is no message is left out."""
        events = events.removeprefix(b"\xef\xbb\xbf")
        ends = [blank.end() for blank in _BLANK_LINE.finditer(events)]
        starts = [0, *ends]
        return b"".join(
            self._mend_event(events[start:end]) for start, end in zip(starts, [*ends, None], strict=True)
        )

    def _mend_event(self, event: bytes) -> bytes:
        lines = _LINE_END.split(event)
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        named = any(line[6:].strip() not in (b"", b"message") for line in lines if line.startswith(b"event:"))
        if not data or named or self.is_plain(_decoded(data)):
            return b"\n".join(lines)  # the package waits for what may follow a CR
        kept = b"".join(line + b"\n" for line in lines if line.startswith((b"id:", b"retry:")))
        messages = [kept + b"data: " + encode_json(each) + b"\n\n" for each in self.read(data)]
        return b"".join(messages) or (kept + b"\n" if kept else b"")


def _may_be_answer(value: dict[str, Any]) -> bool:
    """Whether JSON is no log, which may have an `id` and an `error` of its own."""
    return "jsonrpc" in value or (
        "id" in value and ("result" in value or isinstance(value.get("error"), dict))
    )


def _request_in(value: dict[str, Any], *, whole: bool) -> Iterator[dict[str, Any]]:
    """Yields a request or notification, if it can be answered or understood."""
    id, method, params = _plain_id(value), value.get("method"), value.get("params")
    if id is None and not (whole and isinstance(method, str)):
        return
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method if isinstance(method, str) else ""}
    message |= {} if id is None else {"id": id}
    yield message | ({"params": params} if whole and isinstance(params, dict) else {})


def _plain_id(value: dict[str, Any]) -> int | str | None:
    id = value.get("id")
    if isinstance(id, float) and id.is_integer():
        return int(id)
    return id if isinstance(id, int | str) and not isinstance(id, bool) else None


def _error_in(error: Any) -> dict[str, Any]:
    code, message = (error.get("code"), error.get("message")) if isinstance(error, dict) else (None, error)
    return {
        "code": code if type(code) is int else INTERNAL_ERROR,
        "message": message if isinstance(message, str) else "an error without a message",
    }


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except UNREADABLE:
        return None
