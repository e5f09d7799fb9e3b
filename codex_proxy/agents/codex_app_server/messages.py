"""Decodes and encodes the lines of `codex app-server`: JSON-RPC without the `jsonrpc` member.

Each line is decoded once, into the few fields that are used. The kinds of messages are distinguished by their
members, since each side counts its ids separately: the agent's requests (method and id), its notifications
(method), and its answers to our requests (id). Source: recordings of releases 0.163 and 0.169.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

NO_JSON = msgspec.Raw()


class RpcError(msgspec.Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""


class Params(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The parameters of all notifications and requests that are read, in one type."""

    thread_id: str | None = None
    turn_id: str | None = None
    item_id: str | None = None
    delta: str | None = None
    summary_index: int = 0
    content_index: int = 0
    will_retry: bool = False
    message: str | None = None
    command: msgspec.Raw = NO_JSON
    item: msgspec.Raw = NO_JSON
    error: msgspec.Raw = NO_JSON
    turn: msgspec.Raw = NO_JSON
    usage: msgspec.Raw = NO_JSON
    token_usage: msgspec.Raw = NO_JSON
    rate_limits: msgspec.Raw = NO_JSON
    plan: msgspec.Raw = NO_JSON
    questions: msgspec.Raw = NO_JSON
    call_id: str | None = None
    tool: str | None = None
    arguments: msgspec.Raw = NO_JSON


NO_PARAMS = Params()


class Message(msgspec.Struct, frozen=True, gc=False):
    """One decoded line. Answers have `result` or `error`, requests and notifications `method` and `params`."""

    id: int | str | None = None
    method: str | None = None
    params: Params = NO_PARAMS
    result: msgspec.Raw = NO_JSON
    error: RpcError | None = None


class _Address(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The thread and turn that a message belongs to."""

    thread_id: str | None = None
    turn_id: str | None = None


class _AddressedMessage(msgspec.Struct, frozen=True, gc=False):
    """A line whose parameters have unexpected types. Only its thread and turn are read."""

    id: int | str | None = None
    method: str | None = None
    params: _Address = _Address()


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    """A line whose parameters cannot be read at all."""

    id: int | str | None = None
    method: str | None = None


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding can raise; RecursionError for JSON that is nested too deep."""

UNREADABLE_ANSWER = RpcError(0, "the agent's answer is not what it should be")

decode_expected = msgspec.json.Decoder(Message).decode
"""Decodes a line in the expected form. Raises `UNREADABLE` otherwise; `decode_loosely` may then read parts of it."""

_LOOSE_DECODERS: tuple[msgspec.json.Decoder[Any], ...] = (
    msgspec.json.Decoder(_AddressedMessage),
    msgspec.json.Decoder(_Envelope),
)


def decode(line: bytes) -> Message | None:
    """Decodes one line; None if it is not JSON-RPC.

    If parameters have unexpected types, the message keeps its id, method and thread, because a request must still
    be refused and a turn must still end. An unreadable answer becomes an error.
    """
    try:
        return decode_expected(line)
    except UNREADABLE:
        return decode_loosely(line)


def decode_loosely(line: bytes) -> Message | None:
    """Decodes the parts of a line that can be read, if the line does not have the expected form."""
    for decoder in _LOOSE_DECODERS:
        try:
            loose = decoder.decode(line)
        except UNREADABLE:
            continue
        if loose.method is None:
            return Message(loose.id, error=UNREADABLE_ANSWER) if loose.id is not None else None
        address = getattr(loose, "params", None)
        params = Params(address.thread_id, address.turn_id) if address else NO_PARAMS
        return Message(loose.id, loose.method, params)
    return None


def request(id: str, method: str, params: dict[str, Any] | None) -> bytes:
    """Encodes a request as one line, even if the client's JSON inside it contains line breaks."""
    line = msgspec.json.encode({"id": id, "method": method, "params": params})
    return line.replace(b"\n", b" ") + b"\n"  # between tokens only: in a string it would be escaped


def notification(method: str) -> bytes:
    """Encodes a notification as one line."""
    return msgspec.json.encode({"method": method}) + b"\n"


def answer(id: int | str, result: Any) -> bytes:
    """Encodes the answer to one of the agent's requests as one line."""
    return msgspec.json.encode({"id": id, "result": result}) + b"\n"


def refusal(id: int | str) -> bytes:
    """Encodes the refusal of one of the agent's requests. Without any answer the agent's turn would hang."""
    return msgspec.json.encode({"id": id, "error": {"code": -32601, "message": "unsupported"}}) + b"\n"


_REQUEST = re.compile(rb'\{"id":"[^"]*","method":')


def count_requests(writes: bytes) -> int:
    """Counts the requests in `writes`, which are complete lines. Answers have no method and do not count."""
    count = start = 0
    while start < len(writes):
        count += _REQUEST.match(writes, start) is not None
        start = writes.find(b"\n", start) + 1 or len(writes)
    return count
